// The walk over the chosen steps: values, lowering, provenance.
#include "capture/build/build.h"

#include <algorithm>

#include "capture/build/gradients.h"
#include "capture/build/way_sizes.h"
#include "capture/record/effects.h"
#include "support/work.h"

namespace fastjit::capture {
namespace {

// `out=` of no element, which one call gives its sizes: nothing else in the program may have seen it without them.
bool is_sized_by_one_call(const Analysis& analysis, const Source& root, const Use& now) {
  if (root.argument == kNone || c10::multiply_integers(root.before.meta->sizes) != 0) return false;
  if (now.meta->dtype != root.before.meta->dtype || now.storage != root.before.storage) return false;
  size_t calls = 0;
  for (const Action& step : analysis.steps) {
    if (step.reads_value) return false;  // what a value undoes is contents, not sizes
    const bool touches = std::ranges::any_of(
        step.reads, [&](uint32_t tensor) { return analysis.storage[tensor] == root.before.storage; });
    if (touches && (++calls > 1 || std::ranges::find(step.writes, root.before.tensor) == step.writes.end()))
      return false;
  }
  return calls == 1;
}

void check_roots(Trace& trace, const Analysis& analysis) {
  std::vector<char> written(trace.storages.size(), 0);
  for (const Action& step : analysis.steps)
    for (uint32_t tensor : step.writes) written[analysis.storage[tensor]] = 1;
  for (size_t i = 0; i < trace.roots.size(); ++i) {
    const Source& root = trace.roots[i];
    if (const std::string& why = trace.tensors[root.before.tensor].unusual; !why.empty())
      unsound(root.name + " " + why);  // nothing is known of its memory
    const Use now = trace.use(root.tensor);
    if (now.requires_grad != root.before.requires_grad)
      unsound("requires_grad of " + root.name + " changed during the call");
    if (now.meta->sizes != root.before.meta->sizes && is_sized_by_one_call(analysis, root, now)) continue;
    if (now.meta->dtype != root.before.meta->dtype || now.meta->sizes != root.before.meta->sizes ||
        now.meta->strides != root.before.meta->strides || now.offset != root.before.offset ||
        now.storage != root.before.storage)
      unsound("metadata of " + root.name + " changed during the call");
    const auto data = reinterpret_cast<uintptr_t>(root.tensor.unsafeGetTensorImpl()->unsafe_storage().data());
    if (data != trace.storages[now.storage].begin) unsound("memory of " + root.name + " was replaced during the call");
    if (now.version != root.before.version && !written[now.storage])
      unsound(root.name + " was written outside recorded operators");
  }
}

void check_leaves(const Trace& trace, const std::vector<Use>& leaves) {
  for (const Use& leaf : leaves) {
    const TensorRecord& record = trace.tensors[leaf.tensor];
    const std::string why = record.is_nested ? "is nested" : record.lazy ? kLazy : record.unusual;
    if (!why.empty()) unsound("a result " + why);
  }
}

/// Python raises for some operands, or gives no float.
bool may_raise(NumberOp::Kind kind) {
  return kind == NumberOp::Kind::Div || kind == NumberOp::Kind::Pow || kind == NumberOp::Kind::Sqrt;
}

/// Torch refuses negative sizes, also of what nobody reads.
void ask_for_sizes(const ir::Graph& graph) {
  if (!graph.symbols) return;
  for (const ir::Layout& layout : graph.layouts)
    for (const ir::Dim size : layout.sizes)
      if (size.is_symbolic()) static_cast<void>(size < 0);
}

}  // namespace

// Whether torch may run the outermost operator as it is, of which some numbers differ from call to call.
static bool runs_whole(const Trace& trace, const ScalarBindings& scalars, uint32_t index) {
  const Event& event = trace.events[index];
  const auto varies = [&](const auto& entry) {
    return entry.first.first == index && trace.varying.contains(entry.second.scalar);
  };
  if (event.parent != kNone || !std::ranges::any_of(scalars.places, varies)) return false;
  for (uint32_t nested = index; nested < event.end; ++nested) {
    const OpFacts& facts = trace.events[nested].facts;
    const bool is_plain = facts.effect == Effect::None || facts.effect == Effect::Metadata;
    if (!is_plain || facts.is(OpFlag::Lifts) || facts.is(OpFlag::SizedByData)) return false;
  }
  return true;
}

// Writes through Tensor.data move no counter of the tensor: a store of the program does that, a call of torch's does
// not.
static void check_counts(const Trace& trace, const Analysis& analysis) {
  if (trace.data_read.empty()) return;
  std::unordered_set<uint32_t> before;
  for (const Source& root : trace.roots) before.insert(root.before.storage);
  for (const Action& step : analysis.steps)
    for (const uint32_t tensor : step.writes) {
      const uint32_t storage = analysis.storage[tensor];
      if (trace.data_read.contains(storage) && before.contains(storage) && analysis.pinned[storage])
        written_past_count(trace, trace.events[step.event]);
    }
}

static Capture try_build(Trace& trace, const CallInputs& inputs, const std::vector<at::Tensor>& outputs,
                         const std::vector<uint32_t>& values, const std::vector<bool>& symbolic,
                         plan::Numerics numerics, DataSizes data_sizes) {
  Capture failed;
  try {
    if (!trace.broken.empty()) unsound(trace.broken);
    if (inputs.adopt_unknown) adopt_unknown(trace);
    std::vector<Use> leaves;
    for (const at::Tensor& tensor : outputs) leaves.push_back(trace.use(tensor));
    if (trace.derivative)
      for (const at::Tensor& gradient : trace.derivative->gradients) leaves.push_back(trace.use(gradient, true));
    const Gradients gradients = judge_gradients(trace, leaves, outputs.size());
    if (!gradients.unsound.empty()) unsound(gradients.unsound);
    std::set<uint32_t> whole;  // see select_steps
    bool may_run_whole = true;
    Analysis analysis = select_steps(trace, leaves, data_sizes, whole);
    check_roots(trace, analysis);
    check_leaves(trace, leaves);
    ScalarBindings scalars = bind_scalars(trace, inputs, symbolic);
    Forced forced;
    for (;;) {
      pin_storages(trace, analysis, forced);
      check_counts(trace, analysis);
      GraphBuilder builder(trace, inputs, analysis, scalars, numerics);
      std::string again;
      try {
        again = builder.run(leaves, values);
      } catch (const NotParted& parts) {
        if (!forced.storages.insert(parts.storage).second)
          unsound("a write to a part of a tensor could not be expressed");
        continue;
      } catch (const ReadsFar& far) {
        analysis.far_reads.insert(far.reads);
        continue;
      } catch (const Unsound&) {
        if (scalars.places.empty()) throw;
        if (whole.empty()) scalars.refuse_all();  // constants may do
        may_run_whole = false;
        whole.clear();
        analysis = select_steps(trace, leaves, data_sizes, whole);
        continue;
      }
      if (!again.empty()) {
        if (!forced.operators.insert(again).second)
          unsound("the in-place operator " + again + " could not be expressed");
        continue;
      }
      std::set<uint32_t> events;
      const std::set<uint32_t> constant = builder.constant_scalars(events);
      if (constant.empty()) {
        builder.tell_fixed();
        builder.capture.way = numbers_of_way(trace, inputs, scalars).way;
        builder.capture.without_grad = gradients.suspended;
        builder.capture.in_inference_mode = gradients.inference;
        builder.capture.view_creations = gradients.creations;
        return std::move(builder.capture);
      }
      std::erase_if(events,
                    [&](uint32_t event) { return whole.contains(event) || !runs_whole(trace, scalars, event); });
      if (may_run_whole && !events.empty()) {
        whole.merge(events);
        analysis = select_steps(trace, leaves, data_sizes, whole);
        continue;
      }
      scalars.refuse(constant);
    }
  } catch (const Unsound& reason) {
    failed.unsound = reason.why;
  }
  return failed;
}

// Whether some sizes that might have been symbols are for one value only.
static bool narrows(const Capture& capture) { return !capture.graph.symbols->fixed().empty(); }

static bool is_told(const Capture& capture, const std::string& why) {
  return std::ranges::find(capture.fixed_sizes, why) != capture.fixed_sizes.end();
}

// The call with sizes that its runs find. Nothing: they cannot.
static std::optional<Capture> find_sizes(Trace& trace, const CallInputs& inputs, const std::vector<at::Tensor>& outputs,
                                         const std::vector<uint32_t>& values, const std::vector<bool>& symbolic,
                                         plan::Numerics numerics) {
  const bool goes_back = trace.derivative || std::ranges::any_of(trace.events, is_backward);
  if (!inputs.finds_sizes || goes_back || !trace.device.is_cpu() || !trace.loops.empty()) return std::nullopt;
  Capture found = try_build(trace, inputs, outputs, values, symbolic, numerics, DataSizes::Found);
  if (!found.unsound.empty() || narrows(found)) return std::nullopt;
  if (found.graph.symbols->empty()) found.graph.symbols = nullptr;  // there were none, or one
  return found;
}

// What is fixed is a number, and what cannot be expressed so may be with numbers.
static Capture narrowed(Capture capture, Trace& trace, const CallInputs& inputs, const std::vector<at::Tensor>& outputs,
                        const std::vector<uint32_t>& values, const std::vector<bool>& symbolic,
                        plan::Numerics numerics) {
  CallInputs narrower = inputs;
  if (!capture.unsound.empty()) {
    narrower.free_sizes.clear();
    narrower.free_ints.clear();
    capture.fixed_sizes.push_back("with sizes of the call, " + capture.unsound);
  }
  narrower.fixed_strides.resize(inputs.free_sizes.size(), 0);
  if (capture.unsound.empty())
    for (const auto& [symbol, place] : capture.graph.symbols->fixed()) {
      const auto& [argument, dim, is_stride] = capture.symbols[symbol];
      if (argument == SizeSymbol::kNumber)
        narrower.free_ints[dim] = false;
      else if (is_stride)
        narrower.fixed_strides[argument] |= uint64_t{1} << dim;
      else
        narrower.free_sizes[argument] &= ~(uint64_t{1} << dim);
    }
  if (std::ranges::all_of(narrower.free_sizes, [](uint64_t mask) { return mask == 0; })) narrower.free_sizes.clear();
  if (std::ranges::none_of(narrower.free_ints, std::identity{})) narrower.free_ints.clear();
  Capture narrow = build(trace, narrower, outputs, values, symbolic, numerics);
  std::erase_if(capture.fixed_sizes, [&](const std::string& why) { return is_told(narrow, why); });
  narrow.fixed_sizes.insert(narrow.fixed_sizes.begin(), capture.fixed_sizes.begin(), capture.fixed_sizes.end());
  return narrow;
}

// Over the domain of a mask such work is one kernel; what cannot be expressed so has sizes that a run finds, or torch
// runs it.
Capture build(Trace& trace, const CallInputs& inputs, const std::vector<at::Tensor>& outputs,
              const std::vector<uint32_t>& values, const std::vector<bool>& symbolic, plan::Numerics numerics) {
  Capture capture = try_build(trace, inputs, outputs, values, symbolic, numerics, DataSizes::Masked);
  const bool has_data_sizes = trace.makes_data_sizes && !inputs.adopt_unknown;
  if (!capture.unsound.empty() && has_data_sizes)
    if (auto found = find_sizes(trace, inputs, outputs, values, symbolic, numerics)) return std::move(*found);
  if (inputs.for_any_size() && (!capture.unsound.empty() || (capture.graph.symbols && narrows(capture))))
    return narrowed(std::move(capture), trace, inputs, outputs, values, symbolic, numerics);
  if (capture.unsound.empty() && !capture.graph.traced.empty() && !inputs.takes_any_trip(capture)) {
    CallInputs straight = inputs;
    straight.takes_any_trip = nullptr;
    return build(trace, straight, outputs, values, symbolic, numerics);
  }
  if (capture.unsound.empty() || !has_data_sizes) return capture;
  Capture other = try_build(trace, inputs, outputs, values, symbolic, numerics, DataSizes::ByTorch);
  return other.unsound.empty() ? std::move(other) : std::move(capture);
}

GraphBuilder::GraphBuilder(const Trace& trace, const CallInputs& inputs, const Analysis& analysis,
                           const ScalarBindings& scalars, plan::Numerics numerics)
    : trace_(trace),
      inputs_(inputs),
      analysis_(analysis),
      scalars_(scalars),
      numerics_(numerics),
      graph_(capture.graph),
      traced_(trace.loops.size(), ir::TracedRound::kNone),
      states_(trace.tensors.size()),
      far_reads_(analysis.far_reads) {
  for (const auto& [event, scalar] : trace.value_scalars) read_.insert(scalar);
  if (inputs.for_any_size()) way_ = std::make_unique<WaySizes>(trace, inputs, scalars);
  free_sizes();
  place_sizes();
  if (scope_ && way_) way_->set_symbols(capture.symbols);
  if (!scope_ || (way_ && !way_->is_gone())) way_.reset();
  if (way_) bind_sizes();
}

std::string GraphBuilder::run(const std::vector<Use>& outputs, const std::vector<uint32_t>& values) {
  capture.bound_scalars = scalars_.bound;
  for (const auto& [number, how] : trace_.size_numbers)
    if (how.is_given && !free_ints_.contains(number)) capture.bound_scalars[number] = false;
  refuse_effects_before_values();
  for (const Use& output : outputs) given_away_.insert(analysis_.storage[output.tensor]);
  for (uint32_t i = 0; i < analysis_.steps.size(); ++i) {
    const Action& step = analysis_.steps[i];
    const Event& event = trace_.events[step.event];
    if (scope_) graph_.symbols->at(step.event);
    begin_step(event);
    support::count_work(1 + event.args.size());
    first_nodes_.push_back(static_cast<ir::NodeId>(graph_.nodes.size()));
    begin_way_back(step.event, outputs);
    if (gives_share(event) || gives_slice(event) || makes_pieces(event)) continue;
    for (const CallValue& item : event.args)
      for (const Use& use : item.uses) meet(use, event);
    enter(event);
    if (step.rebinds && !pinned(step)) {
      if (!rebind(step) || (step.exact && !is_exact(states_[event.args[step.target].uses[0].tensor].node)))
        return std::string(event.name);
      check_writes(step);
      continue;
    }
    emit(i);
    check_writes(step);
    begin_parts(step);
  }
  first_nodes_.push_back(static_cast<ir::NodeId>(graph_.nodes.size()));
  graph_.set_line(0);
  graph_.ask_in();
  is_settling_ = true;
  for (const Use& use : outputs)
    if (const auto part = parts_.find(use.tensor); part != parts_.end()) fix_loop(part->second.loop);
  round_ = {};
  for (const Use& output : outputs) {
    settle_pieces(output);
    check_moves(output);
  }
  settle_parts(outputs);
  add_stores();
  end_way_back(outputs);
  add_outputs(outputs);
  add_derivative(outputs);
  for (uint32_t value : values) {
    if (trace_.size_numbers.contains(value)) {
      give_size(value);
      continue;
    }
    const ir::NodeId node = number_node(value);
    if (node == ir::kNoNode) continue;  // a guard says what it is
    graph_.outputs.push_back(trace_.device.is_cpu() ? graph_.fresh_copy(node, {}) : node);
    capture.result_values.push_back(value);
  }
  for (const auto& [number, computed] : trace_.computed)
    if (may_raise(computed.op.kind)) number_node(number);  // whether or not anybody reads it
  ask_for_sizes(graph_);
  fix_sizes_read();
  settle_size_numbers();
  settle_copies();
  take_free_arguments();
  limit_scalars();
  refuse_undefined();
  mark_checkpoints();
  if (const std::string wrong = ir::verify(graph_); !wrong.empty())
    unsound("the capture is not a legal graph: " + wrong);
  return {};
}

// The operator at hand finds it as the call has it now.
void GraphBuilder::meet(const Use& use, const Event& event) {
  settle_pieces(use);
  check_known(use, event);
  check_moves(use);
  refresh(use);
  take_part(use);
}

bool GraphBuilder::is_pinned_at(const Action& step, uint32_t tensor) const {
  const uint32_t storage = analysis_.storage[tensor];
  return analysis_.pinned[storage] != 0 && &step - analysis_.steps.data() <= analysis_.last_write[storage];
}

bool GraphBuilder::pinned(const Action& step) const {
  auto is_pinned = [&](uint32_t tensor) { return is_pinned_at(step, tensor); };
  return std::ranges::any_of(step.reads, is_pinned) || std::ranges::any_of(step.results, is_pinned);
}

// A view of all of it, which stands for the storage's memory too.
ir::NodeId GraphBuilder::alias_of(ir::NodeId memory, const SharedMeta& meta, uint32_t storage) {
  const ir::NodeId alias = run("aten::alias", "", {{memory}}, meta, ir::ExternKind::View);
  owner_.try_emplace(alias, storage);
  return alias;
}

// A view taken after the last write: fused code reads that, and so depends on every write before it.
ir::NodeId GraphBuilder::settled(uint32_t tensor) {
  State& state = states_[tensor];
  if (state.settled) return state.node;
  const ir::NodeId memory = real(tensor);
  state.node = alias_of(memory, state.meta, analysis_.storage[tensor]);
  state.settled = true;
  return state.node;
}

bool GraphBuilder::takes_lazy(const Event& event) const {
  return std::ranges::any_of(event.args, [&](const CallValue& item) {
    return std::ranges::any_of(item.uses, [&](const Use& use) { return is_lazy(trace_, use); });
  });
}

// Takes or gives elements that no kernel computes with: of other types, or with a sign that is not in memory.
bool GraphBuilder::is_raw(const Event& event) const {
  for (const auto* items : {&event.args, &event.results})
    for (const CallValue& item : *items)
      for (const Use& use : item.uses)
        if (use.tensor != kNone && (!to_ir(use.meta->dtype) || is_lazy(trace_, use))) return true;
  return false;
}

// A kernel makes what torch's calls write to later: memory that is this tensor's from then on. What the call returns
// is made by torch, since a tensor's base can be seen. False: torch makes it.
bool GraphBuilder::begin_memory(const Action& step) {
  const Event& event = trace_.events[step.event];
  const std::span<const Use> results = flat_results(event);
  const bool is_one = step.writes.empty() && step.row && step.results.size() == 1 && results.size() == 1 &&
                      results[0].tensor == step.results[0];
  if (!is_one || !analysis_.pinned[results[0].storage] || given_away_.contains(results[0].storage) ||
      mask_of(event) != ir::kNoNode || trace_.is_on_host(results[0]))
    return false;
  const auto is_beside = [&](uint32_t tensor) {
    return !is_pinned_at(step, tensor) && analysis_.storage[tensor] != results[0].storage;
  };
  if (!std::ranges::all_of(step.reads, is_beside) || !lower(step)) return false;
  State& state = states_[results[0].tensor];
  if (state.node == ir::kNoNode || (step.exact && !is_exact(state.node))) return false;
  const std::vector<ir::Dim> strides = state.meta->layout().strides;
  const ir::NodeId memory = graph_.fresh_copy(graph_.with_strides(state.node, strides), strides);
  state.node = state.real = alias_of(memory, state.meta, results[0].storage);  // a value stays
  return true;
}

void GraphBuilder::emit(uint32_t index) {
  const Action& step = analysis_.steps[index];
  const Event& event = trace_.events[step.event];
  if (event.facts.is(OpFlag::Lifts)) {
    const ScalarBindings::Place* number = scalars_.find(step.event, 0);
    const Use& made = event.args[0].uses[0];
    const Use& result = flat_results(event)[0];
    if (trace_.is_on_host(result)) return set_result(result, lifted_on_host(made, event), event, true);
    const auto converted = [&] { return graph_.convert(scalar_node(number->scalar), *to_ir(made.meta->dtype)); };
    if (number) taken_.insert({step.event, 0});
    set_result(result, number ? converted() : value(made, event).node, event);
    return;
  }
  if (step.reads_value) return guard(index);
  if (step.reshapes) return reshape(step);
  if (step.data_sized || is_on_host(step)) return external(index);
  if (is_raw(event)) {
    if (is_masked_load(event) || mask_of(event) != ir::kNoNode)
      unsound("result of aten::index depends on data at " + trace_.lines[event.line]);
    return external(index);
  }
  if (allocate(step)) return;
  if (begin_memory(step)) return;
  const bool fusible = step.writes.empty() && !pinned(step);
  if (is_masked_load(event)) return masked_load(step);
  if (masked_store_in_place(step)) return;
  if (fusible && masked(step)) return;
  if (fusible && step.row && lower(step) && (!step.exact || results_exact(step))) {
    // Lowered views remember how eager made them.
    const std::span<const Use> results = flat_results(event);
    for (uint32_t which = 0; which < results.size(); ++which) {
      const Use& use = results[which];
      const bool aliases = !event.args.empty() && event.args[0].kind == CallValue::Kind::Tensor &&
                           use.tensor != kNone && event.args[0].uses[0].storage == use.storage;
      if (!aliases) continue;
      State& state = states_[use.tensor];
      state.view_step = index;
      state.base = event.args[0].uses[0].tensor;
      state.which = which;
      if (is_parted(use)) follow_view(event.args[0].uses[0], use);
    }
    return;
  }
  external(index);
}

void GraphBuilder::reshape(const Action& step) {
  const Event& event = trace_.events[step.event];
  const Use& made = flat_results(event)[0];
  const auto is_of_it = [&](const auto& number) { return number.second.tensor == made.tensor; };
  if (scope_ && graph_.symbols->late_count() > 0 && std::ranges::any_of(trace_.size_numbers, is_of_it))
    unsound("sizes were read of a tensor whose shape was changed in place: " + where(trace_, event));
  std::vector<ir::NodeId> out;
  if (pinned(step) || is_parted(made) || mask_of(event) != ir::kNoNode ||
      !call_lowering(step, arguments(event), {made.meta}, false, out))
    unsound("shape of a tensor was changed in place: " + where(trace_, event));
  set_result(made, out[0], event);
}

// A tensor looks as it did when the trace last saw it, or an operator made it otherwise.
void GraphBuilder::check_known(const Use& use, const Event& event) {
  if (use.tensor == kNone || use.number) return;
  State& state = states_[use.tensor];
  if (!state.known && trace_.root(use.tensor)) {
    const Use& before = trace_.root(use.tensor)->before;
    state.meta = meta_of(before);
    state.known = true;
  }
  if (!state.known) unsound("a tensor of unknown origin was used by " + where(trace_, event));
  if (state.meta->dtype != use.meta->dtype || state.meta->sizes != use.meta->sizes ||
      state.meta->strides != use.meta->strides || analysis_.storage[use.tensor] != use.storage)
    unsound("metadata of a tensor changed without an operator before " + where(trace_, event));
}

void GraphBuilder::set_compressed(const Use& use, ir::NodeId node, ir::NodeId mask) {
  State& state = states_[use.tensor];
  state = State{};
  state.known = true;
  state.meta = use.meta;
  state.node = node;
  state.mask = mask;
}

// `by_torch`: the node is what torch gives there, with its layout.
void GraphBuilder::set_result(const Use& use, ir::NodeId node, const Event& event, bool by_torch) {
  SharedMeta meta = by_torch && scope_ ? with_layout(use.meta, graph_.layout(node)) : computed(use, node, event);
  State& state = states_[use.tensor];
  state = State{};
  state.known = true;
  state.meta = std::move(meta);
  state.node = node;
}

ir::NodeId GraphBuilder::input_node(uint32_t tensor) {
  State& state = states_[tensor];
  if (auto made = input_nodes_.find(tensor); made != input_nodes_.end()) return made->second;
  const Source& root = *trace_.root(tensor);
  const std::optional<ir::DType> dtype = memory_type(root.before.meta->dtype);
  if (!dtype) unsound(root.name + " has type " + c10::toString(root.before.meta->dtype));
  const ir::NodeId node = graph_.input(*dtype, meta_of(root.before)->layout(), {root.name, false});
  if (root.gradient != kNone) {
    capture.inputs.push_back({InputSource::Kind::Gradient, root.gradient});
  } else if (root.argument != kNone) {
    capture.inputs.push_back({InputSource::Kind::Argument, root.argument});
  } else {
    capture.inputs.push_back({InputSource::Kind::Captured, static_cast<uint32_t>(capture.captured.size())});
    capture.captured.push_back(root.object);
    if (root.constant) capture.constants.push_back(root.tensor);
  }
  state.meta = meta_of(root.before);
  state.known = true;
  state.node = state.real = node;
  input_nodes_.emplace(tensor, node);
  owner_[node] = root.before.storage;
  return node;
}

Value GraphBuilder::value(const Use& use, const Event& event) {
  if (use.tensor == kNone) return {};
  Value out{ir::kNoNode, meta_of(use)};
  if (use.number) {
    if (const auto dtype = to_ir(use.meta->dtype)) {
      if (ir::is_half(*dtype))
        out.node = graph_.convert(graph_.constant(ir::DType::F32, use.number->toDouble()), *dtype);
      else if (ir::is_floating(*dtype))
        out.node = graph_.constant(*dtype, use.number->toDouble());
      else
        out.node = graph_.constant_int(*dtype, use.number->isBoolean() ? use.number->toBool() : use.number->toLong());
      if (!use.meta->sizes.empty()) out.node = graph_.expand(out.node, use.meta->layout().sizes);
    }
    return out;
  }
  if (trace_.root(use.tensor)) input_node(use.tensor);
  const State& state = states_[use.tensor];
  if (!state.known) unsound("a tensor of unknown origin was used by " + where(trace_, event));
  out.meta = meta_of(use);
  // Views of settled memory are values of their own; what was real before the last write is looked at again.
  const bool was_real = state.real != ir::kNoNode && analysis_.pinned[use.storage];
  out.node = was_real ? settled(use.tensor) : state.node;
  return out;
}

std::vector<Arg> GraphBuilder::arguments(const Event& event) {
  std::vector<Arg> args(event.args.size());
  for (size_t i = 0; i < args.size(); ++i) {
    const CallValue& item = event.args[i];
    switch (item.kind) {
      case CallValue::Kind::None:
        break;
      case CallValue::Kind::Tensor:
        if (item.uses[0].tensor == kNone) break;
        args[i].kind = Arg::Kind::Tensor;  // a number may turn out to be a size, and its constant would be left over
        args[i].tensor =
            scope_ && item.uses[0].number ? Value{ir::kNoNode, item.uses[0].meta} : value(item.uses[0], event);
        break;
      case CallValue::Kind::TensorList:
      case CallValue::Kind::OptionalTensorList:
        args[i].kind = Arg::Kind::TensorList;
        for (const Use& use : item.uses) args[i].list.push_back(value(use, event));
        std::tie(args[i].length, args[i].reversed) = listed(static_cast<uint32_t>(&event - trace_.events.data()), item);
        break;
      case CallValue::Kind::Constant:
        args[i].kind = Arg::Kind::Constant;
        args[i].constant = item.constant;
        break;
    }
    const auto at = static_cast<uint32_t>(i);
    if (!scope_ || !give_round_number(event, at, args[i])) {
      if (scope_) give_sizes(event, at, args[i]);
      give_number(event, at, args[i]);
    }
    const bool is_number = item.kind == CallValue::Kind::Tensor && item.uses[0].number;
    if (is_number && args[i].tensor.node == ir::kNoNode) args[i].tensor = value(item.uses[0], event);
  }
  return args;
}

// A number of Python's that differs from call to call.
void GraphBuilder::give_number(const Event& event, uint32_t i, Arg& arg) {
  const auto index = static_cast<uint32_t>(&event - trace_.events.data());
  const CallValue& item = event.args[i];
  const ScalarBindings::Place* place = scalars_.find(index, i);
  if (!place) return;
  if (is_settled(place->scalar)) return static_cast<void>(taken_.insert({index, i}));
  if (trace_.size_numbers.contains(place->scalar) && size_node(size_of(place->scalar), event, item) == ir::kNoNode)
    return;
  (item.kind == CallValue::Kind::Tensor ? arg.tensor.node : arg.scalar) = scalar_node(place->scalar);
}

// The value of a number that the program finds out as it runs; kNoNode: it is given, or guarded.
ir::NodeId GraphBuilder::number_node(uint32_t scalar) {
  if (const auto known = value_nodes_.find(scalar); known != value_nodes_.end()) return known->second;
  const auto computed = trace_.computed.find(scalar);
  if (computed == trace_.computed.end() || !scalars_.bound[scalar] || is_settled(scalar)) return ir::kNoNode;
  NumberOp op = computed->second.op;
  ir::ExternAttr attr;
  attr.kind = ir::ExternKind::Number;
  attr.name = op.label;
  using From = NumberOp::Operand::From;
  for (size_t i = 0; i < op.operands.size(); ++i) {
    NumberOp::Operand& operand = op.operands[i];
    if (operand.from == From::Constant) continue;
    const auto which = static_cast<uint32_t>(computed->second.operands[i]);
    if (const ir::NodeId node = number_node(which); node != ir::kNoNode) {
      attr.operands.push_back(node);
    } else if (trace_.size_numbers.contains(which) && !is_settled(which)) {
      const ir::Dim size = size_of(which);
      if (op.kind == NumberOp::Kind::Pow) static_cast<void>(ir::Dim(0) < size);  // of others Python makes other types
      operand.from = From::Int;
      operand.scalar = static_cast<uint32_t>(graph_[graph_.size(size)].attr);
      attr.sizes.push_back(operand.scalar);
    } else if (is_given(which)) {
      operand.from = PyFloat_CheckExact(inputs_.scalars[which].first) ? From::Float : From::Int;
      operand.scalar = static_cast<uint32_t>(graph_[given_node(which)].attr);
    } else {
      operand.from = From::Constant;  // a guard says that it has this value
    }
  }
  attr.call = static_cast<uint32_t>(capture.numbers.size());
  number_ops_.emplace(scalar, attr.call);
  capture.numbers.push_back(std::move(op));
  return value_nodes_[scalar] = graph_.result(graph_.external(std::move(attr)), 0, ir::DType::F64, {});
}

// A number that a call has before its program runs, and that differs from call to call.
bool GraphBuilder::is_given(uint32_t scalar) const {
  return scalars_.bound[scalar] && !trace_.computed.contains(scalar) && !read_.contains(scalar) &&
         !trace_.size_numbers.contains(scalar);
}

ir::NodeId GraphBuilder::given_node(uint32_t scalar) {
  const auto [it, fresh] = scalar_nodes_.try_emplace(scalar, ir::kNoNode);
  if (fresh) {
    const auto& [object, name] = inputs_.scalars[scalar];
    it->second = graph_.scalar(PyFloat_CheckExact(object) ? ir::DType::F64 : ir::DType::I64, {name, true});
    capture.scalar_args.push_back(scalar);
    capture.scalar_limits.push_back(std::numeric_limits<double>::infinity());
  }
  return it->second;
}

ir::NodeId GraphBuilder::scalar_node(uint32_t scalar) {
  if (trace_.size_numbers.contains(scalar)) return graph_.size(size_of(scalar));
  const ir::NodeId node = number_node(scalar);
  return node == ir::kNoNode ? given_node(scalar) : on_device(node);
}

// What kernels compute with is converted to a tensor's type, as eager does with a check.
void GraphBuilder::limit_scalars() {
  for (uint32_t i = 0; i < graph_.scalars.size(); ++i) {
    if (!graph_.scalars[i].size.is_symbolic()) continue;
    capture.scalar_args.insert(capture.scalar_args.begin() + i, Capture::kSize);
    capture.scalar_limits.insert(capture.scalar_limits.begin() + i, std::numeric_limits<double>::infinity());
  }
  const auto keep_within = [&](const ScalarBindings::Place& place) {
    const auto op = number_ops_.find(place.scalar);
    if (op == number_ops_.end() && !scalar_nodes_.contains(place.scalar)) return;
    double& limit = op != number_ops_.end() ? capture.numbers[op->second].limit
                                            : capture.scalar_limits[graph_[scalar_nodes_[place.scalar]].attr];
    limit = std::min(limit, place.limit);
  };
  for (const auto& at : taken_) keep_within(scalars_.places.at(at));
  for (const auto& at : taken_lists_)
    for (const auto& [element, place] : scalars_.lists.at(at)) keep_within(place);
}

std::set<uint32_t> GraphBuilder::constant_scalars(std::set<uint32_t>& events) const {
  std::set<uint32_t> out = baked_;
  for (const auto& [at, place] : scalars_.places) {
    if (taken_.contains(at) || given_.contains(at)) continue;
    out.insert(place.scalar);
    events.insert(at.first);
  }
  for (const auto& [at, elements] : scalars_.lists)
    for (const auto& [element, place] : elements)
      if (!taken_lists_.contains(at)) out.insert(place.scalar);
  return out;
}

// Runs the row and checks what it says against what eager gave. False: this call is not for the row.
bool GraphBuilder::call_lowering(const Action& step, const std::vector<Arg>& args,
                                 const std::vector<TensorMeta>& results, bool any_type, std::vector<ir::NodeId>& out) {
  const uint32_t walker = walker_of(step.event);
  LowerCall call{graph_, step.row->op, args, results, numerics_, {}, walker != kNone, &picked_};
  try {
    if (step.row->level != Level::Lowered || !step.row->fn(call)) return false;
  } catch (const std::invalid_argument&) {  // the graph refused a shape or a type
    return false;
  }
  if (call.out.size() != results.size()) return false;
  for (size_t i = 0; i < results.size(); ++i) {
    if (call.out[i] == ir::kNoNode) continue;
    const auto dtype = to_ir(results[i].dtype);
    if (!any_type && (!dtype || graph_[call.out[i]].dtype != *dtype)) return false;
    if (ir::hints(graph_.sizes(call.out[i])) != results[i].sizes) return false;
  }
  out = std::move(call.out);
  if (walker != kNone) note_parts(walker, trace_.events[step.event], args[0].tensor.node);
  take_scalars(trace_.events[step.event], args, out);
  return true;
}

// A number that no result is computed from may still decide about sizes, or be checked by torch: it is a constant.
void GraphBuilder::take_scalars(const Event& event, const std::vector<Arg>& args, const std::vector<ir::NodeId>& out) {
  if (scalars_.places.empty() && !scope_) return;
  const auto index = static_cast<uint32_t>(&event - trace_.events.data());
  std::set<ir::NodeId> operands, used;
  std::vector<ir::NodeId> todo = out;
  for (const Arg& arg : args) {
    operands.insert(arg.tensor.node);
    for (const Value& value : arg.list) operands.insert(value.node);
  }
  while (!todo.empty()) {
    const ir::NodeId id = todo.back();
    todo.pop_back();
    if (id == ir::kNoNode || !used.insert(id).second || operands.contains(id)) continue;
    for (ir::NodeId operand : graph_.operands(id)) todo.push_back(operand);
  }
  for (uint32_t i = 0; i < args.size(); ++i)
    if (scalars_.find(index, i) && used.contains(args[i].scalar != ir::kNoNode ? args[i].scalar : args[i].tensor.node))
      taken_.insert({index, i});
  fix_sizes_left(event, args, [&](ir::NodeId node) { return used.contains(node); });
  if (std::ranges::any_of(args, &Arg::takes_length)) taken_rounds_.insert(index);
}

bool GraphBuilder::lower(const Action& step) {
  const Event& event = trace_.events[step.event];
  const std::span<const Use> uses = flat_results(event);
  std::vector<TensorMeta> results;
  for (const Use& use : uses) results.push_back(expected(use, event));
  std::vector<ir::NodeId> out;
  if (!call_lowering(step, arguments(event), results, false, out)) return false;
  const auto index = static_cast<int64_t>(&step - analysis_.steps.data());
  const auto is_left = [&](size_t i) {
    return out[i] == ir::kNoNode && uses[i].tensor != kNone && analysis_.last_use[uses[i].tensor] > index;
  };
  bool any_left = false;
  for (size_t i = 0; i < uses.size(); ++i) any_left |= is_left(i);
  if (any_left && !call_for_rest(static_cast<uint32_t>(index), out)) return false;
  const std::unordered_set<uint32_t> fresh(step.results.begin(), step.results.end());
  for (size_t i = 0; i < uses.size(); ++i)
    if (fresh.contains(uses[i].tensor) && out[i] != ir::kNoNode) set_result(uses[i], out[i], event);
  return true;
}

}  // namespace fastjit::capture
