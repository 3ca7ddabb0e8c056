// Values that Python reads out of tensors: guards inside the program. What a guard depends on is computed with eager's
// own bits, so that the program goes the way that eager would go.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "capture/build/build.h"
#include "capture/record/effects.h"

namespace fastjit::capture {
namespace {

template <class T>
uint64_t float_bits(const void* element) {
  return std::bit_cast<uint64_t>(static_cast<double>(*static_cast<const T*>(element)));
}

template <class T>
uint64_t int_bits(const void* element) {
  return static_cast<uint64_t>(static_cast<int64_t>(*static_cast<const T*>(element)));
}

// Operators whose result is eager's bit for bit, whatever the kernel around them looks like.
bool is_exact_op(const ir::Graph& graph, const ir::Node& node) {
  if (node.op == ir::Op::Reduce) {
    const ir::ReduceKind kind = graph.reduces[node.attr].kind;
    const bool adds = kind == ir::ReduceKind::Sum || kind == ir::ReduceKind::Prod;
    return !adds || !ir::is_floating(node.dtype);
  }
  switch (node.op) {
    case ir::Op::FloorDiv:
    case ir::Op::Remainder:
    case ir::Op::Fmod:
      return !ir::is_floating(node.dtype);
    case ir::Op::Add:
    case ir::Op::Sub:
    case ir::Op::Mul:
    case ir::Op::Div:
    case ir::Op::Sqrt:
    case ir::Op::Fma:
      return true;
    default:
      return !(ir::info(node.op).flags & ir::Expensive);
  }
}

// The options other than "eager" let float arithmetic round otherwise.
bool may_round(const ir::Graph& graph, ir::NodeId id, plan::Numerics numerics) {
  if (numerics == plan::Numerics::Eager || !ir::is_pointwise(graph[id].op)) return false;
  const auto is_loose = [&](ir::DType dtype) {
    return numerics == plan::Numerics::Accurate ? ir::is_half(dtype) : ir::is_floating(dtype);
  };
  const auto in = graph.operands(id);
  return is_loose(graph[id].dtype) || std::ranges::any_of(in, [&](ir::NodeId x) { return is_loose(graph[x].dtype); });
}

std::vector<uint64_t> expected_of(const Event& event) {
  if (event.name == kContentsRead || event.name == kTest || is_size(event)) return event.values;
  const c10::IValue& value = event.results[0].constant;
  if (value.isDouble()) {
    const double number = value.toDouble();
    return {float_bits<double>(&number)};
  }
  return {value.isBool() ? uint64_t{value.toBool()} : static_cast<uint64_t>(value.toInt())};
}

}  // namespace

uint64_t value_bits(const void* element, ir::DType dtype) {
  switch (dtype) {
    case ir::DType::F64:
      return float_bits<double>(element);
    case ir::DType::F32:
      return float_bits<float>(element);
    case ir::DType::F16:
      return float_bits<at::Half>(element);
    case ir::DType::BF16:
      return float_bits<at::BFloat16>(element);
    case ir::DType::I64:
      return int_bits<int64_t>(element);
    case ir::DType::I32:
      return int_bits<int32_t>(element);
    case ir::DType::I16:
      return int_bits<int16_t>(element);
    case ir::DType::I8:
      return int_bits<int8_t>(element);
    case ir::DType::U8:
      return int_bits<uint8_t>(element);
    case ir::DType::Bool:
      return *static_cast<const uint8_t*>(element) != 0;
    case ir::DType::Raw8:
    case ir::DType::Raw16:
    case ir::DType::Raw32:
    case ir::DType::Raw64:
    case ir::DType::Raw128:
      break;  // no guard reads these
  }
  return 0;
}

void ValueGuard::read(c10::IntArrayRef sizes, std::vector<uint64_t>& into) const {
  if (of == Of::IsAtMost) return into.push_back(sizes[static_cast<size_t>(dim)] <= limit);
  for (const int64_t size : sizes)
    into.push_back(static_cast<uint64_t>(of == Of::FewSizes ? std::min(size, kMany) : size));
}

std::string label_of(const Trace& trace, const Event& event) { return label_of(event, trace.lines[event.line]); }

// Backwards from each read, by storage: a step that makes or writes memory which the value depends on. Which element
// was picked is a result like any other, which hangs on a rounding at a tie alone.
void mark_exact(const Trace& trace, Analysis& analysis) {
  std::set<uint32_t> needed;
  for (auto step = analysis.steps.rbegin(); step != analysis.steps.rend(); ++step) {
    const Event& event = trace.events[step->event];
    const auto is_needed = [&](uint32_t tensor) { return needed.contains(analysis.storage[tensor]); };
    const auto decides = [&](uint32_t tensor) {
      const bool is_position = event.facts.is(OpFlag::Position) && tensor == event.results.back().uses[0].tensor;
      return is_needed(tensor) && !is_position;
    };
    step->exact = step->reads_value || step->data_sized || std::ranges::any_of(step->results, decides) ||
                  std::ranges::any_of(step->writes, is_needed);
    if (!step->exact) continue;
    for (uint32_t tensor : step->reads) needed.insert(analysis.storage[tensor]);
  }
}

bool GraphBuilder::is_exact(ir::NodeId node) {
  if (node == ir::kNoNode) return true;
  std::vector<ir::NodeId> todo{node};
  exact_.resize(graph_.nodes.size(), 0);
  while (!todo.empty()) {
    const ir::NodeId id = todo.back();
    const ir::Node& now = graph_[id];
    if (is_tensor(now.op) || graph_.is_position(id)) exact_[id] = 1;
    if (exact_[id] == 0) {
      bool waits = false, inexact = !is_exact_op(graph_, now) || may_round(graph_, id, numerics_);
      for (ir::NodeId in : graph_.operands(id)) {
        if (in == ir::kNoNode) continue;
        if (exact_[in] == 0 && !inexact) todo.push_back(in), waits = true;
        inexact |= exact_[in] == 2;
      }
      if (waits && !inexact) continue;
      exact_[id] = inexact ? 2 : 1;
    }
    todo.pop_back();
  }
  return exact_[node] == 1;
}

bool GraphBuilder::results_exact(const Action& step) {
  return std::ranges::all_of(step.results, [&](uint32_t tensor) { return is_exact(states_[tensor].node); });
}

// The bool that a call gives, as a tensor: the executor makes one of it.
ir::NodeId GraphBuilder::tested(uint32_t index) {
  const ir::NodeId external = call(index, ir::ExternKind::Op, ir::kNoNode);
  graph_.externs[graph_[external].attr].outputs = 1;
  capture.calls.back().results = {{at::kBool, {}, {}}};
  return graph_.result(external, 0, ir::DType::Bool, {});
}

// What is asked of the sizes of a tensor that torch made: no step computes it.
void GraphBuilder::guard_sizes(const Event& event) {
  using Of = ValueGuard::Of;
  const Use& use = event.args[0].uses[0];
  ValueGuard asked{label_of(trace_, event), ir::DType::I64, true, expected_of(event)};
  asked.of = event.name == kSlice ? Of::IsAtMost : event.name == kFew ? Of::FewSizes : Of::Sizes;
  if (asked.of == Of::IsAtMost) {
    asked.dtype = ir::DType::Bool;
    asked.is_list = false;
    asked.dim = event.args[1].constant.toInt();
    asked.limit = event.args[2].constant.toInt();
  }
  const ir::NodeId node = operand(use, event);
  if (analysis_.data_sizes == DataSizes::Found) know_sizes(asked, node);
  if (sizes_guarded_.insert({node, asked.of, asked.dim, asked.limit}).second) add_guard(event, node, std::move(asked));
  if (event.name == kSizeRead) settle_sizes(use);
}

// What the guard says need not be asked of the sizes that a run finds.
void GraphBuilder::know_sizes(const ValueGuard& asked, ir::NodeId node) {
  if (asked.of == ValueGuard::Of::Sizes) unsound("a size that depends on data is read: " + asked.label);
  if (asked.of != ValueGuard::Of::IsAtMost) return;
  const ir::Dim size = graph_.sizes(node)[static_cast<size_t>(asked.dim)];
  graph_.symbols->know(asked.expected[0] ? ir::Dim(asked.limit) - size : size - asked.limit - 1);
}

void GraphBuilder::add_guard(const Event& event, ir::NodeId node, ValueGuard asked) {
  if (!event.of_constants && !has_few_answers(event) && values_++ == trace_.max_values)
    unsound("value limit (" + std::to_string(trace_.max_values) + ") reached: " + asked.label);
  ir::ExternAttr attr;
  attr.kind = ir::ExternKind::Guard;
  attr.call = static_cast<uint32_t>(capture.guards.size());
  attr.name = asked.label;
  attr.operands = {node};
  attr.outputs = 0;
  graph_.external(std::move(attr));
  capture.guards.push_back(std::move(asked));
}

ir::NodeId GraphBuilder::answer_to(const NumberTest& test) {
  using support::Test;
  if (trace_.device.is_cuda())
    if (const ir::NodeId answer = compared_on_host(test); answer != ir::kNoNode) return answer;
  constexpr ir::Op kComparisons[] = {ir::Op::Lt, ir::Op::Le, ir::Op::Eq, ir::Op::Ne, ir::Op::Gt, ir::Op::Ge};  // Test's
  const auto constant = [&](double value) { return graph_.constant(ir::DType::F64, value); };
  std::array<ir::NodeId, 2> x{};
  bool is_known = true;
  for (size_t i = 0; i < test.operands.size(); ++i) {
    const NumberTest::Operand& operand = test.operands[i];
    const auto scalar = static_cast<uint32_t>(operand.scalar);
    x[i] = operand.scalar < 0 ? ir::kNoNode : number_node(scalar);
    if (x[i] == ir::kNoNode && operand.scalar >= 0 && is_given(scalar))
      x[i] = graph_.convert(given_node(scalar), ir::DType::F64);
    is_known &= x[i] == ir::kNoNode;
    if (x[i] == ir::kNoNode) x[i] = constant(operand.value);
  }
  if (is_known) return ir::kNoNode;
  const auto answer = [&] {
    if (test.kind <= Test::Ge) return graph_.pointwise(kComparisons[static_cast<size_t>(test.kind)], {x[0], x[1]});
    if (test.kind == Test::IsNan) return graph_.pointwise(ir::Op::Ne, {x[0], x[0]});
    const ir::Op op = test.kind == Test::IsInf ? ir::Op::Eq : ir::Op::Lt;
    return graph_.pointwise(op, {graph_.pointwise(ir::Op::Abs, {x[0]}), constant(HUGE_VAL)});
  };
  return trace_.device.is_cpu() ? answer() : on_host(answer(), at::kBool);
}

// A guard has compared the sizes of what torch made: from here on it is a tensor of those sizes.
void GraphBuilder::settle_sizes(const Use& use) {
  State& state = states_[use.tensor];
  if (analysis_.pinned[use.storage] || state.real == ir::kNoNode) return;
  state.node = state.real = alias_of(state.real, use.meta, use.storage);
}

void GraphBuilder::guard(uint32_t index) {
  const Action& step = analysis_.steps[index];
  const Event& event = trace_.events[step.event];
  const std::string label = label_of(trace_, event);
  const ir::NodeId mask = is_size(event) ? mask_of(event) : ir::kNoNode;
  if (is_size(event) && mask == ir::kNoNode) return guard_sizes(event);
  ir::NodeId node = ir::kNoNode;
  if (event.facts.effect == Effect::Test) {
    node = tested(index);
  } else if (mask != ir::kNoNode) {
    node = is_at_most(event, mask);
  } else if (event.name == kTest) {
    node = answer_to(trace_.tests.at(step.event));
    if (node == ir::kNoNode) return;  // of values that are guarded themselves
  } else {
    const Use& use = event.args[0].uses[0];
    if (states_[use.tensor].mask != ir::kNoNode)
      unsound("result of aten::index depends on data at " + trace_.lines[event.line]);
    node = trace_.is_on_host(use) ? operand(use, event) : snapshot(step, use).node;
    if (node == ir::kNoNode || ir::is_raw(graph_[node].dtype))
      unsound("value of a tensor left tensor land: " + where(trace_, event));
    if (event.op) node = graph_.reshape(node, {});
    if (event.name == "aten::is_nonzero" && !trace_.is_on_host(use)) node = graph_.convert(node, ir::DType::Bool);
  }
  const bool rounds_nothing = event.name == kTest;  // and asks of values that were looked at when they were read
  if (!rounds_nothing && !is_exact(node)) unsound("the value of " + label + " is computed otherwise than in eager");
  if (const auto value = trace_.value_scalars.find(step.event);
      value != trace_.value_scalars.end() && scalars_.bound[value->second]) {
    value_nodes_[value->second] =
        trace_.device.is_cpu() ? graph_.convert(node, ir::DType::F64) : on_host(node, at::kDouble);
    return;
  }
  if (graph_[node].op == ir::Op::Const || !guarded_.insert(node).second) return;
  const bool is_there = event.facts.effect == Effect::Test || event.name == kTest || is_size(event);
  if (trace_.device.is_cuda() && !is_there)
    node = on_host(node, event.name == "aten::is_nonzero" ? at::kBool : to_torch(graph_[node].dtype));
  const bool is_list = !event.op && graph_[node].rank > 0;
  add_guard(event, node, {label, graph_[node].dtype, is_list, expected_of(event)});
}

// When a value is another one than recorded, the call starts again: what ran by then is undone, which is known how to
// do of torch's own operators only.
void GraphBuilder::refuse_effects_before_values() {
  const auto last = std::ranges::find_if(analysis_.steps.rbegin(), analysis_.steps.rend(),
                                         [](const Action& step) { return step.reads_value; });
  if (last == analysis_.steps.rend()) return;
  const std::string value = "the value of " + label_of(trace_, trace_.events[last->event]) + " is read";
  for (const Action& step : analysis_.steps) {
    if (&step == &*last) return;
    const Event& event = trace_.events[step.event];
    if (event.facts.is(OpFlag::Foreign))
      unsound(where(trace_, event) + " runs before " + value + ", and may do more than its result shows");
  }
}

}  // namespace fastjit::capture
