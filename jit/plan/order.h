#pragma once
// What must run before what, where results finally go, and in which steps the items run.
#include "pass/rewrite.h"
#include "plan/groups.h"
#include "plan/precedence.h"

namespace fastjit::plan {

class Order {
 public:
  explicit Order(Former& former);

  /// Lets the kernels of stored values write the inputs directly where no old value is lost, else adds copies.
  void settle_stores();
  /// Fuses kernels that alone read a matrix product into the call's step; `epilogue_of` tells.
  void fuse_epilogues();
  /// Drops destinations nobody reads; own buffers that somebody reads become destinations.
  void settle_destinations();
  /// Items per step: kernels that may run at once, or one call of torch's.
  std::vector<std::vector<uint32_t>> steps() const;

  /// The kernel that runs in the step of this extern item, or kNoItem.
  static constexpr uint32_t kNoItem = 0xFFFFFFFFu;
  uint32_t epilogue_of(uint32_t item) const { return epilogues_[item]; }
  /// Where a matrix product really goes: its own buffer, or the one its epilogue turns it into in place.
  BufferId place_of(BufferId product) const;
  /// The memory behind a buffer: extern view results lie in their operand's.
  BufferId base(BufferId buffer) const;
  /// Whether the item is a call of torch's of this kind.
  bool is(const Item& item, ir::ExternKind kind) const;
  bool is_loop(const Item& item) const { return item.is_extern() && graph_[item.external].op == ir::Op::Loop; }
  /// Whether it is a guard or a loop with some.
  bool guards(const Item& item) const {
    return is(item, ir::ExternKind::Guard) || (is_loop(item) && pass::may_end(graph_, graph_[item.external]));
  }
  /// Whether the item is no call, but reads memory of the program's own: it may end the run.
  bool may_refuse(const Item& item) const {
    return is(item, ir::ExternKind::Guard) || is(item, ir::ExternKind::Number);
  }

 private:
  void add_item();
  void after_readers_of_written(uint32_t call);
  void after_users_of(BufferId older, uint32_t writer);
  void after_finders();
  void guards_first();
  bool may_store(uint32_t item, const Storage& dest, const Root& root) const;
  void store(const ir::Store& entry);
  bool is_epilogue(uint32_t call, uint32_t kernel, ir::NodeId product) const;
  void merge(uint32_t call, uint32_t kernel, ir::NodeId product);
  /// Items that read the memory, ascending.
  const std::vector<uint32_t>& readers(BufferId memory) const { return items_at(readers_, memory); }

  Former& former_;
  const ir::Graph& graph_;
  Precedence order_;  // of items
  std::vector<uint32_t> epilogues_;
  std::vector<bool> guarded_;       // per item: a guard needs it
  std::vector<ir::NodeId> inputs_;  // per input of the graph
  ItemsByBuffer readers_;
  ByBuffer<size_t> overwritten_;  // how many of the readers wait for no call any more
  mutable ByBuffer<BufferId> bases_;
  ByBuffer<BufferId> places_;
  ByBuffer<uint32_t> writers_;  // stored input -> item
  std::set<uint32_t> stored_inputs_;
  uint32_t last_guard_ = kNoItem;
};

}  // namespace fastjit::plan
