// Kernels grow from the values that need memory: each is emitted alone, then joined to an earlier kernel where it fits.
#include "plan/groups.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

#include "ir/regions.h"
#include "pass/rewrite.h"
#include "plan/cats.h"
#include "plan/late.h"
#include "plan/updates.h"
#include "plan/work.h"

namespace fastjit::plan {

Former::Former(const ir::Graph& graph, const Costs& costs)
    : world_(graph, costs), live_(graph.nodes.size(), false), stored_(graph.nodes.size(), false) {
  finders_.fill(kNowhere);
}

const std::vector<uint32_t>& items_at(const ItemsByBuffer& items, BufferId buffer) {
  static const std::vector<uint32_t> none;
  const auto found = items.find(buffer);
  return found == items.end() ? none : found->second;
}

const std::pair<uint32_t, uint32_t>* Former::root_of(ir::NodeId id) const {
  const auto found = roots_.find(id);
  return found == roots_.end() ? nullptr : &found->second;
}

/// A buffer has eager's strides where they are dense, or where somebody outside sees them and no two indices share
/// memory (kernels write each element once).
std::vector<Dim> Former::buffer_strides(BufferId buffer) const {
  if (const ir::NodeId all = whole(buffer); all != ir::kNoNode) return buffer_strides(all);
  const ir::Layout& layout = graph().layout(buffer.node);
  const bool eager = buffer.part >= BufferId::ForCall ||
                     (buffer.is_own() && (stored_[buffer.node] || is_dense(layout.sizes, layout.strides)));
  return eager && !overlaps(layout.sizes, layout.strides) ? layout.strides : ir::row_major(layout.sizes);
}

void Former::mark_live() {
  live_ = ir::live_nodes(graph());
  last_use_.assign(graph().nodes.size(), 0);
  readers_.resize(graph().nodes.size());
  passed_.assign(graph().nodes.size(), 0);
  last_users_.assign(graph().nodes.size(), -1);
  overwritten_.assign(graph().nodes.size(), false);
  for (ir::NodeId id = 0; id < graph().nodes.size(); ++id)
    for (const ir::NodeId in : graph().operands(id))
      if (in != ir::kNoNode) {
        last_use_[in] = id;
        readers_[in].push_back(id);
      }
  for (const ir::NodeId id : graph().outputs) last_use_[id] = ir::kNoNode;
  for (const ir::Store& store : graph().stores) last_use_[store.value] = ir::kNoNode;
}

/// What is looked at through views.
static ir::NodeId below_views(const ir::Graph& graph, ir::NodeId id) {
  while (ir::is_view(graph[id].op)) id = graph[id].in[0];
  return id;
}

/// Whether the operand of the loop is memory that its rounds store over.
bool Former::is_placed(ir::NodeId loop, size_t operand) const {
  if (graph()[loop].op != ir::Op::Loop) return false;
  const ir::LoopAttr& attr = graph().loops[graph()[loop].attr];
  return operand >= attr.carried && operand < attr.carried + attr.placed;
}

/// Torch reads real tensors, and so do loops: the operand of a call itself is stored, or what it is a view of.
void Former::mark_operands(ir::NodeId call) {
  const ir::Node& node = graph()[call];
  const bool view = node.op == ir::Op::Extern && graph().externs[node.attr].kind == ir::ExternKind::View;
  const auto operands = graph().operands(call);
  for (size_t i = 0; i < operands.size(); ++i) {
    const ir::NodeId operand = operands[i];
    if (operand == ir::kNoNode) continue;
    if (is_placed(call, i)) {
      stored_[operand] = true;
      mark_before_write(call, operand);
      continue;
    }
    // The result of a view shares memory with what it is given: that is memory of its own if it is a value of its own.
    // A loop is given a copy of what its rounds store over.
    const bool is_copy = node.op == ir::Op::Loop && ir::is_own_copy(graph(), graph()[operand]);
    if (view || is_copy) {
      stored_[operand] = true;
      continue;
    }
    const ir::NodeId base = below_views(graph(), operand);
    world_.storage[base] = Storage{base, 0, graph().layout(base).strides};  // as if it were stored
    const auto strided = world_.strided(operand);
    world_.storage[base].reset();
    const bool alias =
        strided && same_strides(graph().sizes(operand), strided->strides, graph().layout(operand).strides);
    stored_[alias ? base : operand] = true;
  }
}

/// The loop of a product reads each factor many times: none is computed there.
void Former::mark_factors(ir::NodeId dot) {
  for (const ir::NodeId factor : graph().operands(dot)) {
    const ir::NodeId base = below_views(graph(), factor);
    if (ir::is_pointwise(graph()[base].op) || graph()[base].op == ir::Op::Gather) stored_[base] = true;
  }
}

/// What is gathered from is in memory.
void Former::mark_table(ir::NodeId gather) {
  const ir::NodeId base = below_views(graph(), graph()[gather].in[0]);
  if (!is_tensor(graph()[base].op)) stored_[base] = true;
}

/// A view of torch's, and its result, lie in the memory of what it is given.
bool Former::lies_in(ir::NodeId id, ir::NodeId operand) const {
  const ir::NodeId call = graph()[id].op == ir::Op::Result ? operand : id;
  return graph()[call].op == ir::Op::Extern && graph().externs[graph()[call].attr].kind == ir::ExternKind::View;
}

/// What was read from memory that `writer`, a call or an Update, overwrites, and is wanted later, is stored before.
/// What an earlier one of this kind met needs no second look: it is stored, or nobody wants it after that one.
void Former::mark_before_write(ir::NodeId writer, ir::NodeId written) {
  // What an Update or a loop writes over is memory of its own, a copy of what it is a view of.
  const bool is_own = graph()[writer].op == ir::Op::Update || graph()[writer].op == ir::Op::Loop;
  std::vector<ir::NodeId> stack{is_own ? written : below_views(graph(), written)};
  while (!stack.empty()) {
    const ir::NodeId read = stack.back();
    stack.pop_back();
    size_t& from = passed_[read];
    const std::vector<ir::NodeId>& all = readers_[read];
    for (; from < all.size() && all[from] < writer; ++from) {
      work();
      const ir::NodeId reader = all[from];
      if (graph()[reader].op == ir::Op::Update) continue;  // in memory of its own, or written before
      const ir::Op op = graph()[reader].op;
      const bool is_call = op == ir::Op::Extern || op == ir::Op::Loop || is_tensor(op);
      if (!is_call && last_use_[reader] > writer) stored_[reader] = true;
      if (!is_call || lies_in(reader, read)) stack.push_back(reader);
    }
  }
}

void Former::mark_stored() {
  for (const ir::NodeId id : graph().outputs) stored_[id] = true;
  for (const ir::Store& store : graph().stores) stored_[store.value] = true;
  for (ir::NodeId id = 0; id < graph().nodes.size(); ++id) {
    const ir::Node& node = graph()[id];
    if (node.op == ir::Op::Cat || is_loop(graph(), id)) stored_[id] = true;
    if (node.op == ir::Op::Update && live_[id]) {
      stored_[id] = stored_[node.in[0]] = true;
      mark_before_write(id, node.in[0]);
    }
    if (is_call(id)) mark_operands(id);
    if (node.op == ir::Op::Dot && live_[id]) mark_factors(id);
    if (node.op == ir::Op::Gather && live_[id]) mark_table(id);
    if (node.op == ir::Op::Extern)
      for (const uint32_t index : graph().externs[node.attr].written)
        mark_before_write(id, graph().externs[node.attr].operands[index]);
  }
}

void Former::chain_cats() {
  whole_ = longer_cats(graph(), live_);
  const std::vector<ir::NodeId> memory = memory_of_updates(graph());
  for (auto id = static_cast<ir::NodeId>(whole_.size()); id-- > 0;) {
    const ir::NodeId longer = whole_[id];
    if (longer == ir::kNoNode) continue;
    begins_[longer] = id;
    if (whole_[longer] != ir::kNoNode) whole_[id] = whole_[longer];
  }
  for (ir::NodeId id = 0; id < memory.size(); ++id) {
    if (memory[id] == ir::kNoNode) continue;
    whole_[id] = memory[id];
    begins_[id] = graph().stored_over(id);
    overwritten_[memory[id]] = true;
  }
  for (const ir::ExternAttr& call : graph().externs)
    for (const uint32_t index : call.written) {
      ir::NodeId written = call.operands[index];
      while (graph()[written].op == ir::Op::Result && lies_in(written, graph()[written].in[0]))
        written = graph().operands(graph()[written].in[0])[0];
      overwritten_[written] = true;
    }
}

/// The order in which nodes are given memory: numbers that Python computes come first, with what they need, unless a
/// call is among that or a guard before them, or a call finds a size that they are given. So what is computed before
/// them may join the kernels that read them.
std::vector<ir::NodeId> Former::sequence() const {
  const size_t n = graph().nodes.size();
  const auto is = [&](const ir::Node& node, ir::ExternKind kind) {
    return node.op == ir::Op::Extern && graph().externs[node.attr].kind == kind;
  };
  std::vector<bool> calls(n, false), early(n, false);
  bool guarded = false;
  for (ir::NodeId id = 0; id < n; ++id) {
    const ir::Node& node = graph()[id];
    const bool is_number = is(node, ir::ExternKind::Number);
    guarded = guarded || (!is_number && pass::may_end(graph(), node));
    const bool is_step = node.op == ir::Op::Extern || node.op == ir::Op::Contract || node.op == ir::Op::Loop ||
                         node.op == ir::Op::Update;
    const bool waits = is_number && (guarded || late_in_scalars(graph(), graph().externs[node.attr].sizes) != 0);
    calls[id] = is_number ? waits : is_step;
    for (const ir::NodeId in : graph().operands(id))
      if (in != ir::kNoNode && calls[in]) calls[id] = true;
  }
  for (auto id = static_cast<ir::NodeId>(n); id-- > 0;) {
    if (is(graph()[id], ir::ExternKind::Number) && !calls[id]) early[id] = true;
    for (const ir::NodeId in : graph().operands(id))
      if (in != ir::kNoNode && early[id]) early[in] = true;
  }
  std::vector<ir::NodeId> order;
  for (ir::NodeId id = 0; id < n; ++id) {
    if (graph().is_number(id)) early[id] = early[graph()[id].in[0]];
    if (early[id]) order.push_back(id);
  }
  for (ir::NodeId id = 0; id < n; ++id)
    if (!early[id]) order.push_back(id);
  return order;
}

void Former::run() {
  written_by_calls_ = pass::overwritten(graph());
  mark_live();
  mark_stored();
  Choice choice = choose(graph(), live_, stored_, world_.costs);
  why_ = std::move(choice.why);
  world_.structure = std::move(choice.structure);
  chain_cats();
  for (const ir::NodeId id : sequence()) {
    const ir::Op op = graph()[id].op;
    if (is_call(id)) call(id);
    if (is_tensor(op)) {
      world_.storage[id] = Storage{id, 0, graph().layout(id).strides};
      if (op == ir::Op::Result || (op == ir::Op::Final && live_[id])) {
        add_producer(id, producers_[graph()[id].in[0]][0]);
        if (op == ir::Op::Result) note_found(id);
        if (op == ir::Op::Final) note_user(id, producers_[id][0]);
      }
    } else if (live_[id] && (stored_[id] || is_stored(why_[id]))) {
      store(id);
    }
  }
}

/// The first call that has a late symbol among the sizes of its results finds it.
void Former::note_found(ir::NodeId result) {
  for (uint64_t late = plan::late_in(graph(), graph().sizes(result)); late != 0; late &= late - 1)
    if (uint32_t& finder = finders_[static_cast<size_t>(std::countr_zero(late))]; finder == kNowhere)
      finder = producers_[graph()[result].in[0]][0];
}

uint64_t Former::late_in(const Storage& dest) const {
  const ir::NodeId memory = whole(dest.buffer);
  return plan::late_in(graph(), {&dest.offset, 1}) | plan::late_in(graph(), dest.strides) |
         plan::late_in(graph(), graph().sizes(memory == ir::kNoNode ? dest.buffer.node : memory));
}

uint64_t Former::late_in(const Item& item) const {
  if (!graph().symbols || graph().symbols->late_count() == 0) return 0;
  uint64_t late = 0;
  const auto add = [&](std::span<const Dim> dims) { late |= plan::late_in(graph(), dims); };
  add(item.frame.sizes);
  for (const Access& access : item.draft.accesses) add(access.address);
  late |= late_in_scalars(graph(), item.draft.scalars);
  if (item.is_extern() && graph()[item.external].op == ir::Op::Extern)
    late |= late_in_scalars(graph(), graph().externs[graph()[item.external].attr].sizes);
  for (const Root& root : item.roots)
    for (const Storage& dest : root.dests) late |= late_in(dest);
  for (const auto& operand : item.operands)
    if (operand) add({&operand->offset, 1});
  return late;
}

/// Whether calls before this item find all of them: it may hang on them.
bool Former::found_before(uint64_t late, uint32_t item) const {
  for (; late != 0; late &= late - 1) {
    const uint32_t finder = finders_[static_cast<size_t>(std::countr_zero(late))];
    if (finder == kNowhere || finder >= item) return false;
  }
  return true;
}

/// A step of its own: what torch computes, or a loop.
bool Former::is_call(ir::NodeId id) const {
  const ir::Op op = graph()[id].op;
  return op == ir::Op::Extern || ((op == ir::Op::Contract || op == ir::Op::Loop) && live_[id]);
}

/// The call, or one that is given a view that it makes, overwrites a computed value that is still needed as it was:
/// equal values are one node, so another tensor with this value may be meant.
bool Former::wanted_after_write(ir::NodeId external, size_t index) const {
  if (graph()[external].op != ir::Op::Extern) return false;
  const ir::ExternAttr& attr = graph().externs[graph()[external].attr];
  ir::NodeId base = attr.operands[index];
  const bool is_viewed = attr.kind == ir::ExternKind::View && index == 0;
  const bool is_written = std::find(attr.written.begin(), attr.written.end(), index) != attr.written.end();
  if (!is_written && !(is_viewed && written_by_calls_[pass::memory_of(graph(), base)])) return false;
  bool later = last_use_[base] > external;
  while (ir::is_view(graph()[base].op)) {
    base = graph()[base].in[0];
    later = later || last_use_[base] > external;
  }
  return later && !is_tensor(graph()[base].op);
}

void Former::call(ir::NodeId external) {
  Item item;
  item.external = external;
  for (const ir::NodeId operand : graph().operands(external)) {
    if (operand == ir::kNoNode || is_placed(external, item.operands.size())) {
      item.operands.push_back(operand == ir::kNoNode ? std::nullopt : world_.storage[operand]);
      continue;
    }
    auto storage = world_.strided(operand);
    const auto& strides = graph().layout(operand).strides;
    if (!storage || !same_strides(graph().sizes(operand), storage->strides, strides) ||
        wanted_after_write(external, item.operands.size())) {
      BufferId made{operand, BufferId::ForCall};
      while (!producers(made).empty()) ++made.part;
      storage = Storage{made, 0, buffer_strides(made)};
      if (world_.numel(operand) > 0) write(operand, *storage);
    }
    item.operands.push_back(std::move(storage));
  }
  for (const auto& operand : item.operands)
    if (operand) note_user(operand->buffer, static_cast<uint32_t>(items_.size()));
  add_producer(external, static_cast<uint32_t>(items_.size()));
  items_.push_back(std::move(item));
}

void Former::store(ir::NodeId id) {
  if (world_.storage[id]) return;
  const Storage own{id, 0, buffer_strides(id)};
  if (world_.numel(id) == 0 || graph()[id].op == ir::Op::Undef) {
    world_.storage[id] = own;
  } else if (graph()[id].op == ir::Op::Cat) {
    Dim at = 0;
    store_cat(id, id, at);
    world_.storage[id] = own;
  } else if (graph()[id].op == ir::Op::Update) {
    store_update(id);
    world_.storage[id] = own;
  } else if (!peel(id)) {
    place(id, {}, false);
  }
}

/// Each part writes its slice; a Cat along the same dim that stands inside writes its parts directly.
void Former::store_cat(ir::NodeId id, ir::NodeId cat, Dim& at) {
  const ir::ListAttr& list = graph().lists[graph()[cat].attr];
  const auto dim = static_cast<size_t>(list.dim);
  size_t from = 0;
  if (const auto begin = begins_.find(cat); begin != begins_.end() && id == cat) {
    at = graph().sizes(begin->second)[dim];
    from = list.operands[0] == begin->second ? 1 : graph().lists[graph()[begin->second].attr].operands.size();
    for (const uint32_t item : std::vector(producers(begin->second))) add_producer(id, item);
  }
  for (const ir::NodeId part : std::span(list.operands).subspan(from)) {
    const ir::Node& node = graph()[part];
    if (node.op == ir::Op::Cat && graph().lists[node.attr].dim == list.dim && !world_.storage[part]) {
      store_cat(id, part, at);
      continue;
    }
    Storage slice{id, 0, buffer_strides(id)};
    slice.offset = at * slice.strides[dim];
    at += graph().sizes(part)[dim];
    if (world_.numel(part) > 0) write(part, std::move(slice));
  }
}

/// Whether dims lie one within the other as they follow each other.
static bool is_in_order(std::span<const Dim> sizes, std::span<const Dim> strides) {
  int64_t outer = INT64_MAX;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 1) continue;
    if (strides[d].hint() > outer) return false;
    outer = strides[d].hint();
  }
  return true;
}

