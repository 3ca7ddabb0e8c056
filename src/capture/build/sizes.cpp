// Programs for any size: symbols for sizes that differ from call to call, and what eager's sizes and strides are in
// them. Sizes of what kernels compute are those of the graph. Those of what torch computes are foretold here, and held
// against what each call gives. Whatever is not known for all sizes is fixed: the program is for one size there.
#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "capture/build/build.h"
#include "capture/build/result_sizes.h"
#include "capture/build/way_sizes.h"
#include "capture/record/data_sizes.h"
#include "ir/strides.h"

namespace fastjit::capture {

using ir::Dim;

ir::Layout TensorMeta::layout() const {
  if (symbolic) return *symbolic;
  return {{sizes.begin(), sizes.end()}, {strides.begin(), strides.end()}};
}

namespace {

bool is_symbolic(const ir::Layout& layout) {
  return std::ranges::any_of(layout.sizes, &Dim::is_symbolic) || std::ranges::any_of(layout.strides, &Dim::is_symbolic);
}

/// `open`: those that its late symbols are in stay so.
void fix(const ir::Layout& layout, const ir::Symbols* open = nullptr) {
  for (const auto* dims : {&layout.sizes, &layout.strides})
    for (const Dim dim : *dims)
      if (!open || open->late_in(dim) == 0) static_cast<void>(dim.fixed());
}

/// Dims by stride, the innermost last; of equal ones in their order.
std::vector<size_t> by_stride(const std::vector<int64_t>& strides) {
  std::vector<size_t> order(strides.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{}, [&](size_t d) { return strides[d]; });
  return order;
}

/// Strides of a tensor whose dims lie in the recorded order. `gap` gives that of a dim which begins elsewhere than at
/// the step where the ones inside it end; nothing where it gives nothing. `odd`: dims of one element whose strides
/// follow from nothing here; they are what they were.
template <class Gap>
std::optional<std::vector<Dim>> strides_in_order(const std::vector<Dim>& sizes, const TensorMeta& recorded,
                                                 std::vector<size_t>* odd, const Gap& gap) {
  const std::vector<size_t> order = by_stride(recorded.strides);
  std::vector<Dim> strides(sizes.size());
  Dim step = 1;
  for (size_t i = order.size(); i-- > 0;) {
    const size_t d = order[i];
    const bool fits = recorded.strides[d] == step.hint();
    if (fits || recorded.sizes[d] == 1) {
      strides[d] = fits ? step : Dim(recorded.strides[d]);
      if (!fits && odd) odd->push_back(d);
    } else {
      const std::optional<Dim> stride = gap(d, step);
      if (!stride) return std::nullopt;
      step = strides[d] = *stride;
    }
    step *= max(sizes[d], 1);
  }
  return strides;
}

/// Those of a tensor without gaps; nothing where it had some.
std::optional<std::vector<Dim>> dense_strides(const std::vector<Dim>& sizes, const TensorMeta& recorded,
                                              std::vector<size_t>* odd = nullptr) {
  return strides_in_order(sizes, recorded, odd, [](size_t, Dim) { return std::optional<Dim>(); });
}

/// Whether each element lies in a place of its own, dim behind dim.
bool lies_apart(const TensorMeta& meta) {
  int64_t step = 1;
  const std::vector<size_t> order = by_stride(meta.strides);
  for (size_t i = order.size(); i-- > 0;) {
    const size_t d = order[i];
    if (meta.sizes[d] == 1) continue;
    if (meta.strides[d] < step) return false;
    step = meta.strides[d] * meta.sizes[d];
  }
  return true;
}

/// Sizes of what is computed of these elementwise, all broadcast together.
std::vector<Dim> broadcast_sizes(const std::vector<int64_t>& recorded, const std::vector<ir::Layout>& tensors,
                                 std::vector<bool>* known = nullptr) {
  std::vector<Dim> sizes(recorded.begin(), recorded.end());
  const size_t rank = sizes.size();
  if (known) known->assign(rank, false);
  for (const ir::Layout& layout : tensors)
    for (size_t back = 1; back <= std::min(rank, layout.sizes.size()); ++back) {
      const Dim from = layout.sizes[layout.sizes.size() - back];
      Dim& size = sizes[rank - back];
      if (from.hint() != size.hint()) continue;
      if (known) (*known)[rank - back] = true;
      if (!size.is_symbolic()) size = from;
    }
  return sizes;
}

/// A guess: each size is that of an operand that was the same in the recorded call, at the same place from the end,
/// else at the same place, else anywhere.
std::vector<Dim> alike(const std::vector<int64_t>& recorded, const std::vector<ir::Layout>& tensors) {
  std::vector<bool> known;
  std::vector<Dim> sizes = broadcast_sizes(recorded, tensors, &known);
  const auto take = [&](size_t d, Dim from) {
    if (known[d] || from.hint() != sizes[d].hint()) return;
    known[d] = true;
    sizes[d] = from;
  };
  for (const ir::Layout& layout : tensors)
    for (size_t d = 0; d < std::min(sizes.size(), layout.sizes.size()); ++d) take(d, layout.sizes[d]);
  for (const ir::Layout& layout : tensors)
    for (const Dim from : layout.sizes)
      for (size_t d = 0; d < sizes.size(); ++d)
        if (from.is_symbolic()) take(d, from);
  return sizes;
}

/// An operator inside another one that C++ code gave numbers of its own, which may follow from sizes.
bool is_given_numbers(const Trace& trace, const Event& event) {
  if (event.parent == kNone) return false;
  const auto is_number = [](const CallValue& item) {
    return item.kind == CallValue::Kind::Constant &&
           (item.constant.isInt() || item.constant.isIntList() || item.constant.isDouble());
  };
  const auto is_handed_on = [&](const CallValue& item) {
    return std::ranges::any_of(trace.events[event.parent].args, [&](const CallValue& other) {
      return is_number(other) && other.constant == item.constant;
    });
  };
  return std::ranges::any_of(event.args, [&](const CallValue& item) { return is_number(item) && !is_handed_on(item); });
}

}  // namespace

SharedMeta with_layout(const TensorMeta& recorded, ir::Layout layout) {
  if (!is_symbolic(layout)) return recorded;
  TensorMeta made = recorded;
  made.symbolic = std::make_shared<const ir::Layout>(std::move(layout));
  return made;
}

// Views of all elements, whatever the sizes are.
static bool is_view_of_all(std::string_view op) {
  static const std::unordered_set<std::string_view> names{"aten::_reshape_alias",
                                                          "aten::_unsafe_view",
                                                          "aten::alias",
                                                          "aten::detach",
                                                          "aten::movedim.int",
                                                          "aten::permute",
                                                          "aten::reshape",
                                                          "aten::squeeze",
                                                          "aten::squeeze.dim",
                                                          "aten::swapaxes",
                                                          "aten::t",
                                                          "aten::transpose.int",
                                                          "aten::unflatten.int",
                                                          "aten::unsqueeze",
                                                          "aten::flatten.using_ints",
                                                          "aten::view",
                                                          "aten::view_as",
                                                          "aten::contiguous"};
  return names.contains(op);
}

// What writes to memory that shares it with parts of it: which these are may depend on sizes. Parts that nothing
// touches any more once a write comes do not count, nor do those whose writes are updates of a value: they name their
// regions. `only_found`: sizes of arguments are numbers, and those that data decides are not. kNone: nothing.
uint32_t GraphBuilder::writes_to_parts(bool only_found) const {
  std::unordered_set<uint32_t> found;  // storages
  for (const auto& [tensor, dims] : trace_.data_sized) found.insert(analysis_.storage[tensor]);
  std::vector<std::vector<int64_t>> writes(trace_.storages.size());  // steps
  std::vector<char> is_part(analysis_.storage.size(), 0);
  std::vector<uint32_t> bases(trace_.storages.size(), 0);
  for (int64_t i = 0; i < std::ssize(analysis_.steps); ++i)
    for (const uint32_t tensor : analysis_.steps[static_cast<size_t>(i)].writes)
      writes[analysis_.storage[tensor]].push_back(i);
  const auto event_of = [&](int64_t step) { return analysis_.steps[static_cast<size_t>(step)].event; };
  for (const Action& step : analysis_.steps)
    for (const uint32_t tensor : step.results) {
      const auto shows = [&](uint32_t other) { return analysis_.storage[other] == analysis_.storage[tensor]; };
      const auto is_part_of = [&](uint32_t other) { return shows(other) && is_part[other]; };
      const bool is_of_all = is_view_of_all(trace_.events[step.event].name);
      is_part[tensor] =
          std::ranges::any_of(step.reads, shows) && (!is_of_all || std::ranges::any_of(step.reads, is_part_of));
    }
  for (uint32_t tensor = 0; tensor < analysis_.storage.size(); ++tensor) {
    const uint32_t storage = analysis_.storage[tensor];
    if (storage == kNone || writes[storage].empty() || analysis_.parted[storage]) continue;
    if (only_found && !trace_.follows_found && !found.contains(storage)) continue;
    const int64_t maker = analysis_.created[tensor];
    const auto next = std::ranges::upper_bound(writes[storage], maker);
    if (next == writes[storage].end()) continue;
    if (is_part[tensor] && analysis_.last_use[tensor] >= *next) return event_of(writes[storage].back());
    const Action* step = maker < 0 ? nullptr : &analysis_.steps[static_cast<size_t>(maker)];
    const auto is_of_it = [&](uint32_t other) { return analysis_.storage[other] == storage; };
    const bool is_view = step && std::ranges::any_of(step->reads, is_of_it);
    if (!is_view && ++bases[storage] > 1) return event_of(writes[storage].back());
  }
  return kNone;
}

// Why nothing can be a symbol; `writer`: what writes_to_parts() says.
std::string GraphBuilder::why_none_free(uint32_t writer) const {
  return writer == kNone ? "" : " for " + where(trace_, trace_.events[writer]) + ", which writes to a part of a tensor";
}

// Why sizes of the argument cannot be symbols, in words; empty: they can.
std::string GraphBuilder::why_not_free(const Source& root, uint32_t writer) const {
  const TensorMeta& meta = root.before.meta;
  if (writer != kNone) return why_none_free(writer);
  if (std::ranges::find(meta.sizes, 0) != meta.sizes.end()) return ": " + root.name + " has no elements";
  return lies_apart(meta) ? "" : ": elements of " + root.name + " share memory";
}

// Strides of an argument with these sizes, whose dims lie in the recorded order. Where one begins further on than the
// ones inside it end, as those of x[:, :-1] do, any stride from there on is let in, if these may have other sizes.
std::vector<Dim> GraphBuilder::argument_strides(const Source& root, const std::vector<Dim>& sizes) {
  const TensorMeta& meta = root.before.meta;
  return *strides_in_order(sizes, meta, nullptr, [&](size_t d, Dim step) {
    return std::optional(step.is_symbolic() ? free_stride(root, static_cast<uint32_t>(d), step) : Dim(meta.strides[d]));
  });
}

Dim GraphBuilder::free_stride(const Source& root, uint32_t d, Dim least) {
  const SizeSymbol symbol{root.argument, d, true};
  const int64_t recorded = root.before.meta->strides[d];
  const std::vector<uint64_t>& fixed = inputs_.fixed_strides;
  const bool is_fixed = d >= 64 || (root.argument < fixed.size() && fixed[root.argument] >> d & 1);
  if (is_fixed || (way_->is_gone() && !way_->differed(symbol))) return recorded;
  const Dim stride = graph_.symbols->add(recorded, root.name + ".stride(" + std::to_string(d) + ")");
  capture.symbols.push_back(symbol);
  static_cast<void>(stride > least);  // else there is no gap
  return stride;
}

void GraphBuilder::free_sizes() {
  const std::vector<uint64_t>& free = inputs_.free_sizes;
  const bool finds = analysis_.data_sizes == DataSizes::Found;
  if (std::ranges::none_of(free, [](uint64_t mask) { return mask != 0; }) && inputs_.free_ints.empty() && !finds)
    return;
  const uint32_t writer = writes_to_parts(false);
  if (const uint32_t late = finds && writer != kNone ? writes_to_parts(true) : kNone; late != kNone)
    unsound("a size depends on data" + why_none_free(late));
  graph_.symbols = std::make_shared<ir::Symbols>();
  scope_.emplace(graph_.symbols.get());
  for (const Source& root : trace_.roots) {
    const uint64_t mask = root.argument == kNone || root.argument >= free.size() ? 0 : free[root.argument];
    const TensorMeta& meta = root.before.meta;
    if (mask == 0) continue;
    const std::string why = why_not_free(root, writer);
    ir::Layout layout;
    for (uint32_t d = 0; d < meta.sizes.size(); ++d) {
      layout.sizes.emplace_back(meta.sizes[d]);
      if (d >= 64 || !(mask >> d & 1)) continue;
      const std::string name = root.name + ".size(" + std::to_string(d) + ")";
      if (!why.empty() || meta.sizes[d] < ir::Symbols::kLeast) {
        const std::string is_small = ": it is " + std::to_string(meta.sizes[d]);
        capture.fixed_sizes.push_back(name + " is one size" + (why.empty() ? is_small : why));
        continue;
      }
      if (way_->is_gone() && !way_->differed({root.argument, d})) {
        capture.fixed_sizes.push_back(name + " is one size: its gradients were not computed at another one yet");
        continue;
      }
      layout.sizes[d] = graph_.symbols->add(meta.sizes[d], name);
      capture.symbols.push_back({root.argument, d});
    }
    if (!why.empty()) continue;
    layout.strides = argument_strides(root, layout.sizes);
    if (!is_symbolic(layout)) continue;
    capture.layouts.emplace_back(root.argument, layout);
    free_.emplace(root.before.tensor, with_layout(meta, std::move(layout)));
  }
  free_ints(writer);
  if (!graph_.symbols->empty() || finds) return;
  scope_.reset();
  graph_.symbols = nullptr;
}

// A result of an operator that makes sizes of data: those are symbols, of which each run tells the operator's.
void GraphBuilder::find_sizes(const Use& result, const Event& event, uint32_t which, CallTemplate& call) {
  const TensorMeta& recorded = result.meta;
  const uint64_t dims = trace_.made_dims_of(result.tensor);
  std::vector<Dim> sizes(recorded.sizes.begin(), recorded.sizes.end());
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (!(dims & bit(d)) || recorded.sizes[d] < ir::Symbols::kLeast) continue;
    if (graph_.symbols->late_count() == ir::Symbols::kMostLate) unsound("too many sizes depend on data");
    const auto symbol = static_cast<uint32_t>(graph_.symbols->size());
    sizes[d] = graph_.symbols->add_late(recorded.sizes[d], "size " + std::to_string(d) + " of " + where(trace_, event));
    call.finds.push_back({which, static_cast<int64_t>(d), symbol});
  }
  const auto strides = dense_strides(sizes, recorded);
  if (!strides) unsound("a size depends on data in memory with gaps, of " + where(trace_, event));
  State& state = states_[result.tensor];
  state.meta = with_layout(recorded, {std::move(sizes), *strides});
  state.known = true;
}

