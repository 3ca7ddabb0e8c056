// Dependences between items, stores into inputs, epilogues of matrix products, and the steps that follow from them.
#include "plan/order.h"

#include <algorithm>
#include <stdexcept>

namespace fastjit::plan {

Order::Order(Former& former) : former_(former), graph_(former.graph()) {
  uint32_t last_call = kNoItem;
  for (uint32_t i = 0; i < former_.items().size(); ++i) {
    add_item();
    const Item& item = former_.items()[i];
    if (!item.is_extern()) continue;
    if (last_call != kNoItem) before_[i].insert(last_call);
    last_call = i;
    const ir::ExternAttr& attr = graph_.externs[graph_[item.external].attr];
    for (const uint32_t index : attr.written)
      for (uint32_t j = 0; j < i; ++j)
        if (item.operands[index] && reads(former_.items()[j], base(item.operands[index]->buffer))) before_[i].insert(j);
  }
  for (uint32_t i = 0; i < before_.size(); ++i)
    if (former_.items()[i].is_extern() && kind(former_.items()[i]) == ir::ExternKind::Guard) guard_first(i);
}

/// What the guard does not need waits for it.
void Order::guard_first(uint32_t guard) {
  std::vector<uint32_t> stack{guard};
  std::vector<bool> needed(before_.size(), false);
  while (!stack.empty()) {
    const uint32_t item = stack.back();
    stack.pop_back();
    if (needed[item]) continue;
    needed[item] = true;
    stack.insert(stack.end(), before_[item].begin(), before_[item].end());
  }
  for (uint32_t i = 0; i < before_.size(); ++i)
    if (!needed[i]) before_[i].insert(guard);
  last_guard_ = guard;
}

/// Takes up the next item of the former with its dependences through memory.
void Order::add_item() {
  const auto i = static_cast<uint32_t>(before_.size());
  const Item& item = former_.items()[i];
  before_.emplace_back();
  epilogues_.push_back(kNoItem);
  merged_.push_back(false);
  auto after = [&](BufferId buffer) {
    for (const uint32_t writer : former_.producers(buffer)) before_[i].insert(writer);
  };
  for (const Access& access : item.draft.accesses) after(access.buffer);
  for (const auto& operand : item.operands)
    if (operand) after(operand->buffer);
  for (const auto& [input, writer] : writers_)
    if (reads(item, input)) before_[writer].insert(i);
}

ir::ExternKind Order::kind(const Item& item) const { return graph_.externs[graph_[item.external].attr].kind; }

BufferId Order::base(BufferId buffer) const {
  while (buffer < graph_.nodes.size() && graph_[buffer].op == ir::Op::Result) {
    const Item& call = former_.items()[former_.producers(buffer)[0]];
    if (kind(call) != ir::ExternKind::View || call.operands.empty() || !call.operands[0]) break;
    buffer = call.operands[0]->buffer;
  }
  return buffer;
}

bool Order::reads(const Item& item, BufferId memory) const {
  return std::any_of(item.draft.accesses.begin(), item.draft.accesses.end(),
                     [&](const Access& access) { return base(access.buffer) == memory; }) ||
         std::any_of(item.operands.begin(), item.operands.end(),
                     [&](const auto& operand) { return operand && base(operand->buffer) == memory; });
}

bool Order::depends(uint32_t later, uint32_t earlier) const {
  std::vector<uint32_t> stack{later};
  std::vector<bool> seen(before_.size(), false);
  while (!stack.empty()) {
    const uint32_t item = stack.back();
    stack.pop_back();
    if (item == earlier) return true;
    if (seen[item]) continue;
    seen[item] = true;
    stack.insert(stack.end(), before_[item].begin(), before_[item].end());
  }
  return false;
}

/// Whether the kernel may write `dest` while older values there are still wanted: each of its own loads from there is
/// of the very element it writes, no later, and no other reader needs this kernel's results first.
bool Order::may_store(uint32_t index, const Storage& dest, const Root& root) const {
  if (last_guard_ != kNoItem && depends(last_guard_, index)) return false;
  const Item& item = former_.items()[index];
  Linear address = dot(dest.strides, root_map(former_.world(), item.frame, root));
  address.resize(static_cast<size_t>(item.frame.rank()) + 1, 0);
  const auto which = static_cast<size_t>(&root - item.roots.data());
  for (size_t list = 0; list < item.draft.lists.size(); ++list)
    for (const uint32_t at : item.draft.lists[list]) {
      if (item.draft.code[at].code != Code::Load) continue;
      const Access& access = item.draft.accesses[item.draft.code[at].imm];
      if (base(access.buffer) != dest.buffer) continue;
      if (access.buffer != dest.buffer || access.address != address || list > item.draft.homes[which]) return false;
    }
  for (uint32_t other = 0; other < before_.size(); ++other)
    if (other != index && reads(former_.items()[other], dest.buffer) && depends(other, index)) return false;
  return true;
}

void Order::settle_stores() {
  std::set<uint32_t> inputs;
  for (const ir::Store& store : graph_.stores) inputs.insert(store.input);
  for (const ir::Store& entry : graph_.stores) store(entry, inputs);
}

void Order::store(const ir::Store& entry, const std::set<uint32_t>& inputs) {
  BufferId input = 0;
  while (input < graph_.nodes.size() && !(graph_[input].op == ir::Op::Input && graph_[input].attr == entry.input))
    ++input;
  if (input == graph_.nodes.size() || entry.value == input || graph_.layout(input).numel() == 0) return;
  const Storage dest{input, 0, graph_.layout(input).strides};
  auto finish = [&](uint32_t writer) {
    writers_[input] = writer;
    if (last_guard_ != kNoItem) before_[writer].insert(last_guard_);
    for (uint32_t other = 0; other < before_.size(); ++other)
      if (other != writer && reads(former_.items()[other], input)) before_[writer].insert(other);
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
  if (graph_[former_.owner(source)].op == ir::Op::Input && source < graph_.nodes.size() &&
      inputs.contains(graph_[source].attr)) {
    const Storage snapshot{former_.extra(entry.value, Former::Snapshot), 0, ir::row_major(graph_.sizes(entry.value))};
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
  std::set<BufferId> wanted;
  for (const ir::NodeId id : graph_.outputs)
    if (const auto& storage = former_.world().storage[id]) wanted.insert(storage->buffer);
  for (const Item& item : former_.items()) {
    for (const Access& access : item.draft.accesses) wanted.insert(access.buffer);
    for (const auto& operand : item.operands)
      if (operand) wanted.insert(operand->buffer);
  }
  for (const ir::Store& store : graph_.stores)
    for (BufferId id = 0; id < graph_.nodes.size(); ++id)
      if (graph_[id].op == ir::Op::Input && graph_[id].attr == store.input) wanted.insert(id);
  for (Item& item : former_.items())
    for (Root& root : item.roots) {
      const auto& storage = former_.world().storage[root.value];
      if (!root.copy && storage && storage->buffer == root.value) root.dests.insert(root.dests.begin(), *storage);
      std::erase_if(root.dests, [&](const Storage& dest) { return !wanted.contains(dest.buffer); });
    }
}

/// The kernel alone reads the product, point by point, and nothing else it needs comes after the call.
bool Order::is_epilogue(uint32_t call, uint32_t kernel, BufferId product) const {
  const Item& item = former_.items()[kernel];
  const int64_t points = graph_.layout(product).numel();
  if (item.is_extern() || merged_[kernel] || item.frame.has_reduced() || item.frame.kept != points) return false;
  int loads = 0;
  for (const Access& access : item.draft.accesses) {
    if (access.buffer != product) continue;
    Linear expected = item.frame.full;
    expected.push_back(0);
    if (++loads > 1 || access.address != expected) return false;
  }
  return std::none_of(before_[kernel].begin(), before_[kernel].end(),
                      [&](uint32_t other) { return other != call && depends(other, call); });
}

void Order::merge(uint32_t call, uint32_t kernel, BufferId product) {
  Item& item = former_.items()[kernel];
  for (const uint32_t other : before_[kernel])
    if (other != call) before_[call].insert(other);
  for (auto& others : before_)
    if (others.erase(kernel)) others.insert(call);
  before_[call].erase(call);
  merged_[kernel] = true;
  epilogues_[call] = kernel;
  // A result of the product's own type and layout takes its place in memory.
  for (const Root& root : item.roots)
    for (const Storage& dest : root.dests) {
      const bool own = dest.buffer == former_.owner(dest.buffer) && graph_[dest.buffer].op != ir::Op::Input &&
                       graph_[dest.buffer].dtype == graph_[product].dtype &&
                       former_.buffer_strides(dest.buffer) == graph_.layout(product).strides &&
                       std::ranges::equal(graph_.sizes(dest.buffer), graph_.sizes(product));
      Linear address = dot(dest.strides, root_map(former_.world(), item.frame, root));
      address.resize(static_cast<size_t>(item.frame.rank()) + 1, 0);
      for (Access& access : item.draft.accesses)
        if (own && access.buffer == product && access.address == address) {
          access.buffer = dest.buffer;
          places_[product] = dest.buffer;
        }
    }
}

BufferId Order::place_of(BufferId product) const {
  const auto found = places_.find(product);
  return found == places_.end() ? product : found->second;
}

void Order::fuse_epilogues() {
  const std::set<ir::NodeId> outputs(graph_.outputs.begin(), graph_.outputs.end());
  for (BufferId product = 0; product < graph_.nodes.size(); ++product) {
    if (graph_[product].op != ir::Op::Result || outputs.contains(product)) continue;
    const uint32_t call = former_.producers(product)[0];
    if (kind(former_.items()[call]) != ir::ExternKind::Matmul) continue;
    std::vector<uint32_t> readers;
    for (uint32_t i = 0; i < before_.size(); ++i)
      if (i != call && reads(former_.items()[i], product)) readers.push_back(i);
    if (readers.size() == 1 && is_epilogue(call, readers[0], product)) merge(call, readers[0], product);
  }
}

std::vector<std::vector<uint32_t>> Order::steps() const {
  std::vector<std::vector<uint32_t>> result;
  std::vector<bool> done = merged_;
  auto ready = [&](uint32_t item) {
    return !done[item] && std::all_of(before_[item].begin(), before_[item].end(), [&](uint32_t b) { return done[b]; });
  };
  size_t left = static_cast<size_t>(std::count(done.begin(), done.end(), false));
  while (left > 0) {
    std::vector<uint32_t> batch;
    for (uint32_t i = 0; i < done.size(); ++i)
      if (!former_.items()[i].is_extern() && ready(i)) batch.push_back(i);
    for (uint32_t i = 0; batch.empty() && i < done.size(); ++i)
      if (ready(i)) batch.push_back(i);
    if (batch.empty()) throw std::runtime_error("planner: the items of the program depend on each other in a circle");
    for (const uint32_t item : batch) done[item] = true;
    left -= batch.size();
    result.push_back(std::move(batch));
  }
  return result;
}

}  // namespace fastjit::plan