/// The value goes where it lies in the base's memory: with the kernel that computes it, where that may write there and
/// does so in its own order, else with one that copies it.
void Former::store_update(ir::NodeId id) {
  const ir::Node& node = graph()[id];
  const auto [base, value] = std::pair(node.in[0], node.in[1]);
  const ir::ViewStrides region =
      ir::view_strides(graph().maps[node.attr], graph()[value].rank, buffer_strides(BufferId(id)));
  const Storage whole{id, region.offset, region.strides};
  auto [computed, dest] = peeled(value, whole);
  const auto* made = root_of(computed);
  // How rows lie decides the loops of a kernel with reduced dims; a copy costs less than other loops.
  const bool is_turned = made && computed != value &&
                         (items_[made->first].frame.has_reduced()
                              ? !same_strides(graph().sizes(computed), dest.strides, buffer_strides(BufferId(computed)))
                              : !is_in_order(graph().sizes(computed), dest.strides));
  if (!made || is_turned || is_fill(value) || !found_before(late_in(dest), made->first) ||
      !may_write(made->first, items_[made->first].roots[made->second], dest, base))
    return write_apart(value, whole);
  const auto [writer, root] = *made;
  add_producer(id, writer);
  items_[writer].roots[root].dests.push_back(std::move(dest));
  note_user(id, writer);
}

