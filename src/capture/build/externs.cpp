// Calls that torch runs: templates with holes, real tensors for them, and real views.
#include <algorithm>
#include <unordered_set>

#include "capture/build/build.h"
#include "capture/build/result_sizes.h"
#include "capture/build/window.h"
#include "capture/record/effects.h"

namespace fastjit::capture {
namespace {

at::Tensor number_tensor(const Use& use, const c10::Scalar& number) {
  at::Tensor tensor = at::scalar_tensor(number, at::TensorOptions().dtype(use.meta->dtype));
  if (use.meta->wrapped_number) tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

// Sizes of the result are a function of the arguments' metadata, as far as the trace can tell.
bool shape_from_metadata(const Trace& trace, uint32_t index) {
  const Event& event = trace.events[index];
  if (event.facts.is(OpFlag::Foreign)) return false;
  for (uint32_t child = index + 1; child < event.end; ++child) {
    const Event& nested = trace.events[child];
    if (nested.facts.is(OpFlag::SizedByData) || nested.facts.effect == Effect::Read) return false;
  }
  return true;
}

// The sum of a product and a bias, both as they are.
bool is_unscaled(const Event& event, ir::Product kind) {
  if (kind != ir::Product::Addmm && kind != ir::Product::Baddbmm) return false;
  const auto is_one = [](const CallValue& item) {
    return (item.constant.isInt() && item.constant.toInt() == 1) ||
           (item.constant.isDouble() && item.constant.toDouble() == 1);
  };
  return is_one(event.args[3]) && is_one(event.args[4]);
}

}  // namespace

const Use* first_tensor(const Event& event) {
  for (const CallValue& item : event.args)
    for (const Use& use : item.uses)
      if (use.tensor != kNone) return &use;
  return nullptr;
}

ir::DType GraphBuilder::ir_type(c10::ScalarType type, const Event& event) const {
  const auto dtype = memory_type(type);
  if (!dtype) unsound(std::string("a tensor of ") + where(trace_, event) + " has type " + c10::toString(type));
  return *dtype;
}

ir::ExternKind GraphBuilder::kind_of(const Action& step) const {
  const Event& event = trace_.events[step.event];
  const Use* first = first_tensor(event);
  const std::span<const Use> results = flat_results(event);
  bool view = false;
  const std::unordered_set<uint32_t> fresh(step.results.begin(), step.results.end());
  std::unordered_set<uint32_t> memory;  // of the arguments
  for (const CallValue& item : event.args)
    for (const Use& argument : item.uses)
      if (argument.tensor != kNone) memory.insert(argument.storage);
  for (const Use& use : results) {
    if (use.tensor == kNone || !fresh.contains(use.tensor)) continue;
    if (first && use.storage == first->storage)
      view = true;
    else if (memory.contains(use.storage))
      unsound("a result of " + where(trace_, event) + " shares memory with an argument in a way not known here");
  }
  return view && step.writes.empty() ? ir::ExternKind::View : ir::ExternKind::Op;
}

// A product is one where torch's library does nothing but compute it: of tensors of one type, into memory of its own.
std::optional<ir::Product> GraphBuilder::product_of(const Action& step) const {
  const Event& event = trace_.events[step.event];
  const std::optional<ir::Product> product = event.facts.product;
  const std::span<const Use> results = flat_results(event);
  if (!product || results.size() != 1 || !step.writes.empty() || is_on_host(step) || takes_lazy(event))
    return std::nullopt;
  if (std::ranges::find(step.results, results[0].tensor) == step.results.end()) return std::nullopt;
  const TensorMeta& meta = results[0].meta;
  const auto dtype = to_ir(meta.dtype);
  const auto of_result_type = [&](const CallValue& item) {  // autocast casts inside the operator
    return std::ranges::all_of(item.uses, [&](const Use& use) { return use.meta->dtype == meta.dtype; });
  };
  const auto is_memory = [&](const CallValue& item) {  // a number is no operand of the step
    return std::ranges::none_of(item.uses, [&](const Use& use) { return number_of(use).has_value(); });
  };
  const bool has_place = product == ir::Product::Convolution || meta.strides == ir::row_major(meta.sizes);
  const bool plain = dtype && ir::is_floating(*dtype) && std::ranges::all_of(event.args, of_result_type) &&
                     std::ranges::all_of(event.args, is_memory) && has_place &&
                     std::ranges::find(meta.sizes, 0) == meta.sizes.end();
  return plain ? product : std::nullopt;
}

void GraphBuilder::contract(uint32_t index, ir::Product kind) {
  const Event& event = trace_.events[analysis_.steps[index].event];
  const Use& use = flat_results(event)[0];
  ir::ExternAttr call = prepare(index, kind == ir::Product::Convolution ? Reads::Tensors : Reads::Factors, ir::kNoNode);
  const ir::NodeId node = graph_.contract({kind, call.call, std::move(call.name), std::move(call.operands),
                                           is_unscaled(event, kind), call.keeps_layout, std::move(call.window)},
                                          ir_type(use.meta->dtype, event), foretold(use, event)->layout());
  owner_.try_emplace(node, use.storage);
  set_result(use, node, event, true);
  states_[use.tensor].real = node;
}

void GraphBuilder::external(uint32_t index) {
  const Action& step = analysis_.steps[index];
  const Event& event = trace_.events[step.event];
  const ir::ExternKind kind = kind_of(step);
  if (const auto product = step.data_sized ? std::nullopt : product_of(step)) return contract(index, *product);
  const Use* first = first_tensor(event);
  if (kind == ir::ExternKind::View && is_parted(*first)) throw NotParted{first->storage};
  if (kind == ir::ExternKind::View && analysis_.leaves[first->storage]) settle_base(first->tensor);
  const ir::NodeId node = call(index, kind, ir::kNoNode);
  if (kind == ir::ExternKind::View) {
    const ir::NodeId base = operand(*first, event);
    first_views_.try_emplace(index, node);
    views_.try_emplace({index, base}, node);
  }
  const std::unordered_set<uint32_t> made(step.results.begin(), step.results.end());
  const std::unordered_set<uint32_t> writes(step.writes.begin(), step.writes.end());
  const std::span<const Use> results = flat_results(event);
  for (uint32_t which = 0; which < results.size(); ++which) {
    const Use& use = results[which];
    if (use.tensor == kNone || trace_.root(use.tensor)) continue;
    if (!made.contains(use.tensor) && !writes.contains(use.tensor)) continue;
    if (step.data_sized && analysis_.data_sizes == DataSizes::Found)
      find_sizes(use, event, which, capture.calls[graph_.externs[graph_[node].attr].call]);
    const ir::NodeId result = result_node(node, which, use, event);
    set_result(use, result, event, true);
    State& state = states_[use.tensor];
    state.real = result;
    note_picked(step, use, result);
    if (kind != ir::ExternKind::View || pinned(step)) continue;
    state.view_step = index;  // fused work may give the argument below it a new value
    state.base = first->tensor;
    state.which = which;
  }
}

ir::NodeId GraphBuilder::result_node(ir::NodeId external, uint32_t which, const Use& use, const Event& event) {
  auto [place, fresh] = results_.try_emplace({external, which}, ir::kNoNode);
  if (!fresh) return place->second;
  const State& state = states_[use.tensor];
  const bool is_known = state.known && (state.meta->symbolic || state.view_step != kNone);  // a row has said what it is
  const SharedMeta meta = is_known ? state.meta : foretold(use, event);
  place->second = graph_.result(external, which, ir_type(use.meta->dtype, event), meta->layout());
  owner_.try_emplace(place->second, use.storage);
  return place->second;
}

// The value of an operand that is a number for good: the template holds it, and every call reads the same tensor.
std::optional<c10::Scalar> GraphBuilder::number_of(const Use& use) const {
  if (use.tensor == kNone || use.number) return use.number;
  const int64_t maker = analysis_.created[use.tensor];
  const Action* step = maker < 0 ? nullptr : &analysis_.steps[static_cast<size_t>(maker)];
  const bool is_open = step && trace_.events[step->event].facts.is(OpFlag::Lifts) && scalars_.find(step->event, 0);
  return is_open || analysis_.written[use.storage] ? std::nullopt : analysis_.lifted[use.tensor];
}

// The value as memory of its own, in eager's strides; never a node that stands for another storage.
ir::NodeId GraphBuilder::own(ir::NodeId node, uint32_t tensor) {
  const uint32_t storage = analysis_.storage[tensor];
  const std::vector<ir::Dim> strides = states_[tensor].meta->layout().strides;
  if (analysis_.pinned[storage] || private_.contains(tensor))
    return run("aten::clone", "", {{graph_.with_strides(node, strides)}}, states_[tensor].meta);
  const ir::NodeId shaped = graph_.with_strides(node, strides);
  return owner_.try_emplace(shaped, storage).first->second == storage ? shaped : graph_.fresh_copy(node, strides);
}

// Views that torch makes and those that are results lie in one memory, which is no other value's.
void GraphBuilder::settle_base(uint32_t tensor) {
  while (states_[tensor].view_step != kNone) tensor = states_[tensor].base;
  State& state = states_[tensor];
  if (trace_.root(tensor) || (state.real != ir::kNoNode && is_tensor(graph_[state.real].op))) return;
  private_.insert(tensor);
  state.real = ir::kNoNode;
}

// One more call than eager made, with the defaults of what is not given.
ir::NodeId GraphBuilder::run(const char* op, const char* overload, const std::vector<Extra>& args,
                             const TensorMeta& result, ir::ExternKind kind) {
  const c10::OperatorHandle handle = c10::Dispatcher::singleton().findSchemaOrThrow(op, overload);
  CallTemplate made{handle, facts_of(handle), {}, {}, {result}, true};
  ir::ExternAttr attr;
  attr.kind = kind;
  attr.name = op;
  for (const c10::Argument& argument : handle.schema().arguments())
    made.args.push_back(argument.default_value().value_or(c10::IValue()));
  for (uint32_t i = 0; i < args.size(); ++i) {
    const Extra& given = args[i];
    if (given.node != ir::kNoNode) {
      made.holes.push_back({i, -1});
      made.args[i] = at::Tensor();
      attr.operands.push_back(given.node);
    } else if (given.given) {
      const auto& [number, name] = inputs_.scalars[*given.given];
      const auto scalar = static_cast<uint32_t>(graph_[given_node(*given.given)].attr);
      made.numbers.push_back({i, scalar, bool(PyFloat_CheckExact(number)), name});
      made.args[i] = 0.0;
    } else if (!given.constant.isNone()) {
      made.args[i] = given.constant;
    }
  }
  attr.call = add_call(std::move(made));
  return graph_.result(graph_.external(std::move(attr)), 0, *memory_type(result.dtype), result.layout());
}

// A node that is this tensor, for calls that read it: a view of real memory where eager had a view.
ir::NodeId GraphBuilder::real(uint32_t tensor) {
  if (trace_.root(tensor)) input_node(tensor);
  if (states_[tensor].real != ir::kNoNode) return states_[tensor].real;
  const State state = states_[tensor];
  ir::NodeId node = ir::kNoNode;
  if (state.view_step != kNone) {
    const ir::NodeId external = view_of(state.view_step, real(state.base));
    const Event& event = trace_.events[analysis_.steps[state.view_step].event];
    node = result_node(external, state.which, flat_results(event)[state.which], event);
  } else {
    node = own(state.node, tensor);
  }
  return states_[tensor].real = node;
}

// As real(), for results: what aliases an argument must alias the argument itself, whose last value is stored there.
ir::NodeId GraphBuilder::alias_of(uint32_t tensor) {
  if (trace_.root(tensor)) return input_node(tensor);
  const State state = states_[tensor];
  if (state.view_step == kNone) {
    const bool fused = state.real == ir::kNoNode || !is_tensor(graph_[state.real].op);
    if (fused && private_.contains(tensor))
      states_[tensor].real = own(state.node, tensor);
    else if (fused && !analysis_.pinned[analysis_.storage[tensor]] && viewed_.erase(tensor))
      states_[tensor].real =
          graph_.fresh_copy(state.node, state.meta->layout().strides);  // its value may turn out an argument's
    return real(tensor);
  }
  const ir::NodeId external = view_of(state.view_step, alias_of(state.base));
  const Event& event = trace_.events[analysis_.steps[state.view_step].event];
  return result_node(external, state.which, flat_results(event)[state.which], event);
}

ir::NodeId GraphBuilder::view_of(uint32_t step, ir::NodeId base) {
  if (const auto known = views_.find({step, base}); known != views_.end()) return known->second;
  const auto made = first_views_.find(step);
  if (made == first_views_.end()) {
    const ir::NodeId external = call(step, ir::ExternKind::View, base);
    first_views_.emplace(step, external);
    return views_[{step, base}] = external;
  }
  // What the view was given beside its base is as it was then.
  ir::ExternAttr attr = graph_.externs[graph_[made->second].attr];
  const CallTemplate same = capture.calls[attr.call];
  attr.operands[0] = base;
  attr.call = add_call(same);
  const ir::NodeId external = graph_.external(std::move(attr));
  return views_[{step, base}] = external;
}

ir::NodeId GraphBuilder::operand(const Use& use, const Event& event) {
  check_known(use, event);
  if (states_[use.tensor].mask != ir::kNoNode)
    unsound("result of aten::index depends on data at " + trace_.lines[event.line]);
  if (is_parted(use)) return graph_.with_strides(states_[use.tensor].node, states_[use.tensor].meta->layout().strides);
  return real(use.tensor);
}

// An operand of a product: a view is described, not made by a call; the planner aliases its memory.
ir::NodeId GraphBuilder::factor(const Use& use, const Event& event) {
  if (trace_.root(use.tensor)) input_node(use.tensor);
  const State& state = states_[use.tensor];
  const bool is_described = state.known && state.mask == ir::kNoNode && state.node != ir::kNoNode &&
                            state.view_step != kNone && state.real == ir::kNoNode &&
                            !(analysis_.pinned[use.storage] && is_written_later(use.storage));
  return is_described ? graph_.with_strides(state.node, state.meta->layout().strides) : operand(use, event);
}

ir::NodeId GraphBuilder::call(uint32_t index, ir::ExternKind kind, ir::NodeId first) {
  if (kind == ir::ExternKind::View) refuse_rounds_of(analysis_.steps[index].event);
  ir::ExternAttr attr = prepare(index, kind == ir::ExternKind::View ? Reads::Base : Reads::Tensors, first);
  attr.kind = kind;
  return graph_.external(std::move(attr));
}

// What a row has not made of the results, torch makes: operators that take a mask of their results are asked for these
// alone. False: this one takes none.
bool GraphBuilder::call_for_rest(uint32_t index, const std::vector<ir::NodeId>& made) {
  const Event& event = trace_.events[analysis_.steps[index].event];
  const auto mask = event.op->schema().argumentIndexWithName("output_mask");
  if (!mask || !event.args[static_cast<size_t>(*mask)].constant.isBoolList()) return false;
  const ir::NodeId node = call(index, ir::ExternKind::Op, ir::kNoNode);
  CallTemplate& rest = capture.calls[graph_.externs[graph_[node].attr].call];
  c10::IValue& asked = rest.args[static_cast<size_t>(*mask)];
  c10::List<bool> asked_for = asked.toBoolList().copy();
  const std::span<const Use> results = flat_results(event);
  for (uint32_t which = 0; which < made.size(); ++which) {
    const Use& use = results[which];
    if (use.tensor == kNone) continue;
    if (made[which] != ir::kNoNode) {
      asked_for.set(which, false);
      rest.results[which] = {};
      continue;
    }
    const ir::NodeId result = result_node(node, which, use, event);
    set_result(use, result, event, true);
    states_[use.tensor].real = result;
  }
  asked = std::move(asked_for);
  return true;
}

// Which of the generators that the call made this is.
std::optional<uint32_t> GraphBuilder::made_generator(const c10::IValue& value) const {
  if (!value.isGenerator()) return std::nullopt;
  const auto found = std::ranges::find(trace_.made_generators, value.toGenerator());
  if (found == trace_.made_generators.end()) return std::nullopt;
  return static_cast<uint32_t>(found - trace_.made_generators.begin());
}

// The template and the operands of a step. `first`, if given, stands for its first tensor.
// Whether the call is given a number that is known to differ from call to call: others are constants, with which more
// operators become kernels. The operator computes with it: one that would
// mean sizes or dims is none, and what it makes is compared with what the recorded call made.
bool GraphBuilder::takes_number(const Action& step, uint32_t arg, CallTemplate& made, ComputedNumbers& computed) {
  const ScalarBindings::Place* place = scalars_.find(step.event, arg);
  const Event& event = trace_.events[step.event];
  const bool makes = !first_tensor(event);  // of numbers alone: they may decide its size, as those of arange do
  if (!place || event.args[arg].kind != CallValue::Kind::Constant || event.facts.product || step.data_sized || makes)
    return false;
  c10::TypePtr type = event.op->schema().arguments()[arg].type();
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  const bool is_computed_with = type->kind() == c10::TypeKind::NumberType || type->kind() == c10::TypeKind::FloatType;
  if (!is_computed_with || kind_of(step) != ir::ExternKind::Op) return false;
  const auto& [number, name] = inputs_.scalars[place->scalar];
  if (const ir::NodeId node = number_node(place->scalar); node != ir::kNoNode) {
    if (!event.args[arg].constant.isDouble()) return false;
    computed.push_back({{arg, 0, true, name}, node});
    taken_.insert({step.event, arg});
    return true;
  }
  if (!trace_.varying.contains(place->scalar)) return false;
  const auto scalar = static_cast<uint32_t>(graph_[given_node(place->scalar)].attr);
  made.numbers.push_back({arg, scalar, bool(PyFloat_CheckExact(number)), name});
  given_.insert({step.event, arg});
  return true;
}

// The same of the elements of a list.
void GraphBuilder::take_list(const Action& step, uint32_t arg, CallTemplate& made, ComputedNumbers& computed) {
  const auto list = scalars_.lists.find({step.event, arg});
  if (list == scalars_.lists.end()) return;
  taken_lists_.insert(list->first);
  for (const auto& [element, place] : list->second) {
    if (is_settled(place.scalar)) continue;
    CallTemplate::NumberHole hole{arg, 0, true, inputs_.scalars[place.scalar].second, static_cast<int32_t>(element)};
    if (const ir::NodeId node = number_node(place.scalar); node != ir::kNoNode) {
      computed.emplace_back(std::move(hole), node);
    } else if (trace_.varying.contains(place.scalar)) {
      hole.scalar = static_cast<uint32_t>(graph_[given_node(place.scalar)].attr);
      made.numbers.push_back(std::move(hole));
    } else {
      baked_.insert(place.scalar);
    }
  }
}

ir::ExternAttr GraphBuilder::prepare(uint32_t index, Reads reads, ir::NodeId first) {
  const Action& step = analysis_.steps[index];
  const Event& event = trace_.events[step.event];
  CallTemplate made{*event.op, event.facts, {}, {}, {}};
  made.shape_from_metadata = reads == Reads::Base || shape_from_metadata(trace_, step.event);
  ir::ExternAttr attr;
  attr.name = event.name;
  attr.keeps_layout = event.facts.is(OpFlag::KeepsLayout);
  attr.gives_position = event.facts.is(OpFlag::Position);
  if (!takes_lazy(event)) attr.window = window_of(event);
  const std::unordered_set<uint32_t> writes(step.writes.begin(), step.writes.end());
  const bool is_described = reads == Reads::Factors || (reads == Reads::Tensors && reads_only_in_round(step));
  // What a view lies in is memory of its call.
  const auto constant = [&](const Use& use) {
    if (reads != Reads::Base || use.tensor == kNone || !made.holes.empty()) return number_of(use);
    if (use.number) unsound("a view of a number by " + where(trace_, event));
    return std::optional<c10::Scalar>();
  };
  auto fill = [&](uint32_t arg, int32_t item, const Use& use) {
    made.holes.push_back({arg, item});
    if (attr.operands.empty() && first != ir::kNoNode)
      attr.operands.push_back(first);
    else
      attr.operands.push_back(is_described ? factor(use, event) : operand(use, event));
    if (writes.contains(use.tensor)) attr.written.push_back(static_cast<uint32_t>(attr.operands.size() - 1));
  };
  const std::span<const Use> results = flat_results(event);
  const auto is_known = [&](const Use& use) { return use.tensor != kNone && states_[use.tensor].known; };
  const bool may_give = (reads == Reads::Base && std::ranges::all_of(results, is_known)) || takes_sizes(event.name) ||
                        listed_sizes(event) || is_on_sized_way(step.event);
  ComputedNumbers computed;
  for (uint32_t i = 0; i < event.args.size(); ++i) {
    const CallValue& item = event.args[i];
    if (scope_) add_size_holes(event, i, may_give, made);
    const bool may_take = reads == Reads::Tensors && takes_number(step, i, made, computed);
    take_list(step, i, made, computed);
    if (const ScalarBindings::Place* place = may_take ? nullptr : scalars_.find(step.event, i))
      if (!is_settled(place->scalar)) baked_.insert(place->scalar);
    if (item.kind == CallValue::Kind::Tensor) {
      const Use& use = item.uses[0];
      const auto number = constant(use);
      made.args.emplace_back(number ? number_tensor(use, *number) : at::Tensor());
      if (use.tensor != kNone && !number) fill(i, -1, use);
    } else if (item.kind == CallValue::Kind::TensorList || item.kind == CallValue::Kind::OptionalTensorList) {
      c10::List<at::Tensor> plain;
      c10::List<std::optional<at::Tensor>> optional;
      for (uint32_t k = 0; k < item.uses.size(); ++k) {
        const Use& use = item.uses[k];
        const auto number = constant(use);
        plain.push_back(number ? number_tensor(use, *number) : at::Tensor());
        optional.push_back(number ? std::optional(plain.get(k)) : std::nullopt);
        if (use.tensor != kNone && !number) fill(i, static_cast<int32_t>(k), use);
      }
      made.args.emplace_back(item.kind == CallValue::Kind::TensorList ? c10::IValue(plain) : c10::IValue(optional));
    } else if (const auto which = made_generator(item.constant)) {
      made.args.emplace_back();
      made.made_generators.push_back({i, *which});
    } else {
      made.args.push_back(item.constant);
    }
  }
  for (auto& [hole, node] : computed) {
    hole.operand = static_cast<int32_t>(attr.operands.size());
    made.numbers.push_back(std::move(hole));
    attr.operands.push_back(node);
  }
  for (const Use& use : results)
    made.results.push_back(is_on_sized_way(step.event) && use.tensor != kNone ? foretold(use, event) : use.meta);
  if (event.casts != trace_.casts) made.casts = event.casts;
  made.with_grad_mode = event.grad && event.facts.is(OpFlag::AsksGradMode);
  made.by_data = step.data_sized;
  made.makes_new = std::ranges::none_of(results, [&](const Use& use) {
    return std::ranges::any_of(event.args, [&](const CallValue& item) {
      return std::ranges::any_of(item.uses, [&](const Use& arg) { return arg.storage == use.storage; });
    });
  });
  for (const Use& use : results) {
    uint64_t dims = use.tensor != kNone && step.data_sized ? trace_.dims_of(use.tensor, step.event) : 0;
    const bool may_differ = dims && scope_ && analysis_.data_sizes != DataSizes::Found;  // by sizes of arguments
    if (use.tensor != kNone && (is_workspace(use, event) || may_differ)) dims = ~uint64_t{0};
    made.data_dims.push_back(dims);
  }
  if (std::ranges::all_of(made.data_dims, [](uint64_t dims) { return dims == 0; })) made.data_dims.clear();
  made.makes_no_view = made.holes.empty() && std::ranges::none_of(results, [](const Use& use) { return use.view; });
  for (const CallTemplate::NumberHole& hole : made.numbers)
    if (hole.operand < 0 && graph_.scalars[hole.scalar].size.is_symbolic()) attr.sizes.push_back(hole.scalar);
  attr.outputs = static_cast<uint32_t>(results.size());
  attr.call = add_call(std::move(made));
  return attr;
}

}  // namespace fastjit::capture