SharedMeta GraphBuilder::meta_of(const Use& use) const {
  if (!scope_ || use.tensor == kNone) return use.meta;
  const State& state = states_[use.tensor];
  if (state.known && state.meta->symbolic) return state.meta;
  const auto root = free_.find(use.tensor);
  return root == free_.end() || state.known ? use.meta : root->second;
}

std::vector<ir::Layout> GraphBuilder::layouts_of(const Event& event) const {
  std::vector<ir::Layout> all;
  for (const CallValue& item : event.args)
    for (const Use& use : item.uses)
      if (use.tensor != kNone) all.push_back(meta_of(use)->layout());
  return all;
}

// From here on the program is for the sizes that these arguments had.
void GraphBuilder::fix_sizes(const Event& event) {
  for (const ir::Layout& layout : layouts_of(event)) fix(layout);
}

void GraphBuilder::fix_sizes_of(uint32_t tensor) {
  if (const std::optional<ir::Layout> layout = layout_of(tensor))
    fix(*layout);
  else
    fix_all_sizes();
}

// Python asked for the sizes of these, and may have gone another way for others. What it asked of late ones is a guard.
void GraphBuilder::fix_sizes_read() {
  if (!scope_) return;
  for (const uint32_t tensor : trace_.sizes_read) {
    const std::optional<ir::Layout> layout = trace_.made_dims_of(tensor) ? layout_of(tensor) : std::nullopt;
    if (layout && analysis_.data_sizes == DataSizes::Found)
      fix(*layout, graph_.symbols.get());
    else
      fix_sizes_of(tensor);
  }
}

