// Writes to parts of a tensor. A storage whose parts are written has one value, its base's: a write through a view
// updates it, and every read of any of its tensors is derived from the newest one (the functionalisation of FuncTs,
// DAC 2024, on bases and index maps).
#include <algorithm>

#include "capture/build/build.h"
#include "ir/regions.h"
#include "ir/strides.h"
#include "support/work.h"

namespace fastjit::capture {
namespace {

constexpr int kMostSteps = 16;  // that a read looks back for the write of the same region

}  // namespace

bool GraphBuilder::is_parted(const Use& use) const {
  return use.tensor != kNone && !use.number && use.storage != kNone && analysis_.parted[use.storage];
}

/// The tensors that the step made begin the parted storages that they lie in.
void GraphBuilder::begin_parts(const Action& step) {
  for (const uint32_t tensor : step.results) {
    const uint32_t storage = analysis_.storage[tensor];
    if (!analysis_.parted[storage]) continue;
    if (!parted_.contains(storage))
      begin_parted(analysis_.first[tensor]);
    else if (states_[tensor].version == ir::kNoNode)
      throw NotParted{storage};  // it is a view in a way not known here
  }
}

/// The tensor that an operator made, or that was there before: the base of its storage.
void GraphBuilder::begin_parted(const Use& use) {
  State& state = states_[use.tensor];
  if (state.node == ir::kNoNode || state.mask != ir::kNoNode || may_overlap_itself(use.meta))
    throw NotParted{use.storage};
  state.node = graph_.with_strides(state.node, state.meta->layout().strides);
  state.version = state.node;
  parted_[use.storage] = state.node;
}

// Whether the first that somebody does with the memory is to fill it with random numbers, as a new value.
bool GraphBuilder::is_drawn_over(const Action& step) const {
  const uint32_t storage = flat_results(trace_.events[step.event])[0].storage;
  const auto touches = [&](const Action& next) {
    const auto is_in = [&](uint32_t tensor) { return analysis_.storage[tensor] == storage; };
    return std::ranges::any_of(next.reads, is_in) || std::ranges::any_of(next.writes, is_in);
  };
  const auto behind = analysis_.steps.begin() + (&step - analysis_.steps.data()) + 1;
  const auto next = std::find_if(behind, analysis_.steps.end(), touches);
  return next != analysis_.steps.end() && next->rebinds && !pinned(*next) && trace_.events[next->event].name == kDraws;
}

// Memory that is only allocated, and written in parts or drawn over. False: it is another operator.
bool GraphBuilder::allocate(const Action& step) {
  const Event& event = trace_.events[step.event];
  const std::span<const Use> results = flat_results(event);
  if (!event.facts.is(OpFlag::Allocates) || results.size() != 1 || !step.writes.empty() ||
      !(is_parted(results[0]) || is_drawn_over(step)))
    return false;
  const auto dtype = to_ir(results[0].meta->dtype);
  if (!dtype || std::ranges::find(step.results, results[0].tensor) == step.results.end()) return false;
  const ir::NodeId node = graph_.undef(*dtype, foretold(results[0], event)->layout());
  if (listed_sizes(event))
    for (uint32_t i = 0; i < event.args.size(); ++i) take_place(step.event, i);
  undefined_.emplace(node, results[0].storage);
  set_result(results[0], node, event, true);
  return true;
}

/// What is read of memory before it is written is what torch's own memory holds.
void GraphBuilder::refuse_undefined() const {
  if (undefined_.empty()) return;
  std::vector<bool> read(graph_.nodes.size(), false);  // nobody looks at views that were made to be written to
  for (const ir::NodeId id : graph_.outputs) read[id] = true;
  for (const ir::Store& store : graph_.stores) read[store.value] = true;
  for (auto id = static_cast<ir::NodeId>(graph_.nodes.size()); id-- > 0;) {
    const bool is_call = graph_[id].op == ir::Op::Extern;
    if (!read[id] && !is_call) continue;
    const auto found = undefined_.find(id);
    if (found != undefined_.end()) throw NotParted{found->second};
    const std::span<const ir::NodeId> operands = graph_.operands(id);
    const bool is_over = graph_[id].op == ir::Op::Update && undefined_.contains(operands[0]);
    for (const ir::NodeId in : operands.subspan(is_over))
      if (in != ir::kNoNode) read[in] = true;
  }
}

std::optional<ir::IndexMap> GraphBuilder::map_of(const std::vector<ir::Node>& path) const {
  std::optional<ir::IndexMap> map;
  for (const ir::Node& view : path) {
    if (view.op != ir::Op::View) return std::nullopt;
    const ir::IndexMap& inner = graph_.maps[view.attr];
    map = map ? ir::composed(*map, inner) : inner;
  }
  return map;
}

/// Where a view on a parted storage begins, in elements from its base on; 0 where it is none, or no map says it.
ir::Dim GraphBuilder::offset_in_base(uint32_t tensor) const {
  const State& state = states_[tensor];
  const auto base = parted_.find(analysis_.storage[tensor]);
  const auto map = base == parted_.end() ? std::nullopt : map_of(state.path);
  return map ? ir::view_strides(*map, state.path.back().rank, graph_.layout(base->second).strides).offset : ir::Dim(0);
}

/// What the base's newest value holds there: the value that was written to this very region, where nothing else was
/// written to it since, or else a view.
ir::NodeId GraphBuilder::value_at(uint32_t storage, const std::vector<ir::Node>& path) {
  const ir::NodeId base = parted_.at(storage);
  const auto map = map_of(path);
  const std::vector<ir::Dim>* sizes = path.empty() ? nullptr : &graph_.layouts[path.back().layout].sizes;
  const LineRead here{line_, storage};
  const int most = far_reads_.contains(here) ? 1 : kMostSteps;
  ir::NodeId at = base;
  int step = 0;
  for (; map && step < most && graph_[at].op == ir::Op::Update; ++step) {
    support::count_work();
    const ir::IndexMap& written = graph_.maps[graph_[at].attr];
    const ir::NodeId value = graph_[at].in[1];
    if (written == *map && ir::identical(graph_.sizes(value), *sizes)) {
      if (step + 1 < kMostSteps) return value;
      if (!beyond_.contains(here)) return edge_.insert(here), value;
      far_reads_.insert(here);  // later rounds read what was written later: the last of them would be others
      break;
    }
    if (!are_apart(written, graph_.sizes(value), *map, *sizes)) break;
    at = graph_[at].in[0];
  }
  ir::NodeId node = base;
  for (ir::Node view : path) {
    view.in[0] = node;
    node = graph_.append(view);
  }
  if (step == kMostSteps && path.size() == 1 && written_parts_.contains({storage, graph_[node].attr})) {
    if (edge_.contains(here)) throw ReadsFar{here};
    beyond_.insert(here);
  }
  return node;
}

/// A tensor of a parted storage has the value that its base has now.
void GraphBuilder::refresh(const Use& use) {
  if (!is_parted(use)) return;
  State& state = states_[use.tensor];
  if (trace_.root(use.tensor) && !parted_.contains(use.storage)) {
    input_node(use.tensor);
    begin_parted(use);
    parted_roots_[use.storage] = use.tensor;
  }
  const auto base = parted_.find(use.storage);
  if (!state.known || base == parted_.end()) throw NotParted{use.storage};
  if (state.version == base->second) return;
  state.node = value_at(use.storage, state.path);
  state.version = base->second;
  state.real = ir::kNoNode;
}

/// `result` is a view of `argument`, as a row has lowered it.
void GraphBuilder::follow_view(const Use& argument, const Use& result) {
  const State& from = states_[argument.tensor];
  State& state = states_[result.tensor];
  std::vector<ir::Node> steps;
  ir::NodeId at = state.node;
  for (; at != from.node; at = graph_[at].in[0]) {
    const bool is_view = graph_[at].op == ir::Op::View || graph_[at].op == ir::Op::Reshape;
    if (!is_view) throw NotParted{result.storage};
    steps.push_back(graph_[at]);
  }
  state.path = from.path;
  state.path.insert(state.path.end(), steps.rbegin(), steps.rend());
  state.version = parted_.at(result.storage);
  if (!is_lent(argument.tensor)) state.node = value_at(result.storage, state.path);
}

/// Whether the value was the last to be written to `base`, to this very region: `x[i] += y` writes through a view, and
/// then once more what the view holds.
bool GraphBuilder::holds(ir::NodeId base, ir::NodeId value, const ir::IndexMap& map) const {
  const ir::Node& last = graph_[base];
  return last.op == ir::Op::Update && last.in[1] == value && graph_.maps[last.attr] == map;
}

void GraphBuilder::write_part(const Use& target, ir::NodeId value) {
  State& state = states_[target.tensor];
  ir::NodeId& base = parted_.at(target.storage);
  if (state.path.empty()) {
    base = graph_.with_strides(value, state.meta->layout().strides);
  } else if (graph_.layout(value).numel() != 0) {
    auto map = map_of(state.path);
    if (!map) throw NotParted{target.storage};
    if (!holds(base, value, *map)) base = graph_.update(base, value, std::move(*map));
    written_parts_.emplace(target.storage, graph_[base].attr);
  }
  state.node = value;
  state.version = base;
  state.real = ir::kNoNode;
  if (const auto root = parted_roots_.find(target.storage); root != parted_roots_.end())
    rebound_.push_back(root->second);
}

/// An operator that reads other elements of the memory that it writes finds there, or not, what it wrote itself: that
/// is torch's order.
void GraphBuilder::refuse_overlap(const Event& event, const Use& target) const {
  const auto written = map_of(states_[target.tensor].path);
  const ir::Layout of_written = meta_of(target)->layout();
  for (const CallValue& item : event.args)
    for (const Use& use : item.uses) {
      if (!is_parted(use) || use.storage != target.storage || use.tensor == target.tensor) continue;
      const auto read = map_of(states_[use.tensor].path);
      if (!read || !written || read->dims.empty() || written->dims.empty()) throw NotParted{target.storage};
      const ir::Layout of_read = meta_of(use)->layout();
      const bool is_same = *read == *written && ir::identical(of_read.sizes, of_written.sizes);
      if (!is_same && !are_apart(*read, of_read.sizes, *written, of_written.sizes)) throw NotParted{target.storage};
    }
}

/// What is looked at when the call ends has the value that its storage has then.
void GraphBuilder::settle_parts(const std::vector<Use>& outputs) {
  for (const auto& [storage, root] : parted_roots_) refresh(trace_.root(root)->before);
  for (const Use& use : outputs)
    for (Use at = use; is_parted(at); at.tensor = states_[at.tensor].base) {
      refresh(at);
      if (states_[at.tensor].view_step == kNone) break;
    }
}

}  // namespace fastjit::capture
