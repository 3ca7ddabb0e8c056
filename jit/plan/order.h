#pragma once
// What must run before what, where results finally go, and in which steps the items run.
#include "plan/groups.h"

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
  /// Items per step: kernels that may run at once, or one extern call.
  std::vector<std::vector<uint32_t>> steps() const;

  /// The kernel that runs in the step of this extern item, or kNoItem.
  static constexpr uint32_t kNoItem = 0xFFFFFFFFu;
  uint32_t epilogue_of(uint32_t item) const { return epilogues_[item]; }
  /// Where a matrix product really goes: its own buffer, or the one its epilogue turns it into in place.
  BufferId place_of(BufferId product) const;
  /// The memory behind a buffer: extern view results lie in their operand's.
  BufferId base(BufferId buffer) const;
  bool reads(const Item& item, BufferId memory) const;
  ir::ExternKind kind(const Item& item) const;

 private:
  void add_item();
  bool depends(uint32_t later, uint32_t earlier) const;
  void guard_first(uint32_t guard);
  bool may_store(uint32_t item, const Storage& dest, const Root& root) const;
  void store(const ir::Store& store, const std::set<uint32_t>& inputs);
  bool is_epilogue(uint32_t call, uint32_t kernel, BufferId product) const;
  void merge(uint32_t call, uint32_t kernel, BufferId product);

  Former& former_;
  const ir::Graph& graph_;
  std::vector<std::set<uint32_t>> before_;  // per item
  std::vector<uint32_t> epilogues_;
  std::unordered_map<BufferId, BufferId> places_;
  std::unordered_map<BufferId, uint32_t> writers_;  // stored input -> item
  uint32_t last_guard_ = kNoItem;
  std::vector<bool> merged_;  // runs in another item's step
};

}  // namespace fastjit::plan
