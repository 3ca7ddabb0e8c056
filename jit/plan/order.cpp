// Dependences between items, stores into inputs, epilogues of matrix products, and the steps that follow from them.
#include "plan/order.h"

#include <algorithm>
#include <bit>
#include <unordered_set>

#include "plan/work.h"

namespace fastjit::plan {

Order::Order(Former& former) : former_(former), graph_(former.graph()), inputs_(graph_.inputs.size(), ir::kNoNode) {
  for (ir::NodeId id = static_cast<ir::NodeId>(graph_.nodes.size()); id-- > 0;)
    if (graph_[id].op == ir::Op::Input) inputs_[graph_[id].attr] = id;
  uint32_t last_call = kNoItem;
  for (uint32_t i = 0; i < former_.items().size(); ++i) {
    add_item();
    const Item& item = former_.items()[i];
    // Memory alone orders products and numbers.
    const bool is_call = item.is_extern() && graph_[item.external].op == ir::Op::Extern;
    if (!is_call || is(item, ir::ExternKind::Number)) continue;
    if (last_call != kNoItem) order_.before(last_call, i);
    last_call = i;
    after_readers_of_written(i);
  }
  after_finders();
  guards_first();
  order_.sort();
}

/// The call waits for those that read what it overwrites. Earlier ones than the last call that overwrote the same are
/// behind that.
void Order::after_readers_of_written(uint32_t call) {
  const Item& item = former_.items()[call];
  for (const uint32_t index : graph_.externs[graph_[item.external].attr].written) {
    if (!item.operands[index]) continue;
    const BufferId memory = base(item.operands[index]->buffer);
    const std::vector<uint32_t>& all = readers(memory);
    size_t& from = overwritten_[memory];
    for (; from < all.size(); ++from)
      if (all[from] != call) order_.before(all[from], call);
  }
}

/// What has a size that a call of torch's finds comes after that call, whatever it reads.
void Order::after_finders() {
  if (!graph_.symbols || graph_.symbols->late_count() == 0) return;
  for (uint32_t i = 0; i < former_.items().size(); ++i)
    for (uint64_t late = former_.late_in(former_.items()[i]); late != 0; late &= late - 1)
      if (const uint32_t finder = former_.finder(static_cast<size_t>(std::countr_zero(late)));
          finder != Former::kNowhere)
        order_.before(finder, i);
}

/// What a guard does not need waits for it. Guards come one after another, so an item that some guard needs waits for
/// the guard before that one, any other for the last. Numbers, which may refuse to go on, are like guards, but what
/// they need waits for none.
void Order::guards_first() {
  for (uint32_t guard = 0; guard < order_.size(); ++guard) {
    const Item& item = former_.items()[guard];
    const bool waits = guards(item);
    if (!waits && !may_refuse(item)) continue;
    if (!waits && last_guard_ != kNoItem) order_.before(last_guard_, guard);
    std::vector<uint32_t> stack{guard};
    guarded_[guard] = true;
    while (!stack.empty()) {
      const uint32_t needed = stack.back();
      stack.pop_back();
      for (const uint32_t other : order_.needs(needed)) {
        if (guarded_[other]) continue;
        guarded_[other] = true;
        stack.push_back(other);
      }
      if (waits && last_guard_ != kNoItem) order_.before(last_guard_, needed);
    }
    last_guard_ = guard;
  }
  for (uint32_t i = 0; last_guard_ != kNoItem && i < order_.size(); ++i)
    if (!guarded_[i]) order_.before(last_guard_, i);
}

/// Takes up the next item of the former with its dependences through memory.
void Order::add_item() {
  const uint32_t i = order_.add();
  const Item& item = former_.items()[i];
  epilogues_.push_back(kNoItem);
  guarded_.push_back(false);
  auto reads = [&](BufferId buffer) {
    for (const uint32_t writer : former_.producers(buffer))
      if (writer != i) order_.before(writer, i);  // it writes another region of what it reads
    const BufferId memory = base(buffer);
    std::vector<uint32_t>& all = readers_[memory];
    if (all.empty() || all.back() != i) all.push_back(i);
    if (const auto writer = writers_.find(memory); writer != writers_.end()) order_.before(i, writer->second);
  };
  for (const Root& root : item.roots)
    for (const Storage& dest : root.dests)
      if (graph_[dest.buffer.node].op == ir::Op::Update) after_users_of(graph_[dest.buffer.node].in[0], i);
  for (const Access& access : item.draft.accesses) reads(access.buffer);
  for (size_t k = 0; k < item.operands.size(); ++k) {
    if (!item.operands[k]) continue;
    if (former_.is_placed(item.external, k)) after_users_of(item.operands[k]->buffer, i);
    reads(item.operands[k]->buffer);
  }
}

/// What an Update writes over is made and read before.
void Order::after_users_of(BufferId older, uint32_t writer) {
  for (const uint32_t maker : former_.producers(older))
    if (maker != writer) order_.before(maker, writer);
  for (const uint32_t reader : readers(base(older)))
    if (reader != writer) order_.before(reader, writer);
}

bool Order::is(const Item& item, ir::ExternKind kind) const {
  return item.is_extern() && graph_[item.external].op == ir::Op::Extern &&
         graph_.externs[graph_[item.external].attr].kind == kind;
}

BufferId Order::base(BufferId buffer) const {
  if (!buffer.is_own() || graph_[buffer.node].op != ir::Op::Result) return buffer;
  if (const auto known = bases_.find(buffer); known != bases_.end()) return known->second;
  const Item& call = former_.items()[former_.producers(buffer)[0]];
  const bool view = is(call, ir::ExternKind::View) && !call.operands.empty() && call.operands[0];
  const BufferId result = view ? base(call.operands[0]->buffer) : buffer;
  bases_.emplace(buffer, result);
  return result;
}

/// Whether the kernel may write `dest` while older values there are still wanted: each of its own loads from there is
/// of the very element it writes, no later, and no other reader needs this kernel's results first.
bool Order::may_store(uint32_t index, const Storage& dest, const Root& root) const {
  if (guarded_[index]) return false;
  const Item& item = former_.items()[index];
  const Linear address = root_address(former_.world(), item.frame, root, dest.strides);
  for (const Access& access : item.draft.accesses)
    if (base(access.buffer) == dest.buffer && (access.buffer != dest.buffer || !access.is_at(address))) return false;
  const auto which = static_cast<size_t>(&root - item.roots.data());
  if (is_loaded_after(item.draft, which, [&](BufferId loaded) { return loaded == dest.buffer; })) return false;
  return std::ranges::none_of(readers(dest.buffer),
                              [&](uint32_t other) { return other != index && order_.reaches(index, other); });
}

void Order::settle_stores() {
  for (const ir::Store& entry : graph_.stores) stored_inputs_.insert(entry.input);
  for (const ir::Store& entry : graph_.stores) store(entry);
}

void Order::store(const ir::Store& entry) {
  const ir::NodeId input = inputs_[entry.input];
  if (input == ir::kNoNode || entry.value == input || graph_.layout(input).numel() == 0) return;
  if (former_.whole(entry.value) == input) return;  // it is made there
  const Storage dest{input, 0, graph_.layout(input).strides};
  auto finish = [&](uint32_t writer) {
    writers_[input] = writer;
    if (last_guard_ != kNoItem) order_.before(last_guard_, writer);
    for (const uint32_t other : readers(input)) order_.before(other, writer);
  };
  const auto peeled = former_.peeled(entry.value, dest);
  if (const auto* root = former_.root_of(peeled.first); root) {
    Root& made = former_.items()[root->first].roots[root->second];
    if (may_store(root->first, peeled.second, made)) {
      made.dests.push_back(peeled.second);
      return finish(root->first);
    }
  }
  const auto from = former_.world().strided(entry.value);
  const BufferId source = base(from->buffer);
  if (source.is_own() && graph_[source.node].op == ir::Op::Input && stored_inputs_.contains(graph_[source.node].attr)) {
    const Storage snapshot{{entry.value, BufferId::Snapshot}, 0, ir::row_major(graph_.sizes(entry.value))};
    former_.copy(entry.value, snapshot);
    add_item();
    former_.move_storage(entry.value, snapshot);
  }
  const uint32_t writer = former_.copy(entry.value, dest);
  former_.move_storage(entry.value, *from);
  add_item();
  finish(writer);
}

void Order::settle_destinations() {
  BufferSet wanted;
  for (const ir::NodeId id : graph_.outputs)
    if (const auto& storage = former_.world().storage[id]) wanted.insert(storage->buffer);
  for (const Item& item : former_.items()) {
    for (const Access& access : item.draft.accesses) wanted.insert(access.buffer);
    for (const auto& operand : item.operands)
      if (operand) wanted.insert(operand->buffer);
  }
  for (const ir::Store& store : graph_.stores) {
    wanted.insert(inputs_[store.input]);
    if (graph_.stored_over(store.value) != ir::kNoNode) wanted.insert(store.value);
  }
  for (const BufferId buffer : std::vector(wanted.begin(), wanted.end()))
    for (BufferId part = former_.beginning(buffer); part != ir::kNoNode && wanted.insert(part).second;)
      part = former_.beginning(part);
  for (Item& item : former_.items())
    for (Root& root : item.roots) {
      const auto& storage = former_.world().storage[root.value];
      if (!root.copy && storage && storage->buffer == root.value) root.dests.insert(root.dests.begin(), *storage);
      std::erase_if(root.dests, [&](const Storage& dest) { return !wanted.contains(dest.buffer); });
    }
}

/// The kernel alone reads the product, point by point or row by row, and nothing else it needs comes after the call.
bool Order::is_epilogue(uint32_t call, uint32_t kernel, ir::NodeId product) const {
  const Item& item = former_.items()[kernel];
  const ir::Layout& layout = graph_.layout(product);
  if (item.is_extern() || order_.home(kernel) != kernel) return false;
  if (!identical(item.frame.kept * item.frame.reduced, layout.numel())) return false;
  const Root whole{product, true, false, {}};
  if (!unravel_root(former_.world(), item.frame, whole).map) return false;
  const Linear expected = root_address(former_.world(), item.frame, whole, layout.strides);
  int loads = 0;
  for (const Access& access : item.draft.accesses) {
    if (access.buffer != product) continue;
    if (++loads > 1 || !access.is_at(expected)) return false;
  }
  return std::ranges::none_of(
      order_.needs(kernel), [&](uint32_t other) { return order_.home(other) != call && order_.reaches(call, other); });
}

void Order::merge(uint32_t call, uint32_t kernel, ir::NodeId product) {
  Item& item = former_.items()[kernel];
  order_.merge(kernel, call);
  epilogues_[call] = kernel;
  // A result of the product's own type and layout takes its place in memory.
  for (const Root& root : item.roots)
    for (const Storage& dest : root.dests) {
      const ir::NodeId node = dest.buffer.node;
      const bool own = dest.buffer.is_own() && graph_[node].op != ir::Op::Input && graph_[node].op != ir::Op::Update &&
                       graph_[node].dtype == graph_[product].dtype &&
                       identical(former_.buffer_strides(dest.buffer), graph_.layout(product).strides) &&
                       identical(graph_.sizes(node), graph_.sizes(product));
      const auto which = static_cast<size_t>(&root - item.roots.data());
      if (!own || is_loaded_after(item.draft, which, [&](BufferId loaded) { return loaded == product; })) continue;
      const Linear address = root_address(former_.world(), item.frame, root, dest.strides);
      for (Access& access : item.draft.accesses)
        if (access.buffer == product && access.is_at(address)) {
          access.buffer = dest.buffer;
          places_[product] = dest.buffer;
        }
    }
}

BufferId Order::place_of(BufferId product) const {
  const auto found = places_.find(product);
  return found == places_.end() ? product : found->second;
}

/// Latest products first: of several that one kernel reads, that one is there last anyway.
void Order::fuse_epilogues() {
  const std::unordered_set<ir::NodeId> outputs(graph_.outputs.begin(), graph_.outputs.end());
  for (ir::NodeId product = static_cast<ir::NodeId>(graph_.nodes.size()); product-- > 0;) {
    if (graph_[product].op != ir::Op::Contract || outputs.contains(product)) continue;
    if (former_.producers(product).empty()) continue;  // nobody wants it
    const uint32_t call = former_.producers(product)[0];
    const std::vector<uint32_t>& all = readers(product);
    if (all.size() == 1 && is_epilogue(call, all[0], product)) merge(call, all[0], product);
  }
}

}  // namespace fastjit::plan
