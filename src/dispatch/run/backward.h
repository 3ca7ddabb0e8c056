#pragma once
// The way back from the gradients of a program's results: a node in autograd's graph, which runs programs of its own
// when autograd comes to it. What eager's graph would keep of the caller's tensors it keeps as eager does, so that a
// write to one of them is eager's error.
#include <ATen/ATen.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dispatch/run/executor.h"

namespace fastjit::dispatch {

/// What a backward program may be given, of a call of the program and then of autograd.
struct Given {
  enum class From : uint8_t { Input, Result, Extra, Gradient } from;
  uint32_t index;              // of the program's inputs; of its outputs; of Backward::results
  std::vector<uint64_t> uses;  // results whose gradients are needed beside it, as bits: one entry for each computation
};

/// Makes gradients of some sources out of gradients of some results.
struct BackwardProgram {
  std::unique_ptr<const Executable> executable;
  std::vector<uint32_t> inputs;  // of the program: indices into Backward::given
  std::vector<int> gradients;    // per source: which output it is; -1: it has none
};

/// Which program: the results whose gradients are there, as bits, and the sources whose gradients are wanted.
struct BackwardRequest {
  uint64_t results = 0;
  std::vector<bool> sources;
  auto operator<=>(const BackwardRequest&) const = default;
};

/// Of one program, shared by all of its calls.
class Backward {
 public:
  struct Result {
    uint32_t output;  // of the program
    at::ScalarType dtype;
    std::vector<int64_t> sizes, strides;  // that the programs want its gradient to have
  };
  std::string function;  // for people
  std::vector<Given> given;
  std::vector<Result> results;
  std::vector<uint32_t> sources;  // inputs of the program that may get a gradient
  size_t extras = 0;              // last outputs of the program, which only the way back sees
  /// Makes a program; needs no GIL, throws what compiling throws.
  std::function<std::unique_ptr<BackwardProgram>(const BackwardRequest&)> make;

  /// The request for everything.
  BackwardRequest whole() const;
  /// Made at its first use; threads may ask at once.
  const BackwardProgram& program(const BackwardRequest& request) const;

  /// Takes the extras off a run's outputs and makes the results require grad.
  static void attach(const std::shared_ptr<const Backward>& backward, Tensors& outputs, const at::Tensor* const* inputs,
                     const uint64_t* scalars, size_t scalar_count);

  /// Notes it where somebody differentiates the gradients of this eager result: no program can.
  static void watch(const std::shared_ptr<const Backward>& backward, const at::Tensor& result);
  /// Why calls must run eagerly from now on; null: they need not.
  const char* why_eager() const noexcept;
  void differentiated_again() const noexcept { again_ = true; }

 private:
  mutable std::mutex mutex_;
  mutable std::map<BackwardRequest, std::unique_ptr<const BackwardProgram>> programs_;
  mutable std::atomic<bool> again_ = false;
};

}  // namespace fastjit::dispatch