/// One number everywhere.
bool Former::is_fill(ir::NodeId value) const { return graph()[below_views(graph(), value)].op == ir::Op::Const; }

/// Each region, and each memory that regions lie in, is filled when its turn comes, by a kernel of its own.
bool Former::fills_region(const Root& root) const {
  if (!is_fill(root.value) || root.dests.empty()) return false;
  const ir::NodeId to = root.dests[0].buffer.node;
  return graph()[to].op == ir::Op::Update || overwritten_[to];
}

bool Former::lies_in_memory(BufferId buffer, ir::NodeId memory) const {
  return buffer.is_own() && (buffer.node == memory || whole(buffer) == memory);
}

bool Former::is_region(BufferId buffer) const { return buffer.is_own() && graph()[buffer.node].op == ir::Op::Update; }

/// Whether what one of the items reads or writes may be what the other one writes in a region of the same memory. Each
/// by itself is right.
bool Former::share_regions(const Item& one, const Item& other) const {
  const bool is_one_space = ir::identical(one.frame.sizes, other.frame.sizes);
  const auto meet = [&](const Item& writer, const Item& user) {
    for (const Root& root : writer.roots)
      for (const Storage& dest : root.dests) {
        if (!is_region(dest.buffer)) continue;
        const ir::NodeId memory = whole(dest.buffer);
        const Linear place = placed(writer, root, dest);
        const auto meets = [&](BufferId buffer, const Linear& address) {
          return lies_in_memory(buffer, memory) && !(is_one_space && are_apart(address, place, writer.frame));
        };
        for (const Access& access : user.draft.accesses)
          if (access.step ? lies_in_memory(access.buffer, memory) : meets(access.buffer, access.address)) return true;
        for (const Root& made : user.roots)
          for (const Storage& written : made.dests)
            if (meets(written.buffer, placed(user, made, written))) return true;
      }
    return false;
  };
  return meet(one, other) || meet(other, one);
}

