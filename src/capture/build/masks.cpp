// y[m] = g(x[m]) as a select. x[m] is *compressed*: its value is kept over the mask's whole domain, where only the
// masked elements are real. Pointwise work keeps it so; y[m] = it makes where(m, it, y), and the sum into y[m], as on
// autograd's way back from x[m], where(m, y + it, y). Of its sums masked_totals.cpp tells. Any other use depends on
// data.
#include <algorithm>

#include "capture/build/build.h"
#include "capture/lower/reduce.h"
#include "capture/lower/util.h"
#include "capture/record/data_sizes.h"
#include "capture/record/effects.h"

namespace fastjit::capture {
namespace {

// One mask of all dims, or of the first ones: of rows.
bool has_mask(const Event& event) {
  if (event.args.size() < 2 || event.args[1].uses.size() != 1 || event.args[0].uses.size() != 1) return false;
  const std::vector<int64_t>& masked = event.args[0].uses[0].meta->sizes;
  const Use& mask = event.args[1].uses[0];
  if (mask.tensor == kNone || mask.meta->dtype != at::kBool || mask.meta->sizes.empty()) return false;
  const std::vector<int64_t>& by = mask.meta->sizes;
  return by.size() <= masked.size() && std::equal(by.begin(), by.end(), masked.begin());
}

// y[m] = v looks at v without its leading sizes of 1, and so a single masked element arrives as a 0-dim view, which
// Python never sees.
bool is_single_element_view(const Trace& trace, const Event& event) {
  if (event.name != "aten::view" || event.args[0].uses[0].meta->sizes != std::vector<int64_t>{1}) return false;
  const Use& made = event.results[0].uses[0];
  if (!made.meta->sizes.empty() || event.end >= trace.events.size() || !is_masked_store(trace.events[event.end]))
    return false;
  const Use& stored = trace.events[event.end].args[2].uses[0];
  return stored.tensor == made.tensor && stored.bare;
}

// The operator was given sizes or dims, or took a part of its argument: what fits the masked elements of this call
// need not fit other counts, nor mean the same over the mask's domain.
bool is_of_this_count(const Event& event) {
  if (event.args[0].uses.size() == 1 && event.args[0].uses[0].storage == event.results[0].uses[0].storage)
    return functional_name(event.name).empty() && base_name(event.name) != "aten::alias" &&
           base_name(event.name) != "aten::detach";
  return std::ranges::any_of(event.args, [](const CallValue& item) { return item.constant.isIntList(); });
}

bool may_trap_on_unmasked(const ir::Graph& graph, ir::NodeId node) {
  switch (graph[node].op) {
    case ir::Op::Div:
    case ir::Op::FloorDiv:
    case ir::Op::Remainder:
    case ir::Op::Fmod:
      return !ir::is_floating(graph[node].dtype);
    default:
      return false;
  }
}

}  // namespace

bool is_masked_load(const Event& event) {
  if (!has_mask(event)) return false;
  const auto is_as_large = [&] { return event.args[0].uses[0].meta->sizes == event.args[1].uses[0].meta->sizes; };
  return event.name == "aten::index.Tensor" || (event.name == "aten::masked_select" && is_as_large());
}

static bool puts_by_mask(const Event& event) {
  return has_mask(event) && event.args.size() >= 4 && event.args[3].constant.isBool();
}

bool is_masked_store(const Event& event) {
  return (event.name == "aten::index_put_" || event.name == "aten::_index_put_impl_") && puts_by_mask(event);
}

bool gives_as_many(const Event& event) { return event.name == "aten::broadcast_tensors"; }

bool is_masked_put(const Event& event) { return event.name == "aten::index_put" && puts_by_mask(event); }

uint32_t formula_around(const Trace& trace, const Event& event) {
  uint32_t formula = event.parent;
  while (formula != kNone && !is_backward(trace.events[formula])) formula = trace.events[formula].parent;
  return formula;
}

// The event is one of autograd's formulas: its numbers are sizes of what the way there has computed.
bool GraphBuilder::is_on_way_back(const Event& event) const {
  if (trace_.goes_back_in_python) return false;  // it may be the user's
  const auto index = static_cast<uint32_t>(&event - trace_.events.data());
  return (trace_.derivative && index >= trace_.derivative->begin) || formula_around(trace_, event) != kNone;
}

// A lone masked element was stored as a 0-dim view, and the way back goes from that to the one element, where it would
// do nothing with more.
bool GraphBuilder::is_lone_on_way_back(const Event& event) const {
  const std::string_view base = base_name(event.name);
  const bool reshapes =
      base == "aten::sum" || base == "aten::view" || base == "aten::reshape" || base == "aten::expand";
  const auto is_lone = [](const Use& use) { return c10::multiply_integers(use.meta->sizes) == 1; };
  return reshapes && is_lone(event.args[0].uses[0]) && is_lone(flat_results(event)[0]) && is_on_way_back(event);
}

// The gradient of what was flattened, in its sizes again.
bool GraphBuilder::is_unflattened(const Event& event) const {
  const std::string_view base = base_name(event.name);
  if (base != "aten::view" && base != "aten::reshape" && base != "aten::_reshape_alias") return false;
  const auto count = [](const Use& use) { return c10::multiply_integers(use.meta->sizes); };
  if (count(event.args[0].uses[0]) != count(flat_results(event)[0]) || !is_on_way_back(event)) return false;
  const uint32_t formula = formula_around(trace_, event);
  const std::string_view name = formula == kNone ? "" : trace_.events[formula].name;
  return name.ends_with(": ViewBackward0") || name.ends_with(": ReshapeAliasBackward0");
}

// The gradient of what y[m] = v overwrites: however many elements v has, they are zeros.
bool GraphBuilder::puts_zeros(const Event& event) const {
  const Use& source = event.args[2].uses[0];
  if (source.tensor == kNone || !is_on_way_back(event)) return false;
  ir::NodeId node = states_[source.tensor].node;
  while (node != ir::kNoNode && (graph_[node].op == ir::Op::View || graph_[node].op == ir::Op::Convert))
    node = graph_[node].in[0];
  return node != ir::kNoNode && graph_[node].op == ir::Op::Const && graph_.constants[graph_[node].attr] == 0;
}

// The gradient of x before x[m]: zeros, as many as x has elements, to which that of the masked ones is added.
ir::NodeId GraphBuilder::zeros_for_masked(const Event& event) {
  const TensorMeta& made = *flat_results(event)[0].meta;
  const auto dtype = to_ir(made.dtype);
  const bool is_zeros = event.name == "aten::new_zeros" && dtype && event.args[1].constant.isIntList();
  if (!is_zeros || !is_on_way_back(event)) return ir::kNoNode;
  return graph_.expand(zero(graph_, *dtype), made.layout().sizes);
}

ir::NodeId GraphBuilder::mask_of(const Event& event) const {
  for (const CallValue& item : event.args)
    for (const Use& use : item.uses)
      if (use.tensor != kNone && states_[use.tensor].mask != ir::kNoNode) return states_[use.tensor].mask;
  return ir::kNoNode;
}

// Of tensors of one mask that are broadcast against each other, each is as large before as after.
bool GraphBuilder::is_broadcast_to_itself(const Event& event, ir::NodeId mask) const {
  if (event.name != "aten::expand" || event.parent == kNone) return false;
  const Event& all = trace_.events[event.parent];
  const auto is_masked = [&](const Use& use) { return use.tensor != kNone && states_[use.tensor].mask == mask; };
  return gives_as_many(all) && std::ranges::all_of(all.args[0].uses, is_masked) &&
         event.args[0].uses[0].meta->sizes == event.results[0].uses[0].meta->sizes;
}

// The value now, also where it lies in pinned memory: a copy taken at this point.
Value GraphBuilder::snapshot(const Action& step, const Use& use) {
  const Event& event = trace_.events[step.event];
  if (use.tensor == kNone || use.number || !is_pinned_at(step, use.tensor)) return value(use, event);
  ir::Layout layout = meta_of(use)->layout();
  layout.strides = ir::row_major(layout.sizes);
  TensorMeta meta = use.meta;
  meta.strides = ir::hints(layout.strides);
  meta = with_layout(meta, std::move(layout));
  const Extra contiguous{ir::kNoNode, {}, static_cast<int64_t>(at::MemoryFormat::Contiguous)};
  const ir::NodeId copy = run("aten::clone", "", {{operand(use, event)}, contiguous}, meta);
  return {copy, meta_of(use)};
}

// y[m] = compressed where y is pinned memory: the select is written into it by torch, in its place in the order.
bool GraphBuilder::masked_store_in_place(const Action& step) {
  const Event& event = trace_.events[step.event];
  if (!is_masked_store(event) || mask_of(event) == ir::kNoNode) return false;
  const ir::NodeId node = masked_store(step);
  if (node == ir::kNoNode) return false;
  if (step.exact && !is_exact(node)) unsound("result of aten::index depends on data at " + trace_.lines[event.line]);
  static const c10::OperatorHandle copy = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  static const OpFacts facts = facts_of(copy);
  const Use& self = event.args[0].uses[0];
  ir::ExternAttr attr;
  attr.name = "aten::copy_";
  attr.operands = {operand(self, event), node};
  attr.written = {0};
  attr.call = add_call({copy, facts, {at::Tensor(), at::Tensor(), false}, {{0, -1}, {1, -1}}, {self.meta}, true});
  const ir::NodeId result = result_node(graph_.external(std::move(attr)), 0, self, event);
  if (trace_.root(self.tensor)) return true;
  set_result(self, result, event);
  states_[self.tensor].real = result;
  return true;
}

void GraphBuilder::masked_load(const Action& step) {
  const Event& event = trace_.events[step.event];
  const Value self = snapshot(step, event.args[0].uses[0]);
  const Value mask = snapshot(step, event.args[1].uses[0]);
  if (mask_of(event) != ir::kNoNode || self.node == ir::kNoNode || mask.node == ir::kNoNode)
    unsound("result of aten::index depends on data at " + trace_.lines[event.line]);
  if (!trace_.size_reader.empty())
    unsound("result of aten::index depends on data at " + trace_.lines[event.line] + " and " + trace_.size_reader +
            " may be read");
  const auto masked = graph_.sizes(self.node), by = graph_.sizes(mask.node);
  for (size_t d = 0; d < by.size(); ++d) static_cast<void>(masked[d] == by[d]);
  set_compressed(event.results[0].uses[0], self.node, mask_over(mask.node, self.node));
}

// The mask of rows as one of all elements of `value`.
ir::NodeId GraphBuilder::mask_over(ir::NodeId mask, ir::NodeId value) {
  const auto sizes = graph_.sizes(value);
  if (graph_.sizes(mask).size() == sizes.size()) return mask;
  std::vector<ir::Dim> rows(graph_.sizes(mask).begin(), graph_.sizes(mask).end());
  rows.resize(sizes.size(), 1);
  return graph_.expand(graph_.reshape(mask, std::move(rows)), {sizes.begin(), sizes.end()});
}

// y after y[m] = v, or kNoNode.
ir::NodeId GraphBuilder::masked_store(const Action& step) {
  const Event& event = trace_.events[step.event];
  const Use& self = event.args[0].uses[0];
  const Use& source = event.args[2].uses[0];
  const Value target = snapshot(step, self);
  const Value given_mask = snapshot(step, event.args[1].uses[0]);
  const Value stored = value(source, event);
  if (target.node == ir::kNoNode || given_mask.node == ir::kNoNode || stored.node == ir::kNoNode) return ir::kNoNode;
  const ir::NodeId mask = mask_over(given_mask.node, target.node);
  if (states_[self.tensor].mask != ir::kNoNode || states_[event.args[1].uses[0].tensor].mask != ir::kNoNode)
    return ir::kNoNode;
  const ir::NodeId compressed_by = source.number ? ir::kNoNode : states_[source.tensor].mask;
  const bool fits =
      compressed_by != ir::kNoNode ? compressed_by == mask : source.meta->sizes.empty() || puts_zeros(event);
  if (!fits) return ir::kNoNode;
  // torch fills with one number, and raises if the type has it not.
  const bool raises = compressed_by == ir::kNoNode && graph_[stored.node].op != ir::Op::Const &&
                      !holds_all_of(self.meta->dtype, source.meta->dtype);
  if (raises) return ir::kNoNode;
  const ir::DType type = graph_[target.node].dtype;
  const ir::NodeId given = graph_.convert(stored.node, type);
  ir::NodeId full = compressed_by == ir::kNoNode && !source.meta->sizes.empty()
                        ? graph_.expand(zero(graph_, type), meta_of(self)->layout().sizes)
                        : graph_.expand(given, meta_of(self)->layout().sizes);
  if (event.args[3].constant.toBool()) {
    if (type == ir::DType::Bool) return ir::kNoNode;
    const ir::DType wide = ir::is_half(type) ? ir::DType::F32 : type;
    full = graph_.pointwise(ir::Op::Add, {graph_.convert(target.node, wide), graph_.convert(full, wide)});
    full = graph_.convert(full, type);
  }
  return graph_.pointwise(ir::Op::Where, {mask, full, target.node});
}

// The results of the call over the whole domain; none if it is not pointwise work on values of this mask and numbers.
std::vector<ir::NodeId> GraphBuilder::lower_compressed(const Action& step, ir::NodeId mask) {
  const Event& event = trace_.events[step.event];
  const bool keeps_elements = is_single_element_view(trace_, event) || is_lone_on_way_back(event) ||
                              is_flattened(event) || is_unflattened(event) || is_broadcast_to_itself(event, mask);
  if (keeps_elements) return {value(event.args[0].uses[0], event).node};
  if (!step.row || flat_results(event).empty()) return {};
  const bool is_spread = step.total != kNone && base_name(event.name) == "aten::expand";
  const auto sizes = graph_.sizes(mask);
  const ir::Layout domain{{sizes.begin(), sizes.end()}, ir::row_major(sizes)};
  if (is_spread) return {graph_.expand(value(event.args[0].uses[0], event).node, domain.sizes)};
  if (is_of_this_count(event)) return {};
  const auto over_domain = [&](TensorMeta meta) -> SharedMeta {
    meta.sizes = ir::hints(domain.sizes);
    meta.strides = ir::hints(domain.strides);
    return with_layout(meta, domain);
  };
  std::vector<Arg> args = arguments(event);
  if (step.total != kNone && !set_divisor(args, event, mask)) return {};
  reduce_nothing(args, event, mask);
  std::vector<ir::NodeId> operands;
  std::vector<TensorMeta> results;
  for (const Use& use : flat_results(event)) results.push_back(*over_domain(*use.meta));
  const Use& first = is_total(event) ? event.args[0].uses[0] : flat_results(event)[0];
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i].kind == Arg::Kind::TensorList) return {};
    if (args[i].scalar != ir::kNoNode) operands.push_back(args[i].scalar);
    if (args[i].kind != Arg::Kind::Tensor) continue;
    const Use& use = event.args[i].uses[0];
    Value& operand = args[i].tensor;
    if (operand.node == ir::kNoNode) return {};
    operands.push_back(operand.node);
    if (use.number || states_[use.tensor].mask == ir::kNoNode) {
      if (!use.meta->sizes.empty()) return {};
      continue;
    }
    if (states_[use.tensor].mask != mask || use.meta->sizes != first.meta->sizes) return {};
    operand.meta = over_domain(TensorMeta{use.meta->dtype, {}, {}, use.meta->wrapped_number});
  }
  std::vector<ir::NodeId> out;
  const auto is_good = [&](ir::NodeId node) { return node != ir::kNoNode && is_pointwise_over(node, operands); };
  if (!call_lowering(step, args, results, step.rebinds, out) || !std::ranges::all_of(out, is_good)) return {};
  return out;
}