// Whose sizes the program takes is an input of it, whatever becomes of its elements.
void GraphBuilder::take_free_arguments() {
  for (const Source& root : trace_.roots)
    if (free_.contains(root.before.tensor) && memory_type(root.before.meta->dtype)) input_node(root.before.tensor);
}

// What a row is told of its result: kernels compute it elementwise, or the row has to know better.
SharedMeta GraphBuilder::expected(const Use& result, const Event& event) const {
  if (!scope_) return result.meta;
  const ir::Layout recorded = result.meta->layout();
  return with_layout(result.meta, {broadcast_sizes(result.meta->sizes, layouts_of(event)), recorded.strides});
}

// By the formula of the operator, which may be given sizes as its ints.
std::optional<std::vector<Dim>> GraphBuilder::known_sizes(const Use& result, const Event& event,
                                                          const std::vector<ir::Layout>& tensors) {
  const auto index = static_cast<uint32_t>(&event - trace_.events.data());
  const auto ints = [&](uint32_t arg) {
    const std::vector<Dim> given = takes_sizes(event.name) ? sizes_given(index, arg) : std::vector<Dim>();
    return given.empty() ? ints_of(event.args[arg]) : given;
  };
  const auto is_it = [&](const Use& one) { return one.tensor == result.tensor; };
  const std::span<const Use> results = flat_results(event);
  const auto which = static_cast<size_t>(std::ranges::find_if(results, is_it) - results.begin());
  return sizes_by_formula({event, which, tensors, ints, [&](const Use& use) { return meta_of(use)->layout(); }});
}