/// Whether the draft loads from memory after it has stored a region there.
bool Former::loads_after_region(const Draft& draft, const std::vector<Root>& roots) const {
  for (size_t which = 0; which < roots.size(); ++which)
    for (const Storage& dest : roots[which].dests) {
      const ir::NodeId memory = is_region(dest.buffer) ? whole(dest.buffer) : ir::kNoNode;
      const auto lies_there = [&](BufferId loaded) { return lies_in_memory(loaded, memory); };
      if (memory != ir::kNoNode && is_loaded_after(draft, which, lies_there)) return true;
    }
  return false;
}

Linear Former::placed(const Item& item, const Root& root, const Storage& dest) const {
  Linear place = root_address(world_, item.frame, root, dest.strides);
  place.back() += dest.offset;
  return place;
}

/// A kernel of its own writes `value` to `dest`, a region of an Update; where it would read elsewhere in that memory,
/// from a copy.
void Former::write_apart(ir::NodeId value, Storage dest) {
  const ir::NodeId memory = whole(dest.buffer);
  const bool is_there = world_.is_strided(value, {}) && !is_fill(value);
  Item item = single(value, dest, is_there);
  const auto reads_it = [&](const Access& access) { return lies_in_memory(access.buffer, memory); };
  if (std::ranges::none_of(item.draft.accesses, reads_it)) return static_cast<void>(append(std::move(item)));
  BufferId made{value, BufferId::ForCall};
  while (!producers(made).empty()) ++made.part;
  const Storage apart{made, 0, buffer_strides(made)};
  const std::optional<Storage> before = world_.storage[value];
  append(single(value, apart, is_there));
  world_.storage[value] = apart;
  const uint32_t writer = copy(value, std::move(dest));
  if (!is_there) return;
  world_.storage[value] = before;
  items_[writer].is_final = true;
}

