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
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dispatch/run/executor.h"
#include "dispatch/run/last_uses.h"
#include "dispatch/run/sized.h"

namespace fastjit::dispatch {

/// What a backward program may be given, of a call of the program and then of autograd.
struct Given {
  enum class From : uint8_t { Input, Result, Extra, Gradient } from;
  uint32_t index;           // of the program's inputs; of its outputs, for Result and Extra; of Backward::results
  bool is_checked = false;  // no program reads it, but eager's way back does: a write to it is eager's error
  bool is_found = false;    // an input that is taken as it is when autograd comes to it, written or not
  /// Results whose gradients are needed beside it, as bits: one entry for each computation.
  std::vector<uint64_t> uses{};
};

/// Makes gradients of some sources out of gradients of some results.
struct BackwardProgram {
  std::unique_ptr<const Executable> executable;
  std::vector<uint32_t> inputs;  // of the program: indices into Backward::given
  std::vector<int> gradients;    // per source: which output it is; -1: it has none
  std::unique_ptr<Sized> sized;  // null: it is for one size
  Ends ends;
  std::vector<uint32_t> source_ends;  // per source: after so many steps none touches it or its gradient any more
};

/// Which program: the results whose gradients are there, as bits, and the sources whose gradients are wanted.
struct BackwardRequest {
  uint64_t results = 0;
  std::vector<bool> sources{};
  auto operator<=>(const BackwardRequest&) const = default;
};

/// What one node computes, in all calls of a program.
class Backward {
 public:
  struct Result {
    uint32_t output;  // of the program
    at::ScalarType dtype;
    std::vector<int64_t> sizes, strides;  // that the backward programs want its gradient to have, of the recorded call
    ir::Layout layout;                    // the same of each call
  };
  struct Source {
    bool is_result;           // of a node further in, from which this one's results are computed
    uint32_t index;           // of the program's outputs, or of its inputs
    uint64_t reached_by = 0;  // bits of Backward::results: without the gradients of all these it has none
  };
  std::string function;  // for people
  ir::Graph graph;       // what its programs are made of, before the passes
  std::vector<Given> given;
  std::vector<Result> results;
  std::vector<Source> sources;    // that get a gradient
  bool is_over = false;           // as after a backward() that freed what it takes
  std::vector<int64_t> recorded;  // the sizes of the recorded call, by symbol; none: it is for one size
  ir::SizeCode shapes;            // of the layouts of `results`
  /// Makes a program, planned for these sizes; needs no GIL, throws what compiling throws.
  std::function<std::unique_ptr<BackwardProgram>(const BackwardRequest&, std::span<const int64_t> sizes)> make;
  uint64_t python = 0;  // bits of `results`: autograd comes from them to Python code
  /// Not empty: what Python code on the way back has read has changed since. Takes the GIL. Null: there is no such
  /// code.
  std::function<std::string()> changed;
  std::shared_ptr<std::atomic<bool>> again;  // its gradients are differentiated again, which no program can do

  /// Whether it has loops of which a call runs any number of rounds (ir::Graph::traced). That its programs let in what
  /// the call's own does was seen to before, of those that make all gradients.
  bool runs_any_trip() const { return !graph.traced.empty(); }
  /// The request for everything.
  BackwardRequest whole() const;
  /// That at the recorded sizes. Made at its first use; threads may ask at once.
  const BackwardProgram& program(const BackwardRequest& request) const;
  /// A program for some sizes, and its plan at them while this is there; an empty lease: it is for one size.
  struct Held {
    const Backward* of;
    std::shared_ptr<const BackwardProgram> program;
    std::optional<Sized::Lease> at;
    Held(const Backward* backward, std::shared_ptr<const BackwardProgram> found, std::optional<Sized::Lease> lease)
        : of(backward), program(std::move(found)), at(std::move(lease)) {}
    Held(Held&&) = default;
    ~Held();
    const plan::Program& plan() const { return at && *at ? at->program() : program->executable->program; }
  };
  /// For these sizes, by symbol. Threads may ask at once.
  Held hold(const BackwardRequest& request, std::span<const int64_t> sizes) const;
  /// Per source: the part of the way back that is to make its gradient, where somebody waits for gradients on the way.
  const std::vector<uint32_t>& parts() const;

 private:
  using Programs =
      std::vector<std::shared_ptr<const BackwardProgram>>;  // one, or for sizes that it does not let in more
  std::shared_ptr<const BackwardProgram> find(Programs& known, const BackwardRequest& request,
                                              std::span<const int64_t> sizes, std::optional<Sized::Lease>& lease) const;
  mutable std::mutex mutex_;
  mutable std::map<BackwardRequest, Programs> programs_;
  mutable std::vector<uint32_t> parts_;
};

/// All nodes of a program, the innermost first: autograd sees each result as eager shows it, and none is a part of one
/// node with another that it is computed from.
struct WayBack {
  std::vector<std::shared_ptr<const Backward>> nodes;
  size_t extras = 0;  // last outputs of the program, which only the nodes see
  std::vector<capture::ResultView> views;
  std::shared_ptr<std::atomic<bool>> again = std::make_shared<std::atomic<bool>>(false);

  /// Makes the programs that a usual backward() runs. Throws what compiling throws.
  void make_ahead() const;
  /// Takes the extras off a run's outputs and makes the results require grad.
  /// `sizes`: by symbol; none where it is for one size.
  void attach(Tensors& outputs, const at::Tensor* const* inputs, std::span<const uint64_t> scalars,
              std::span<const int64_t> sizes) const;
  /// Notes it where somebody differentiates the gradients of these eager results of the call.
  void watch(const std::vector<at::Tensor>& results) const;
  /// Why a call must run eagerly; null: it need not.
  const char* why_eager() const;
};

/// Whether on this thread each new node is shown to a hook: torch.autograd.graph.node_creation_hook, new in torch 2.14.
bool nodes_are_watched();

/// What on this thread keeps nodes like these from being eager's equal; null: nothing.
const char* why_no_nodes();

}  // namespace fastjit::dispatch
