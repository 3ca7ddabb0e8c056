// What happens without an operator of torch: events of their own. What the read observer tells the recorder and asks
// it.
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "capture/record/data_sizes.h"
#include "capture/record/effects.h"
#include "capture/record/recorder.h"

namespace fastjit::capture {

// Of what an outermost call gave or wrote: whether it follows from constants.
void Recorder::Impl::note_constants(const Event& event) {
  const bool is_fixed = !open_uses && !event.facts.is(OpFlag::Draws) && trace.takes_constants(event);
  for (const Use& use : flat_results(event))
    if (use.tensor != kNone && !trace.root(use.tensor)) trace.note_constant(use.tensor, is_fixed);
}

// Of what an outermost call gave: which sizes depend on data.
void Recorder::Impl::note_sizes(uint32_t index) {
  const Event& event = trace.events[index];
  bool makes = false;
  for (uint32_t i = index; i < event.end && !makes; ++i) makes = makes_data_sizes(trace.events[i]);
  for (const Use& use : flat_results(event)) makes |= use.tensor != kNone && trace.tensors[use.tensor].is_nested;
  if (!makes && trace.data_sized.empty()) return;
  trace.makes_data_sizes = true;
  const std::vector<DataDims> dims = data_dims(trace, index, makes);
  const std::span<const Use> uses = flat_results(event);
  const std::vector<Use> results(uses.begin(), uses.end());  // more events may follow
  for (size_t i = 0; i < dims.size(); ++i)
    if (dims[i]) trace.data_sized[results[i].tensor] |= dims[i];
  if (results.size() == 1 && dims[0]) note_count(trace, trace.events[index], results[0]);
  // Its parts are steps where autograd goes back through them.
  for (uint32_t part = index + 1; !makes && part < trace.events[index].end && trace.events[index].grad; ++part) {
    const std::vector<DataDims> of_part = data_dims(trace, part, false);
    for (size_t i = 0; i < of_part.size(); ++i)
      if (of_part[i]) trace.data_sized[flat_results(trace.events[part])[i].tensor] |= of_part[i];
  }
  // Of none and of one torch's C++ decides many things otherwise, before it calls an operator: whether there are so few
  // where data made the sizes is a value of the program.
  for (size_t i = 0; makes && i < dims.size(); ++i)
    if (const auto alive = dims[i] ? trace.tensors[results[i].tensor].impl.lock() : nullptr)
      if (const at::Tensor made(alive); !made.is_nested()) size_read(made, kFew);
}

// An event for what happens without the dispatcher, here and now.
Event Recorder::Impl::unseen(std::string_view name) {
  Event event;
  event.name = name;
  event.parent = open.empty() ? kNone : open.back();
  event.grad = at::GradMode::is_enabled();
  event.inference = c10::InferenceMode::is_enabled();
  event.casts = CastMode::now();
  event.line = lines.now(&event.target);
  event.end = static_cast<uint32_t>(trace.events.size() + 1);
  event.finished = true;
  return event;
}

Event Recorder::Impl::as_if_run(const char* op) {
  Event event = unseen(*trace.names.insert(op).first);
  event.op = c10::Dispatcher::singleton().findSchemaOrThrow(op, "");
  event.facts = facts_of(*event.op);
  return event;
}

// Somebody has looked at its sizes, and not as SizeNumbers.
void Recorder::Impl::note_sizes_read(uint32_t tensor) {
  trace.sizes_as_numbers.erase(tensor);
  if (tensor != kNone && follows_sizes()) trace.sizes_read.insert(tensor);
}

// An event without an operator: Python looks at sizes that depend on data.
void Recorder::Impl::size_read(const at::Tensor& tensor, std::string_view name) {
  const uint32_t known = trace.find(tensor.unsafeGetTensorImpl());
  note_sizes_read(known);
  add_size_event(tensor, known, name);
}

void Recorder::Impl::add_size_event(const at::Tensor& tensor, uint32_t known, std::string_view name) {
  if (known == kNone || !trace.dims_of(known) || !sizes_read.emplace(known, name).second) return;
  if (tensor.is_nested())
    return static_cast<void>(trace.broken = "the sizes of a nested tensor are read at " + place_of(lines.now()));
  Event event = unseen(name);
  event.args.push_back({CallValue::Kind::Tensor, {trace.use(tensor)}, {}});
  for (const int64_t size : tensor.sizes())
    event.values.push_back(static_cast<uint64_t>(name == kFew ? std::min(size, kMany) : size));
  if (name == kSizeRead) trace.settled.emplace(known, static_cast<uint32_t>(trace.events.size()));
  trace.events.push_back(std::move(event));
}

// The dim that decides whether the tensor has elements; negative: there is more to know.
static int emptied_by(const at::Tensor& tensor, DataDims dims) {
  if (tensor.is_nested() || !std::has_single_bit(dims)) return -1;
  const int dim = std::countr_zero(dims);
  for (int d = 0; d < tensor.dim(); ++d)
    if (d != dim && tensor.size(d) == 0) return -1;
  return dim;
}

// An event without an operator: Python's index is an operator only if there is more than it takes.
void Recorder::Impl::slice_taken(const at::Tensor& tensor, int dim, int64_t stop) {
  const uint32_t known = trace.find(tensor.unsafeGetTensorImpl());
  note_sizes_read(known);
  if (known == kNone) return;
  if (dim < 0) dim = emptied_by(tensor, trace.dims_of(known));
  if (dim < 0) return size_read(tensor, kSizeRead);
  if (!(trace.dims_of(known) & bit(static_cast<size_t>(dim)))) return;
  if (tensor.is_nested() || dim >= tensor.dim()) return size_read(tensor, kSizeRead);
  const bool is_whole = tensor.size(dim) <= stop;
  if (!slices_taken.emplace(known, dim, stop).second) return;
  Event event = unseen(kSlice);
  event.args.push_back({CallValue::Kind::Tensor, {trace.use(tensor)}, {}});
  for (const int64_t number : {int64_t{dim}, stop}) event.args.push_back({CallValue::Kind::Constant, {}, number});
  event.values.push_back(is_whole);
  trace.events.push_back(std::move(event));
  if (is_whole) return;
  int64_t& least = trace.longer.emplace(std::pair(known, static_cast<size_t>(dim)), stop).first->second;
  least = std::max(least, stop);
}

// An event without an operator: what tolist() reads.
void Recorder::Impl::contents_read(const at::Tensor& tensor) {
  constexpr int64_t kMaxElements = 64;
  Event event = unseen(kContentsRead);
  CallValue item{CallValue::Kind::Tensor, {trace.use(tensor)}, {}};
  const auto dtype = to_ir(tensor.scalar_type());
  const bool readable = trace.tensors[item.uses[0].tensor].unusual.empty() && tensor.is_cpu() && dtype;
  if (readable && tensor.numel() <= kMaxElements)
    for_each_element(tensor.sizes(), tensor.strides(), [&](int64_t offset) {
      const auto* data = static_cast<const char*>(tensor.unsafeGetTensorImpl()->data());
      event.values.push_back(value_bits(data + offset * ir::size_of(*dtype), *dtype));
    });
  event.args.push_back(std::move(item));
  trace.events.push_back(std::move(event));
}

bool Recorder::number_read(PyObject* number) {
  Trace& trace = impl_->trace;
  if (!impl_->open.empty() || trace.events.empty()) return false;
  auto index = static_cast<uint32_t>(trace.events.size() - 1);
  while (trace.events[index].parent != kNone) index = trace.events[index].parent;
  const Event& event = trace.events[index];
  if (event.name != "aten::item" || !event.finished || !event.results[0].constant.isDouble()) return false;
  if (event.of_constants) return false;
  const double value = PyFloat_AS_DOUBLE(number), read = event.results[0].constant.toDouble();
  if (std::memcmp(&value, &read, sizeof value) != 0) return false;
  const auto scalar = static_cast<uint32_t>(impl_->inputs.scalars.size());
  if (!trace.value_scalars.try_emplace(index, scalar).second) return false;
  impl_->inputs.scalars.emplace_back(number, event.target.empty() ? "item" : event.target);
  return true;
}

void Recorder::number_derived(PyObject* number, std::string name, std::vector<uint32_t> operands) {
  const auto number_id = static_cast<uint32_t>(impl_->inputs.scalars.size());
  if (std::ranges::any_of(operands, [&](uint32_t operand) { return impl_->trace.varying.contains(operand); }))
    impl_->trace.varying.insert(number_id);
  impl_->trace.derived.emplace(number_id, std::move(operands));
  impl_->inputs.scalars.emplace_back(number, std::move(name));
}

void Recorder::number_given(PyObject* number, std::string name, bool is_free) {
  const auto scalar = static_cast<uint32_t>(impl_->inputs.scalars.size());
  impl_->trace.varying.insert(scalar);
  impl_->inputs.scalars.emplace_back(number, std::move(name));
  if (is_free) impl_->free_int(scalar);
}

void Recorder::number_computed(PyObject* number, NumberOp op, std::vector<int> operands) {
  const auto scalar = static_cast<uint32_t>(impl_->inputs.scalars.size());
  std::vector<uint32_t> open;
  for (const int operand : operands)
    if (operand >= 0) open.push_back(static_cast<uint32_t>(operand));
  std::string name = op.label;
  impl_->trace.computed.emplace(scalar, Trace::Computed{std::move(op), std::move(operands)});
  number_derived(number, std::move(name), std::move(open));
}

// An event without an operator.
void Recorder::number_tested(NumberTest test) {
  Impl& impl = *impl_;
  if (!impl.recording) return;
  Event event = impl.unseen(kTest);
  event.target = test.label;
  event.values = {uint64_t{test.answer()}};
  impl.trace.tests.emplace(static_cast<uint32_t>(impl.trace.events.size()), std::move(test));
  impl.trace.events.push_back(std::move(event));
  impl.count_value(impl.trace.events.back());
}

const std::string& Recorder::number_name(size_t number) const { return impl_->inputs.scalars[number].second; }

void Recorder::contents_read(const at::Tensor& tensor) { impl_->contents_read(tensor); }

// As if torch.tensor() had made it.
bool Recorder::constant_made(const at::Tensor& tensor) {
  Impl& impl = *impl_;
  Trace& trace = impl.trace;
  const bool is_new = trace.find(tensor.unsafeGetTensorImpl()) == kNone;
  if (!is_new) return true;  // an operator's result
  if (!impl.inputs.constants_are_facts || !tensor.is_cpu() || tensor.numel() > kMaxConstant) return false;
  Event event = impl.as_if_run("aten::lift_fresh");
  event.args.push_back({CallValue::Kind::Tensor, {impl.constant(tensor)}, {}});
  event.results.push_back({CallValue::Kind::Tensor, {trace.use(tensor)}, {}});
  trace.events.push_back(std::move(event));
  return true;
}

void Recorder::array_read() { impl_->trace.reads_arrays = true; }

void Recorder::array_shared(const at::Tensor& tensor, bool is_new) {
  const Use use = impl_->trace.use(tensor);
  if (use.storage != kNone) impl_->trace.array_memory.emplace(use.storage, is_new);
}

void Recorder::stacking(std::vector<at::Tensor> tensors) {
  impl_->stacking = {std::move(tensors), impl_->trace.events.size(), impl_->values};
}

// torch.tensor() of tensors reads them one by one. Where they are alike, torch.stack() gives the same.
bool Recorder::Impl::as_stack(Event& event, const at::Tensor& made) {
  if (!stacking || !open.empty()) return false;
  const Stacking taken = *std::exchange(stacking, std::nullopt);
  const auto is_alike = [&](const at::Tensor& one) {
    const uint32_t known = trace.find(one.unsafeGetTensorImpl());
    return known != kNone && trace.tensors[known].unusual.empty() && one.dim() == 0 && to_ir(one.scalar_type()) &&
           one.scalar_type() == taken.tensors[0].scalar_type() && one.is_cpu() && !one.requires_grad();
  };
  const bool fits = made.is_cpu() && made.dim() == 1 && static_cast<size_t>(made.numel()) == taken.tensors.size();
  if (!fits || taken.tensors.empty() || !std::ranges::all_of(taken.tensors, is_alike)) return false;
  trace.events.resize(taken.events);
  values = taken.values;
  const auto constant = [](const c10::IValue& value) { return CallValue{CallValue::Kind::Constant, {}, value}; };
  CallValue tensors{CallValue::Kind::TensorList, {}, {}};
  for (const at::Tensor& one : taken.tensors) tensors.uses.push_back(trace.use(one));
  Event stack = as_if_run("aten::stack");
  stack.args = {std::move(tensors), constant(int64_t{0})};
  if (made.scalar_type() != taken.tensors[0].scalar_type()) {
    const at::DisableRecordFunctionGuard unseen;
    stacked.push_back(at::stack(taken.tensors));
    const CallValue result{CallValue::Kind::Tensor, {trace.use(stacked.back(), true)}, {}};
    stack.results.push_back(result);
    trace.events.push_back(std::move(stack));
    stack = as_if_run("aten::_to_copy");
    stack.args = {result, constant(made.scalar_type()), {}, {}, {}, constant(false), {}};
  }
  event.op = stack.op;
  event.name = stack.name;
  event.facts = stack.facts;
  event.args = std::move(stack.args);
  return true;
}

// A view that counts its writes apart, which no program does: as long as nobody writes it is what detach() gives.
bool Recorder::data_read(const at::Tensor& tensor, const at::Tensor& data) {
  Impl& impl = *impl_;
  const bool is_known = impl.trace.find(tensor.unsafeGetTensorImpl()) != kNone;
  if (!is_known || impl.trace.find(data.unsafeGetTensorImpl()) != kNone) return false;
  Event event = impl.as_if_run("aten::detach");
  event.args.push_back({CallValue::Kind::Tensor, {impl.trace.use(tensor)}, {}});
  event.results.push_back({CallValue::Kind::Tensor, {impl.trace.use(data, true)}, {}});
  impl.trace.data_read.insert(event.results[0].uses[0].storage);
  impl.trace.events.push_back(std::move(event));
  impl.note_sizes(static_cast<uint32_t>(impl.trace.events.size() - 1));
  return true;
}

// Which gradients follow is the call's own affair, unless its results or what was there before require grad.
bool Recorder::leaf_made(const at::Tensor& tensor) {
  if (is_wrapper(tensor)) return true;  // of a graph that a transform keeps
  Trace& trace = impl_->trace;
  const uint32_t known = trace.find(tensor.unsafeGetTensorImpl());
  if (known == kNone || trace.root(known) || !tensor.is_leaf() || !trace.tensors[known].unusual.empty()) return false;
  trace.own_leaves.insert(known);
  return true;
}

// Assigning to Tensor.data what it holds changes nothing.
bool Recorder::is_own_data(const at::Tensor& tensor, const at::Tensor& data) const {
  if (data.is_same(tensor)) return true;
  const Trace& trace = impl_->trace;
  const uint32_t owner = trace.find(tensor.unsafeGetTensorImpl()), known = trace.find(data.unsafeGetTensorImpl());
  const auto gives = [&](const Event& event) {
    return event.name == "aten::detach" && event.args[0].uses[0].tensor == owner && !event.results.empty() &&
           event.results[0].uses[0].tensor == known;
  };
  return owner != kNone && known != kNone && std::ranges::any_of(trace.events, gives);
}

void Recorder::generator_used(const char* op, const std::vector<c10::IValue>& args, const at::Tensor& result) {
  Impl& impl = *impl_;
  Event event = impl.as_if_run(op);
  event.facts = OpFlag::Draws;
  for (const c10::IValue& argument : args) event.args.push_back(impl.item(argument, false));
  if (result.defined()) event.results.push_back({CallValue::Kind::Tensor, {impl.trace.use(result, true)}, {}});
  impl.trace.events.push_back(std::move(event));
}

bool Recorder::generator_made(const at::Generator& generator) {
  std::vector<at::Generator>& made = impl_->trace.made_generators;
  if (std::ranges::find(made, generator) != made.end()) return true;
  if (generator.getIntrusivePtr().use_count() > 2) return false;  // the Python object, and the caller
  made.push_back(generator);
  return true;
}

size_t Recorder::operators() const { return impl_->trace.events.size(); }
size_t Recorder::values_read() const { return impl_->values - impl_->trace.value_scalars.size(); }
bool Recorder::reads_too_many() const { return !impl_->value_limit.empty(); }

bool Recorder::has_data_sizes() const { return !impl_->trace.data_sized.empty() || impl_->inputs.for_any_size(); }

void Recorder::contiguous_asked(const at::Tensor& tensor, at::MemoryFormat format) {
  Impl& impl = *impl_;
  if (!impl.inputs.for_any_size() || !tensor.is_contiguous(format)) return;
  if (impl.trace.find(tensor.unsafeGetTensorImpl()) == kNone) return;
  Event event = impl.as_if_run("aten::contiguous");
  event.args.push_back({CallValue::Kind::Tensor, {impl.trace.use(tensor)}, {}});
  event.args.push_back({CallValue::Kind::Constant, {}, static_cast<int64_t>(format)});
  event.results.push_back({CallValue::Kind::Tensor, {impl.trace.use(tensor)}, {}});
  impl.trace.events.push_back(std::move(event));
}

void Recorder::size_read(const at::Tensor& tensor, int dim) {
  Trace& trace = impl_->trace;
  const uint32_t known = trace.find(tensor.unsafeGetTensorImpl());
  const bool is_of_data =
      known != kNone && (dim < 0 || tensor.is_nested() || trace.made_dims_of(known) & bit(static_cast<size_t>(dim)));
  if (is_of_data) return impl_->size_read(tensor, kSizeRead);
  if (known != kNone && impl_->follows_sizes()) trace.sizes_read.insert(known);
}

bool Recorder::same_sizes(const at::Tensor& a, const at::Tensor& b) {
  Trace& trace = impl_->trace;
  if (!have_same_sizes(trace, a, b)) return false;
  if (impl_->inputs.for_any_size())  // the others are facts
    for (const at::Tensor* one : {&a, &b}) trace.sizes_read.insert(trace.find(one->unsafeGetTensorImpl()));
  return true;
}

void Recorder::slice_taken(const at::Tensor& tensor, int dim, int64_t stop) { impl_->slice_taken(tensor, dim, stop); }

void Recorder::scalar_used(size_t scalar, bool alone, bool forwards, int element) {
  impl_->trace.scalar_uses.push_back({static_cast<uint32_t>(scalar), alone, forwards, element, {}});
  ++impl_->open_uses;
}

// A binary operator that ran nothing itself before Python code began handed the number on.
void Recorder::scalar_use_ended(bool entered) {
  impl_->stacking.reset();
  if (std::exchange(impl_->open_sizes, false)) impl_->trace.size_uses.back().whole &= !entered;
  if (std::exchange(impl_->open_index, false)) impl_->trace.index_uses.back().whole &= !entered;
  if (std::exchange(impl_->open_rounds, false)) impl_->trace.rounds_uses.back().whole &= !entered;
  std::vector<ScalarUse>& uses = impl_->trace.scalar_uses;
  for (; impl_->open_uses; --impl_->open_uses) {
    const auto use = uses.end() - static_cast<ptrdiff_t>(impl_->open_uses);
    if (!entered) continue;
    if (use->forwards && use->events.empty())
      uses.erase(use);
    else
      use->alone = false;  // what it runs after that code is not seen
  }
}

}  // namespace fastjit::capture