/// Whether the item, which computes `root`, may also write it to `dest` over `base`: everything that is read there or
/// put there comes before, or is read by the item itself at the element that it writes, no later, or is put there by it
/// in another region.
bool Former::may_write(uint32_t item, const Root& root, const Storage& dest, ir::NodeId base) const {
  const ir::NodeId memory = whole(dest.buffer);
  if (last_users_[memory] > item) return false;
  if (std::ranges::any_of(producers(base), [&](uint32_t producer) { return producer > item; })) return false;
  const Item& host = items_[item];
  const auto lies_there = [&](BufferId buffer) { return lies_in_memory(buffer, memory); };
  const Linear place = placed(host, root, dest);
  for (const Access& access : host.draft.accesses)
    if (lies_there(access.buffer) && (access.step || !are_apart(access.address, place, host.frame)) &&
        (!host.draft.scratch.empty() || !access.is_at(place)))
      return false;
  for (const Root& other : host.roots)
    for (const Storage& written : other.dests)
      if (lies_there(written.buffer) && !are_apart(placed(host, other, written), place, host.frame)) return false;
  return !is_loaded_after(host.draft, static_cast<size_t>(&root - host.roots.data()), lies_there);
}

std::pair<ir::NodeId, Storage> Former::peeled(ir::NodeId value, Storage dest) const {
  // What was stored of memory, since that is written over, is not read there any more.
  const bool is_read = !roots_.contains(below_views(graph(), value));
  const auto is_kept = [&](ir::NodeId id) { return world_.storage[id] && world_.storage[id]->buffer == id; };
  for (;; value = graph()[value].in[0]) {
    const ir::Node& node = graph()[value];
    if (roots_.contains(value) || !ir::is_view(node.op) || (is_read && is_kept(value))) break;
    if (node.op == ir::Op::Reshape) {
      auto strides = reshape_strides(graph().sizes(value), dest.strides, graph().sizes(node.in[0]));
      if (!strides) break;
      dest.strides = std::move(*strides);
      continue;
    }
    const auto places = permutation(graph().maps[node.attr], graph().sizes(node.in[0]), node.rank);
    // A slice from the start has the same map: the sizes tell.
    if (!places || !identical(world_.numel(value), world_.numel(node.in[0]))) break;
    std::vector<Dim> strides;
    for (const uint8_t place : *places) strides.push_back(place == kNoPlace ? 0 : dest.strides[place]);
    const bool has_all_dims = places->size() == node.rank && std::ranges::count(*places, kNoPlace) == 0;
    if (!has_all_dims && !is_in_order(graph().sizes(node.in[0]), strides)) break;
    dest.strides = std::move(strides);
  }
  return {value, std::move(dest)};
}