// The gradient of x before masked_select(x, m): that of the masked ones, and zeros.
ir::NodeId GraphBuilder::unselected(const Action& step, ir::NodeId mask) {
  const Event& event = trace_.events[step.event];
  if (event.name != "aten::masked_select_backward" || snapshot(step, event.args[2].uses[0]).node != mask)
    return ir::kNoNode;
  const ir::NodeId gradient = value(event.args[0].uses[0], event).node;
  if (gradient == ir::kNoNode) return ir::kNoNode;
  return graph_.pointwise(ir::Op::Where, {mask, gradient, zero(graph_, graph_[gradient].dtype)});
}

// What nobody has written yet, as large as a compressed value; what it holds nothing reads.
ir::NodeId GraphBuilder::blank_over(const Event& event, ir::NodeId mask) {
  const Use& made = flat_results(event)[0];
  const auto dtype = to_ir(made.meta->dtype);
  if (event.name != "aten::empty_like" || !dtype || made.meta->sizes != event.args[0].uses[0].meta->sizes)
    return ir::kNoNode;
  const auto sizes = graph_.sizes(mask);
  return graph_.expand(zero(graph_, *dtype), {sizes.begin(), sizes.end()});
}

// Work on compressed values, and y[m] = it into a new tensor. False: it is neither.
bool GraphBuilder::masked(const Action& step) {
  const Event& event = trace_.events[step.event];
  const ir::NodeId mask = mask_of(step.total == kNone ? event : trace_.events[step.total]);
  const auto is_good = [&](ir::NodeId node) { return node != ir::kNoNode && (!step.exact || is_exact(node)); };
  if (is_masked_put(event))
    if (const ir::NodeId out = masked_store(step); is_good(out))
      return set_result(flat_results(event)[0], out, event), true;
  if (mask == ir::kNoNode) return false;
  if (const ir::NodeId zeros = zeros_for_masked(event); zeros != ir::kNoNode)
    return set_result(flat_results(event)[0], zeros, event), true;
  if (const ir::NodeId whole = unselected(step, mask); whole != ir::kNoNode)
    return set_result(flat_results(event)[0], whole, event), true;
  if (const ir::NodeId blank = blank_over(event, mask); blank != ir::kNoNode)
    return set_compressed(flat_results(event)[0], blank, mask), true;
  if (is_total(event) && !is_lone_on_way_back(event)) {
    const ir::NodeId total = total_of(step, mask);
    if (!is_good(total)) unsound("result of aten::index depends on data at " + trace_.lines[event.line]);
    return set_result(flat_results(event)[0], total, event), true;
  }
  const std::vector<ir::NodeId> out = lower_compressed(step, mask);
  if (out.empty() || step.results.size() != out.size() || !std::ranges::all_of(out, is_good))
    unsound("result of aten::index depends on data at " + trace_.lines[event.line]);
  for (size_t i = 0; i < out.size(); ++i) set_compressed(flat_results(event)[i], out[i], mask);
  return true;
}

bool GraphBuilder::is_pointwise_over(ir::NodeId out, const std::vector<ir::NodeId>& operands) const {
  std::vector<ir::NodeId> todo{out};
  std::set<ir::NodeId> seen;
  while (!todo.empty()) {
    const ir::NodeId id = todo.back();
    todo.pop_back();
    if (!seen.insert(id).second || std::ranges::find(operands, id) != operands.end()) continue;
    const ir::Op op = graph_[id].op;
    if (op == ir::Op::Const || op == ir::Op::Scalar) continue;
    const bool spreads_a_number = op == ir::Op::View && graph_[graph_[id].in[0]].rank == 0;
    if ((!ir::is_pointwise(op) && !spreads_a_number) || may_trap_on_unmasked(graph_, id)) return false;
    for (ir::NodeId operand : graph_.operands(id)) todo.push_back(operand);
  }
  return true;
}

}  // namespace fastjit::capture
