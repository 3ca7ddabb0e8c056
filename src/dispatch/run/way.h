#pragma once
// One run of a backward program: whole, or in parts between which others take the gradients that are there.
#include <span>
#include <vector>

#include "dispatch/run/backward.h"

namespace fastjit::dispatch {

/// What a program is given beside tensors.
struct Numbers {
  std::vector<uint64_t> scalars;
  std::vector<int64_t> sizes;  // by symbol; none: it is for one size
};

class Way {
 public:
  Way(const Backward& backward, const Numbers& numbers, const BackwardRequest& request);
  const BackwardProgram& program() const { return *held_.program; }
  /// Whose gradients it makes others of: bits of Backward::results.
  uint64_t results() const { return results_; }
  /// Per input of the program; those that are given up are freed once the run needs them no more.
  void set_inputs(std::vector<at::Tensor> inputs, std::vector<bool> given_up);
  void run_all();
  /// Up to where the gradients of part `part` are there. `parts`: of each source. Throws autograd's error where
  /// somebody wrote to a tensor since the part before that is still to be read.
  void run_until(const std::vector<uint32_t>& parts, uint32_t part, bool is_last);
  /// Undefined: the source gets none.
  at::Tensor gradient(size_t source) const;
  /// Those of the part that ran last are with whom they are for.
  void let_go(const std::vector<uint32_t>& parts, uint32_t part);

 private:
  template <class Run>
  void run(const Run& run);
  bool shares_across(const std::vector<uint32_t>& parts) const;
  Part next(const std::vector<uint32_t>& parts, uint32_t part, bool is_last) const;
  void refuse_written() const;

  const Backward* backward_;
  uint64_t results_;
  Backward::Held held_;
  std::vector<uint64_t> scalars_;
  std::vector<at::Tensor> inputs_;
  std::vector<bool> given_up_;
  std::vector<uint32_t> versions_;  // per input, as the last part has left it
  Stopped at_;
  Tensors made_;
  bool is_done_ = false;
};

}  // namespace fastjit::dispatch