/// A value that only permutes or reshapes another is that one, written with other strides.
bool Former::peel(ir::NodeId id) {
  auto [value, dest] = peeled(id, {id, 0, buffer_strides(id)});
  if (value == id) return false;
  write(value, std::move(dest));
  world_.storage[id] = Storage{id, 0, buffer_strides(id)};
  return true;
}

void Former::pack(ir::NodeId reshape) {
  const BufferId buffer{reshape, BufferId::Packed};
  ir::NodeId in = graph()[reshape].in[0];
  while (graph()[in].op == ir::Op::Reshape && !world_.storage[in]) in = graph()[in].in[0];
  write(in, {buffer, 0, ir::row_major(graph().sizes(in))});
  world_.packed[reshape] = buffer;
}

void Former::write(ir::NodeId value, Storage dest) {
  if (const auto found = roots_.find(value); found != roots_.end()) {
    const auto [item, root] = found->second;
    if (!found_before(late_in(dest), item))
      return static_cast<void>(append(single(value, std::move(dest), world_.is_strided(value, {}))));
    add_producer(dest.buffer, item);
    items_[item].roots[root].dests.push_back(std::move(dest));
    return;
  }
  const bool in_memory = world_.is_strided(value, {});
  std::vector<Storage> dests;
  dests.push_back(std::move(dest));
  place(value, std::move(dests), in_memory);
}

