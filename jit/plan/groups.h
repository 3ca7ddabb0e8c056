#pragma once
// Which values get memory and which are computed together: the graph as a list of kernels and extern calls.
#include <array>
#include <set>

#include "plan/choose.h"
#include "plan/draft.h"

namespace fastjit::plan {

/// One kernel to be, or a step of its own: an Extern, a Contract or a Loop (then `external` names its node). Items
/// stand in an order that respects every dependence through memory.
struct Item {
  ir::NodeId external = ir::kNoNode;
  Space frame;
  std::vector<Root> roots;
  Draft draft;
  bool keep = true;
  bool is_final = false;  // it reads a value where that was put aside, of which another draft would not know
  std::vector<std::optional<Storage>> operands;  // extern: where its operands lie (nothing: no tensor was given)

  bool is_extern() const { return external != ir::kNoNode; }
};

using ItemsByBuffer = ByBuffer<std::vector<uint32_t>>;
/// Those of the buffer; none where nothing is known of it.
const std::vector<uint32_t>& items_at(const ItemsByBuffer& items, BufferId buffer);

class Former {
 public:
  Former(const ir::Graph& graph, const Costs& costs);

  /// Forms the items of the graph.
  void run();

  const ir::Graph& graph() const { return world_.graph; }
  const World& world() const { return world_; }
  std::vector<Item>& items() { return items_; }
  /// Items that write the buffer: several for a Cat.
  const std::vector<uint32_t>& producers(BufferId buffer) const { return items_at(producers_, buffer); }
  std::vector<Dim> buffer_strides(BufferId buffer) const;
  /// The Cat that begins in this one's memory, or what this Update writes over, one step at a time; else kNoNode.
  ir::NodeId beginning(BufferId buffer) const {
    const auto found = buffer.is_own() ? begins_.find(buffer.node) : begins_.end();
    return found == begins_.end() ? ir::kNoNode : found->second;
  }
  /// The longest Cat in whose memory this one lies as the first part, or what this Update lies in; else kNoNode.
  ir::NodeId whole(BufferId buffer) const {
    return buffer.is_own() && buffer.node < whole_.size() ? whole_[buffer.node] : ir::kNoNode;
  }
  Why why(ir::NodeId id) const { return why_[id]; }
  /// Late symbols that an item's sizes, addresses and numbers hang on, and the memory that it stores to.
  uint64_t late_in(const Item& item) const;
  /// The call that finds this late symbol.
  static constexpr uint32_t kNowhere = 0xFFFFFFFFu;
  uint32_t finder(size_t late) const { return finders_[late]; }
  /// Whether the operand of this step is memory that a loop's rounds store over.
  bool is_placed(ir::NodeId step, size_t operand) const;
  /// The item and root that compute a node, if a kernel does.
  const std::pair<uint32_t, uint32_t>* root_of(ir::NodeId id) const;
  /// Makes the kernel that computes `value` write it to `dest` too, or forms one that copies it there.
  void write(ir::NodeId value, Storage dest);
  /// The item formed without kept values. None: there is no such draft, or it would read what later items write.
  std::optional<Item> without_keep(uint32_t index) const;
  /// Appends a kernel that copies `value`, which is in memory, to `dest`.
  uint32_t copy(ir::NodeId value, Storage dest);
  void move_storage(ir::NodeId id, Storage storage) { world_.storage[id] = std::move(storage); }
  /// The value that `value` only permutes or reshapes, as far down as one is computed, and `dest` in its dims.
  std::pair<ir::NodeId, Storage> peeled(ir::NodeId value, Storage dest) const;

 private:
  std::vector<ir::NodeId> sequence() const;
  void mark_live();
  void chain_cats();
  void mark_stored();
  bool is_call(ir::NodeId id) const;
  void note_found(ir::NodeId result);
  uint64_t late_in(const Storage& dest) const;
  bool found_before(uint64_t late, uint32_t item) const;
  void mark_operands(ir::NodeId call);
  void mark_factors(ir::NodeId dot);
  void mark_table(ir::NodeId gather);
  void mark_before_write(ir::NodeId writer, ir::NodeId written);
  bool lies_in(ir::NodeId id, ir::NodeId operand) const;
  void store(ir::NodeId id);
  void store_cat(ir::NodeId id, ir::NodeId cat, Dim& at);
  void store_update(ir::NodeId id);
  bool is_fill(ir::NodeId value) const;
  bool fills_region(const Root& root) const;
  void write_apart(ir::NodeId value, Storage dest);
  bool may_write(uint32_t item, const Root& root, const Storage& dest, ir::NodeId base) const;
  Item single(ir::NodeId value, Storage dest, bool copy);
  uint32_t append(Item item);
  bool lies_in_memory(BufferId buffer, ir::NodeId memory) const;
  bool is_region(BufferId buffer) const;
  bool share_regions(const Item& one, const Item& other) const;
  bool loads_after_region(const Draft& draft, const std::vector<Root>& roots) const;
  Linear placed(const Item& item, const Root& root, const Storage& dest) const;
  void pack(ir::NodeId reshape);
  void place(ir::NodeId value, std::vector<Storage> dests, bool copy);
  void call(ir::NodeId external);
  bool wanted_after_write(ir::NodeId external, size_t index) const;
  bool peel(ir::NodeId id);
  void form(Item& item);
  bool join(uint32_t candidate, const Item& single);
  std::vector<uint32_t> candidates(const Item& single) const;
  bool written_before(const Draft& draft, uint32_t position, bool or_there) const;
  void finish(uint32_t item, uint32_t root);
  void add_producer(BufferId buffer, uint32_t item);
  void note_readers(uint32_t item);
  void note_user(BufferId buffer, uint32_t item);

  World world_;
  std::vector<Item> items_;
  std::vector<bool> live_, stored_;  // stored: somebody outside the kernels needs it in memory
  std::vector<Why> why_;
  std::vector<ir::NodeId> whole_;
  std::vector<bool> overwritten_;       // per node: Updates lie in its memory, or calls write to it
  std::vector<bool> written_by_calls_;  // per node that is no view: torch's calls write its memory
  std::vector<int64_t> last_users_;  // per node whose memory Updates may lie in: the last item that reads or fills it
  std::unordered_map<ir::NodeId, ir::NodeId> begins_;  // a Cat or an Update -> the one whose memory it goes on in
  std::vector<ir::NodeId> last_use_;                   // kNoNode: the caller's
  std::vector<std::vector<ir::NodeId>> readers_;
  std::vector<size_t> passed_;                            // readers that an earlier call which overwrites has met
  std::array<uint32_t, ir::Symbols::kMostLate> finders_;  // items, by late symbol
  ItemsByBuffer producers_;
  ByBuffer<uint32_t> last_producer_;
  ItemsByBuffer recent_readers_;  // kernels, latest last
  std::unordered_map<ir::NodeId, std::pair<uint32_t, uint32_t>> roots_;
};

}  // namespace fastjit::plan