// What torch gives there: foretold.
SharedMeta GraphBuilder::foretold(const Use& result, const Event& event) {
  const std::vector<ir::Layout> tensors = layouts_of(event);
  if (!scope_ || result.tensor == kNone || is_workspace(result, event)) return result.meta;
  const TensorMeta& recorded = result.meta;
  const State& state = states_[result.tensor];  // what the operator has written is as large as it was
  if (is_argument(event, result.tensor) && state.known && state.meta->sizes == recorded.sizes) return state.meta;
  std::optional<std::vector<Dim>> sizes;
  if (const std::vector<Dim>* known = way_sizes_of(result)) sizes = *known;
  if (!sizes) sizes = listed_sizes(event);
  if (!sizes) sizes = known_sizes(result, event, tensors);
  if (!sizes && std::ranges::none_of(tensors, is_symbolic)) return result.meta;
  const bool is_known = sizes.has_value();
  if (!sizes) sizes = alike(recorded.sizes, tensors);
  std::optional<std::vector<Dim>> strides;
  if (ir::hints(*sizes) == recorded.sizes) strides = dense_strides(*sizes, recorded);
  // A part of one dim lies as its base does.
  if (event.name == "aten::narrow" && ir::hints(tensors[0].strides) == recorded.strides) strides = tensors[0].strides;
  const bool is_list = std::ranges::any_of(  // how many there are may follow from sizes
      event.results, [](const CallValue& item) { return item.kind == CallValue::Kind::TensorList; });
  if (!strides || is_list || (!is_known && is_given_numbers(trace_, event))) return fix_sizes(event), result.meta;
  return with_layout(recorded, {std::move(*sizes), std::move(*strides)});
}