/// Emits the item's only root over its frame; whatever must be in memory first is stored first.
void Former::form(Item& item) {
  const Space frame = item.frame;
  const ir::NodeId root = item.roots[0].value;
  for (;;) {
    item.frame = frame;
    Drafted made = draft(world_, item.frame, item.roots, item.keep);
    if (auto* draft = std::get_if<Draft>(&made)) {
      item.draft = std::move(*draft);
      return;
    }
    const auto* need = std::get_if<MustStore>(&made);
    const ir::NodeId node = need ? need->node : root;
    const bool packable = need && graph()[node].op == ir::Op::Reshape && !world_.packed.contains(node);
    if (packable && node != root) {
      pack(node);
    } else if (node != root && !world_.storage[node]) {
      stored_[node] = true;
      store(node);
    } else if (packable) {
      pack(node);
    } else {
      throw std::runtime_error("planner: no kernel for node %" + std::to_string(node));
    }
  }
}

uint32_t Former::copy(ir::NodeId value, Storage dest) { return append(single(value, std::move(dest), true)); }

/// A kernel that computes or copies `value` into `dest`, and does nothing else.
Item Former::single(ir::NodeId value, Storage dest, bool copy) {
  Item item;
  item.frame = make_frame(graph().sizes(value), {});
  item.roots.push_back({value, false, copy, {std::move(dest)}});
  form(item);
  return item;
}

uint32_t Former::append(Item item) {
  items_.push_back(std::move(item));
  finish(static_cast<uint32_t>(items_.size() - 1), 0);
  return static_cast<uint32_t>(items_.size() - 1);
}

std::optional<Item> Former::without_keep(uint32_t index) const {
  Item item = items_[index];
  item.keep = false;
  Drafted made = draft(world_, item.frame, item.roots, false);
  auto* draft = std::get_if<Draft>(&made);
  if (!draft || !written_before(*draft, index, false)) return std::nullopt;
  item.draft = std::move(*draft);
  return item;
}

void Former::place(ir::NodeId value, std::vector<Storage> dests, bool copy) {
  Item single;
  const ir::Node& node = graph()[value];
  const bool reduces = !copy && is_loop(graph(), value);
  single.frame = reduces ? make_frame(graph().sizes(node.in[0]), graph().reduces[node.attr].dims)
                         : make_frame(graph().sizes(value), {});
  single.roots.push_back({value, false, copy, std::move(dests)});
  form(single);
  for (const uint32_t candidate : candidates(single))
    if (join(candidate, single)) return finish(candidate, static_cast<uint32_t>(items_[candidate].roots.size() - 1));
  append(std::move(single));
}

void Former::add_producer(BufferId buffer, uint32_t item) {
  producers_[buffer].push_back(item);
  uint32_t& last = last_producer_.try_emplace(buffer, item).first->second;
  last = std::max(last, item);
}

/// The new root's memory is known: its first destination, or a buffer of its own that is made if anyone loads it.
void Former::finish(uint32_t item, uint32_t root) {
  const Root& made = items_[item].roots[root];
  note_readers(item);
  for (const Storage& dest : made.dests)  // what inputs hold at the end is read by nobody
    if (!dest.buffer.is_own() || graph()[dest.buffer.node].op != ir::Op::Input) add_producer(dest.buffer, item);
  if (made.copy || fills_region(made)) return;
  roots_[made.value] = {item, root};
  // A slice of a Cat is not read back: its buffer is complete only when all parts are. What an Update lies in
  // is written over.
  const ir::NodeId to = made.dests.empty() ? made.value : made.dests[0].buffer.node;
  const ir::Op op = graph()[to].op;
  const bool own = made.dests.empty() || op == ir::Op::Cat || op == ir::Op::Update || overwritten_[to];
  if (own) add_producer(made.value, item);
  world_.storage[made.value] = own ? Storage{made.value, 0, buffer_strides(made.value)} : made.dests[0];
}

