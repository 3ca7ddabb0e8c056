#pragma once
// How long each buffer is in use, which of them need a tensor, and which take the place of one that dies.
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "plan/order.h"
#include "plan/program.h"

namespace fastjit::plan {

/// Results of torch's calls by the node of the call, kNoNode where none is wanted.
using Results = std::unordered_map<ir::NodeId, std::vector<ir::NodeId>>;

/// From the first to the last step that touches a buffer, and the loads from it in that last one.
struct Life {
  size_t first = SIZE_MAX, last = 0;
  uint32_t last_loads = 0;
};

class Lives {
 public:
  using Steps = std::vector<std::vector<uint32_t>>;
  Lives(Former& former, const Order& order, const Steps& steps, const Results& results, const PlanOptions& options);

  /// The buffer whose memory this one has: itself, or one that died where it was made.
  BufferId home(BufferId buffer) const;
  /// Raw bytes do: only kernels touch it.
  bool is_temp(BufferId buffer) const;
  /// All buffers, also those that live in another one's memory.
  const std::map<BufferId, Life>& all() const { return lives_; }
  /// The arena holds nothing in this step, but did since such a step was last asked for.
  bool leaves_arena(size_t step);
  /// Tensors but the caller's and results, by the step after which nobody uses them.
  const std::vector<BufferId>& dying(size_t step) const { return dying_[step]; }
  /// Tensors that a call of torch's made or was given, and that the step writes over.
  const std::vector<BufferId>& written_over(size_t step) const { return written_over_[step]; }

 private:
  void find_tensors();
  void find_tensors_of_rounds(const Item& loop);
  /// Whether torch computes something in the item's step.
  bool calls_torch(const Item& item) const;
  void find_cats();
  void find_large();
  void find_lives();
  void touch(BufferId buffer, size_t step, bool load);
  void find_in_place();
  void try_in_place(const Item& item, size_t step);
  bool may_take(BufferId old) const;
  void find_dying();
  void find_arena();

  Former& former_;
  const ir::Graph& graph_;
  const Order& order_;
  const Steps& steps_;
  const Results& results_;
  const PlanOptions& options_;
  BufferSet tensors_;  // must be real tensors: outputs, extern operands, and what is large
  BufferSet kept_;     // outputs
  BufferSet lent_;     // calls of torch's made them or were given them
  BufferSet written_;  // calls of torch's write them
  BufferSet in_cat_;   // one Cat lies in another
  BufferSet places_;   // products are made there
  std::map<BufferId, Life> lives_;
  ByBuffer<BufferId> homes_;
  std::vector<int> temps_;  // per step: how many are alive in it
  size_t arena_left_ = 0;   // the steps before this one were asked for
  std::vector<std::vector<BufferId>> dying_, written_over_;
};

}  // namespace fastjit::plan