// What a kernel computes has the sizes of its node; a view lies as its base does, anything else without gaps, its dims
// in the order that those of the operands say.
SharedMeta GraphBuilder::computed(const Use& result, ir::NodeId node, const Event& event) {
  if (!scope_ || node == ir::kNoNode) return result.meta;
  const std::vector<ir::Layout> tensors = layouts_of(event);
  const TensorMeta& recorded = result.meta;
  ir::Layout layout{{graph_.sizes(node).begin(), graph_.sizes(node).end()}, {}};
  if (!is_symbolic(layout) && std::ranges::none_of(tensors, is_symbolic)) return result.meta;
  const Use* base = first_tensor(event);
  const bool is_view = base && base->storage == result.storage;
  std::optional<std::vector<Dim>> strides;
  std::vector<size_t> odd;
  if (is_view) {
    strides = strides_below(node, states_[base->tensor].node, meta_of(*base)->layout().strides);
  } else {
    for (const ir::Layout& operand : tensors) {
      const std::vector<size_t> order = by_stride(ir::hints(operand.strides));
      for (size_t i = 1; i < order.size(); ++i)
        static_cast<void>(operand.strides[order[i - 1]] >= operand.strides[order[i]]);
    }
    strides = dense_strides(layout.sizes, recorded, &odd);
  }
  const bool expands = event.name == "aten::expand";
  for (size_t d = recorded.sizes.size(); strides && d-- > 0;) {
    const size_t back = recorded.sizes.size() - d;
    if (expands && recorded.sizes[d] == 1 && back <= tensors[0].strides.size())  // it stays as it is
      (*strides)[d] = tensors[0].strides[tensors[0].strides.size() - back];
    if ((*strides)[d].hint() == recorded.strides[d] && std::ranges::find(odd, d) == odd.end()) continue;
    // Of one element: as unsqueeze() and view() make it.
    const bool is_last = d + 1 == recorded.sizes.size();
    (*strides)[d] = is_last ? Dim(1) : layout.sizes[d + 1] * (*strides)[d + 1];
    if (recorded.sizes[d] != 1 || (*strides)[d].hint() != recorded.strides[d]) strides.reset();
  }
  if (!strides || ir::hints(layout.sizes) != recorded.sizes) return fix_sizes(event), result.meta;
  if (const std::vector<Dim>* known = way_sizes_of(result))  // by the formulas of autograd's: the row agrees
    for (size_t d = 0; d < known->size(); ++d) static_cast<void>(layout.sizes[d] == (*known)[d]);
  layout.strides = std::move(*strides);
  return with_layout(recorded, std::move(layout));
}

// Strides of a value that only views lead to from `base`.
std::optional<std::vector<Dim>> GraphBuilder::strides_below(ir::NodeId node, ir::NodeId base,
                                                            const std::vector<Dim>& of_base) const {
  if (node == base) return of_base;
  const ir::Node& view = graph_[node];
  if (view.op != ir::Op::View && view.op != ir::Op::Reshape) return std::nullopt;
  const auto below = strides_below(view.in[0], base, of_base);
  if (!below) return std::nullopt;
  if (view.op == ir::Op::Reshape) return ir::reshape_strides(graph_.sizes(view.in[0]), *below, graph_.sizes(node));
  return ir::view_strides(graph_.maps[view.attr], view.rank, *below).strides;
}

}  // namespace fastjit::capture