/// Everything the draft loads is written before item `position`, or in it.
bool Former::written_before(const Draft& draft, uint32_t position, bool or_there) const {
  return std::all_of(draft.accesses.begin(), draft.accesses.end(), [&](const Access& access) {
    const auto last = last_producer_.find(access.buffer);
    return last == last_producer_.end() || last->second < position + (or_there ? 1 : 0);
  });
}

/// Kernels that compute what the new one loads, latest first, then the last ones that load much of the same.
std::vector<uint32_t> Former::candidates(const Item& single) const {
  std::set<uint32_t, std::greater<>> makers, sharers;
  const Dim points = single.frame.kept * single.frame.reduced;
  for (const Access& access : single.draft.accesses) {
    if (const auto last = last_producer_.find(access.buffer); last != last_producer_.end())
      if (!items_[last->second].is_extern()) makers.insert(last->second);
    if (!world_.costs.is_worth_sharing(world_.numel(access.buffer.node).hint(), points.hint())) continue;
    for (const uint32_t reader : items_at(recent_readers_, access.buffer))
      if (identical(items_[reader].frame.kept * items_[reader].frame.reduced, points)) sharers.insert(reader);
  }
  std::vector<uint32_t> result(makers.begin(), makers.end());
  for (const uint32_t item : sharers)
    if (!makers.contains(item)) result.push_back(item);
  const uint64_t late = late_in(single);
  std::erase_if(result,
                [&](uint32_t item) { return !written_before(single.draft, item, true) || !found_before(late, item); });
  return result;
}

void Former::note_user(BufferId buffer, uint32_t item) {
  if (!buffer.is_own()) return;
  int64_t& last = last_users_[graph().stored_over(buffer.node) != ir::kNoNode ? whole(buffer) : buffer.node];
  last = std::max<int64_t>(last, item);
}

void Former::note_readers(uint32_t item) {
  for (const Root& root : items_[item].roots)
    for (const Storage& dest : root.dests) note_user(dest.buffer, item);
  for (const Access& access : items_[item].draft.accesses) {
    note_user(access.buffer, item);
    std::vector<uint32_t>& readers = recent_readers_[access.buffer];
    if (std::find(readers.begin(), readers.end(), item) != readers.end()) continue;
    if (readers.size() == Bounds::look_back) readers.erase(readers.begin());
    readers.push_back(item);
  }
}

bool Former::join(uint32_t candidate, const Item& single) {
  Item& item = items_[candidate];
  if (item.is_final) return false;
  if (item.roots.size() >= Bounds::roots || item.draft.accesses.size() + single.draft.accesses.size() > Bounds::streams)
    return false;
  const bool reframe = single.frame.has_reduced() && !item.frame.has_reduced();
  if (single.frame.has_reduced() && !reframe &&
      !(identical(single.frame.kept, item.frame.kept) && identical(single.frame.reduced, item.frame.reduced)))
    return false;
  Space frame = reframe ? single.frame : item.frame;
  std::vector<Root> roots = item.roots;
  roots.push_back(single.roots[0]);
  for (size_t i = 0; i < roots.size(); ++i) {
    if (i < item.roots.size() ? !reframe : single.frame.has_reduced()) continue;
    const Dim points = world_.numel(roots[i].value);
    const bool is_kept = identical(points, frame.kept);
    if (!is_kept && !identical(points, frame.kept * frame.reduced)) return false;
    roots[i].full = frame.has_reduced() && !is_kept;
  }
  Drafted made = draft(world_, frame, roots, item.keep);
  auto* joined = std::get_if<Draft>(&made);
  if (!joined || share_regions(item, single) || loads_after_region(*joined, roots)) return false;
  const auto is_there = [&](const Access& access) {  // the rest of what the item writes a region of is
    const auto last = last_producer_.find(access.buffer);
    return last == last_producer_.end() || last->second < candidate ||
           (last->second == candidate && is_region(access.buffer));
  };
  if (!std::ranges::all_of(joined->accesses, is_there)) return false;
  item.frame = std::move(frame);
  item.roots = std::move(roots);
  item.draft = std::move(*joined);
  return true;
}

}  // namespace fastjit::plan
