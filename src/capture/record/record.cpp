// The operator recorder: a thread-local at::RecordFunction callback that appends to a Trace.
#include <Python.h>

#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "capture/build/build.h"
#include "capture/record/data_sizes.h"
#include "capture/record/effects.h"
#include "capture/record/library.h"
#include "capture/record/loops_back.h"
#include "capture/record/recorder.h"
#include "capture/record/running.h"
#include "support/error.h"
#include "support/mix.h"
#include "support/work.h"

namespace fastjit::capture {

namespace {

thread_local Recorder::Impl* current = nullptr;
// at::ThreadLocalState carries callbacks to other threads; an event there belongs to no trace and spoils all of them.
std::atomic<uint64_t> foreign_events{0};

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& event) noexcept {
  Recorder::Impl* impl = current;
  if (!impl || !impl->recording) {
    foreign_events.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  try {
    impl->start(event);
  } catch (const std::exception& error) {
    impl->trace.broken = "recording failed: " + support::first_line(error);
  }
  return nullptr;
}

void on_end(const at::RecordFunction& event, at::ObserverContext*) noexcept {
  Recorder::Impl* impl = current;
  if (!impl || !impl->recording) return;
  try {
    impl->end(event);
  } catch (const std::exception& error) {
    impl->trace.broken = "recording failed: " + support::first_line(error);
  }
}

bool holds_tensor(const c10::IValue& value) {
  if (value.isTensor()) return true;
  if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements())
      if (holds_tensor(item)) return true;
    return false;
  }
  if (value.isList()) {
    for (const c10::IValue& item : value.toListRef())
      if (holds_tensor(item)) return true;
    return false;
  }
  return value.isGenericDict() || value.isObject() || value.isPyObject() || value.isStorage();
}

// Nodes for leaves have none.
int64_t number_of_current_node() {
  const auto node = torch::autograd::get_current_node();
  return node ? static_cast<int64_t>(node->sequence_nr()) : -1;
}

}  // namespace

// `made`: C++ code of torch may have made the tensor, instead of Python code or the binding.
CallValue Recorder::Impl::item(const c10::IValue& value, bool made) {
  CallValue out;
  if (value.isNone()) return out;
  if (value.isTensor()) {
    out.kind = CallValue::Kind::Tensor;
    out.uses.push_back(trace.use(value.toTensor(), made));
  } else if (value.isTensorList()) {
    out.kind = CallValue::Kind::TensorList;
    for (const at::Tensor& tensor : value.toTensorList().vec()) out.uses.push_back(trace.use(tensor, made));
  } else if (value.isOptionalTensorList()) {
    out.kind = CallValue::Kind::OptionalTensorList;
    for (const c10::IValue& element : value.toListRef())
      out.uses.push_back(element.isNone() ? Use{} : trace.use(element.toTensor()));
  } else {
    if (value.isGenerator()) check_generator(value.toGenerator());
    // A kernel of torch's may give its own result memory: where that is no part of a larger operator, it is refused.
    const bool is_inner_storage = value.isStorage() && !is_outermost();
    if (holds_tensor(value) && !is_inner_storage)
      trace.broken = "an operator took an argument that holds tensors: " + value.tagKind();
    out.kind = CallValue::Kind::Constant;
    out.constant = value;
  }
  return out;
}

// Who promises that only the arguments matter may still make one inside, and every call anew.
void Recorder::Impl::check_generator(const at::Generator& generator) {
  if (!inputs.adopt_unknown || !generator.defined() || !trace.broken.empty()) return;
  const bool known = std::ranges::find(inputs.generators, generator) != inputs.generators.end() ||
                     generator == at::globalContext().defaultGenerator(generator.device());
  if (!known) trace.broken = "it draws from a generator that is no argument";
}

// Recording costs more than running, and all that comes after it grows with it: a loop over elements goes on in eager.
void Recorder::Impl::count(const Event& event) {
  support::count_work(1 + event.args.size());
  bytes += static_cast<int64_t>(sizeof(Event));
  for (const CallValue& item : event.args) {
    bytes += static_cast<int64_t>(sizeof(CallValue));
    for (const Use& use : item.uses)
      bytes += static_cast<int64_t>(2 * (sizeof(Use) + 2 * use.meta->sizes.size() * sizeof(int64_t)));  // a result each
  }
  if (event.parent == kNone && event.op) ++operators;
  const bool many = max_operators && operators > max_operators;
  if (!many && (!max_bytes || bytes <= max_bytes)) return;
  const std::string limit = many ? std::to_string(max_operators) + " operators" : std::to_string(max_bytes) + " bytes";
  const PyGILState_STATE gil = PyGILState_Ensure();
  const uint32_t line = lines.now();
  pass_limit("recording limit (" + limit + ") reached" + (line ? " at " + lines.texts()[line - 1] : ""));
  PyGILState_Release(gil);
}

// A loop until a value says so, of more rounds than a path may have: its rest may be parts. Whether a float that is
// read counts is known when the instruction has ended.
void Recorder::Impl::count_value(const Event& event) {
  const size_t before = values++ - trace.value_scalars.size();
  if (before > inputs.max_values) return pass_limit(value_limit);
  if (before < inputs.max_values) return;
  value_limit =
      "value limit (" + std::to_string(inputs.max_values) + ") reached: " + label_of(event, place_of(event.line));
}

std::string Recorder::Impl::place_of(uint32_t line) const {
  const PyGILState_STATE gil = PyGILState_Ensure();
  std::string place = line ? lines.texts()[line - 1] : "";
  PyGILState_Release(gil);
  return place;
}

void Recorder::Impl::pass_limit(const std::string& reason) {
  const PyGILState_STATE gil = PyGILState_Ensure();
  stop();
  trace.broken = reason;
  if (inputs.on_limit) inputs.on_limit(reason);
  PyGILState_Release(gil);
}

// An operator's schema holds the text that the event gives as its name: the address tells overloads apart.
void Recorder::Impl::identify(Event& event, const at::RecordFunction& record) {
  if (const auto known = handles.find(record.name()); known != handles.end())
    if (known->second.op.schema().name().c_str() == record.name()) {
      event.op = known->second.op;
      event.name = known->second.name;
      event.facts = known->second.facts;
      return;
    }
  const auto name = record.operator_name();
  // A span for a profiler is no part of the computation; it holds an object that no program can hold.
  if (!name || name->name.starts_with("profiler::")) {
    event.name = *trace.names.emplace(record.name()).first;
    return;
  }
  event.name = *trace.names.insert(full_name(*name)).first;
  const auto handle = c10::Dispatcher::singleton().findSchema(*name);
  if (!handle) return;
  event.op = *handle;
  event.facts = facts_of(*handle);
  // Assigning to Tensor.data asks this first: the read observer has judged that.
  if (!inputs.adopt_unknown && event.name == "aten::_has_compatible_shallow_copy_type")
    event.facts = OpFacts(Effect::Metadata);
  handles.insert_or_assign(record.name(), Known{*handle, event.name, event.facts});
}

// Four of five events are nested in such operators, and each costs torch and the recorder a microsecond.
void Recorder::Impl::hide_inside(uint32_t event) {
  opaque = event;
  at::enableRecordFunction(false);
}

void Recorder::Impl::show() {
  if (std::exchange(opaque, kNone) != kNone) at::enableRecordFunction(true);
}

// Autograd sees the parts of a composite, and keeps what they give.
static bool shows_parts(const Event& event) {
  return event.grad && event.facts.is(OpFlag::Composite) && takes_grad(event);
}

// Once a tensor on a CUDA device was met.
void Recorder::Impl::note_device() {
  if (one_thread || !trace.device.is_cuda() || !recording) return;
  one_thread.emplace();
  hides = hides && !has_library_kernels(true);
}

void Recorder::Impl::start(const at::RecordFunction& record) {
  Event event;
  event.parent = open.empty() ? kNone : open.back();
  event.grad = at::GradMode::is_enabled();
  event.inference = c10::InferenceMode::is_enabled();
  event.casts = CastMode::now();
  identify(event, record);
  event.node = is_backward(event) ? number_of_current_node() : record.seqNr();
  const bool outermost = is_outermost();
  if (event.op) {
    // A boxed call passes the interpreter's whole stack: the arguments are the last ones.
    const auto inputs = record.inputs();
    const size_t count = event.op->schema().arguments().size();
    if (inputs.size() < count) throw std::runtime_error("too few arguments seen for " + std::string(event.name));
    event.args.reserve(count);
    const bool is_made = !outermost || in_backward();
    for (const c10::IValue& value : inputs.slice(inputs.size() - count)) {
      if (outermost && is_made) meet_saved(value);
      event.args.push_back(item(value, is_made));
    }
  }
  if (is_told_classes(event)) event.facts = OpFlag::Composite;
  if (outermost)
    if (const std::string why = blank.begins(event); !why.empty()) trace.broken = why;
  if (event.facts.is(OpFlag::Lifts) && event.args.size() == 1) {
    const at::Tensor& made = record.inputs().back().toTensor();
    if (!outermost || !as_stack(event, made)) lift(event.args[0].uses[0], made);
  }
  masked |= event.name == "aten::index.Tensor";
  // A size that depends on data is read without any event. Where no observer tells of it, code of this call that so
  // much as names such a read, while masked values are about, is taken to read one.
  const bool may_read_sizes = masked && outermost && !inputs.constants_are_facts && !in_backward();
  if (may_read_sizes && trace.size_reader.empty()) trace.size_reader = lines.size_reader();
  // Python gets a value or a size: how many there were is read with it.
  const bool tells_sizes = event.facts.reads() || event.facts.effect == Effect::Metadata;
  if (outermost && tells_sizes && (!trace.data_sized.empty() || inputs.for_any_size()))
    for (const c10::IValue& value : record.inputs())
      if (value.isTensor() && value.toTensor().defined()) size_read(value.toTensor(), kSizeRead);
  event.line = outermost ? lines.now(event.facts.reads() ? &event.target : nullptr) : trace.events[event.parent].line;
  count(event);
  event.of_constants = outermost && event.facts.reads() &&
                       (event.args[0].uses[0].number || (!open_uses && trace.takes_constants(event)));
  if (recording && outermost && event.facts.reads() && !event.of_constants && !stacking) count_value(event);
  const bool is_opaque = event.facts.is(OpFlag::Opaque) && !shows_parts(event) && !is_layered(trace, event) &&
                         !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
  trace.events.push_back(std::move(event));
  const auto index = static_cast<uint32_t>(trace.events.size() - 1);
  if (open.empty() && open_sizes) trace.size_uses.back().events.push_back(index);
  if (open.empty() && open_index) trace.index_uses.back().events.push_back(index);
  if (open.empty() && open_rounds) trace.rounds_uses.back().events.push_back(index);
  if (open.empty())
    for (size_t i = 0; i < open_uses; ++i)
      (trace.scalar_uses.end() - 1 - static_cast<ptrdiff_t>(i))->events.push_back(index);
  open.push_back(index);
  if (hides && recording && is_opaque) hide_inside(index);
}

static bool lies_like(const Use& a, const Use& b) {
  return a.storage == b.storage && a.offset == b.offset && a.meta->dtype == b.meta->dtype &&
         a.meta->sizes == b.meta->sizes && a.meta->strides == b.meta->strides;
}

// The last result, another tensor, that lies where `saved` does: of what Python has called, else of what that called,
// which may see the tensor in a view of its own.
std::optional<Use> Recorder::Impl::given_like(const Use& saved) {
  const auto place = [](const Use& use) { return support::mix(use.storage, static_cast<uint64_t>(use.offset)); };
  std::optional<Use> nested;
  const auto in = [&](const Event& event) -> std::optional<Use> {
    for (const Use& use : flat_results(event)) {
      if (use.tensor == saved.tensor || !lies_like(use, saved)) continue;
      if (event.parent == kNone) return use;
      if (!nested) nested = use;
    }
    return std::nullopt;
  };
  const auto ended = open.empty() ? static_cast<uint32_t>(trace.events.size()) : open.front();
  for (; sorted < ended; ++sorted)
    for (const Use& use : flat_results(trace.events[sorted]))
      if (use.tensor != kNone) givers[place(use)].push_back(sorted);
  for (size_t i = trace.events.size(); i-- > sorted; support::count_work())
    if (const auto found = in(trace.events[i])) return found;
  const std::vector<uint32_t>& there = givers[place(saved)];
  for (size_t i = there.size(); i-- > 0; support::count_work())
    if (const auto found = in(trace.events[there[i]])) return found;
  return nested;
}

// The graph keeps a result as another tensor on the same memory, and autograd raises if someone has written there
// since.
void Recorder::Impl::meet_saved(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return;
  const at::Tensor& tensor = value.toTensor();
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number() || trace.find(tensor.unsafeGetTensorImpl()) != kNone) return;
  const Use saved = trace.use(tensor, true);
  if (saved.storage == kNone) return;
  const auto detached_from = [&](const Use& use) {
    Event event = as_if_run("aten::detach");
    event.args.push_back({CallValue::Kind::Tensor, {use}, {}});
    event.results.push_back({CallValue::Kind::Tensor, {saved}, {}});
    trace.events.push_back(std::move(event));
    if (const uint64_t dims = trace.made_dims_of(use.tensor)) trace.data_sized.emplace(saved.tensor, dims);
  };
  if (const auto given = given_like(saved)) return detached_from(*given);
  for (const Source& root : trace.roots)  // the hooks of a checkpoint are given another tensor of these, too
    if (!trace.checkpoints.empty() && root.before.tensor != saved.tensor && lies_like(root.before, saved))
      return detached_from(trace.use(root.tensor));
}

// Below a transform, where nobody else has the tensor: squeeze_() gives another tensor, a view, which takes its place.
void Recorder::Impl::as_view(Event& event, const c10::IValue& result) {
  std::string name(base_name(event.name));
  if (!result.isTensor() || event.args.empty() || event.args[0].uses.size() != 1 || !name.ends_with('_')) return;
  name.pop_back();
  const at::Tensor& tensor = result.toTensor();
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const uint32_t before = trace.find(impl);
  const bool is_plain = before != kNone && before == event.args[0].uses[0].tensor && !trace.root(before) &&
                        trace.tensors[before].unusual.empty() && impl->pyobj_slot()->load_pyobj() == nullptr;
  const auto view = c10::Dispatcher::singleton().findSchema({name, event.op->schema().overload_name()});
  if (!is_plain || !view) return;
  trace.tensor_ids.erase(impl);
  event.op = *view;
  event.name = *trace.names.insert(full_name(view->operator_name())).first;
  event.facts = facts_of(*view);
  event.results[0] = item(tensor, true);
}

// torch.tensor(2.0), torch.tensor([1, 2]): the numbers were written without an event. torch.tensor([]) holds none: any
// will do.
void Recorder::Impl::lift(Use& made, const at::Tensor& source) {
  if (!trace.tensors[made.tensor].unusual.empty()) return;
  if (made.meta->sizes.empty() || source.numel() == 0)
    made.number = source.numel() == 0 ? c10::Scalar(0) : read_number(source);
  else if (inputs.constants_are_facts && is_outermost() && source.is_cpu() && source.numel() <= kMaxConstant)
    made = constant(source);
}

// The call may write to what it made: programs read a copy.
Use Recorder::Impl::constant(const at::Tensor& source) {
  at::Tensor copy;
  {
    const at::DisableRecordFunctionGuard unseen;
    const at::NoGradGuard without_grad;
    copy = source.clone();
  }
  const Use use = trace.use(copy);
  const PyGILState_STATE gil = PyGILState_Ensure();
  constants.push_back(THPVariable_Wrap(copy));
  PyGILState_Release(gil);
  const std::string name = "constant" + std::to_string(constants.size());
  trace.add_root({use, copy, constants.back(), kNone, name, true});
  return use;
}

void Recorder::Impl::end(const at::RecordFunction& record) {
  if (open.empty()) return;
  if (opaque == open.back()) show();
  Event& event = trace.events[open.back()];
  open.pop_back();
  event.end = static_cast<uint32_t>(trace.events.size());
  if (!event.op) {
    event.finished = true;
    return;
  }
  const auto& outputs = record.outputs();
  const size_t count = event.op->schema().returns().size();
  if (outputs.size() < count) return;  // it raised
  event.finished = true;
  event.results.reserve(count);
  for (size_t i = outputs.size() - count; i < outputs.size(); ++i) event.results.push_back(item(outputs[i], true));
  if (event.op->hasTag(at::Tag::inplace_view) && !open.empty() && is_layered(trace, trace.events[open.back()]))
    as_view(event, outputs.back());
  if (event.name.starts_with("aten::set_.source_Storage")) as_buffer(event, outputs.back());
  if (count > 1)
    for (const CallValue& item : event.results) event.flat.insert(event.flat.end(), item.uses.begin(), item.uses.end());
  if (!is_outermost()) return;
  note_device();
  blank.ended(event);
  note_constants(event);
  note_sizes(static_cast<uint32_t>(&event - trace.events.data()));
}

void Recorder::Impl::stop() noexcept {
  if (!recording) return;
  recording = false;
  saved->close();
  ends_hidden = opaque != kNone;
  show();
  at::removeCallback(handle);
  if (one_thread) one_thread->end();
  current = nullptr;
  if (foreign_events.load(std::memory_order_relaxed) != foreign)
    trace.broken = "an operator ran on another thread during the call";
}

// Where it was stopped inside something that puts this thread's callbacks back when it ends, as autograd's engine and
// threads of at::parallel_for do, they are here again.
void Recorder::Impl::leave() noexcept {
  stop();
  const auto& callbacks = at::get_record_function_tls_().sorted_tls_callbacks_;
  if (std::ranges::any_of(callbacks, [&](const auto& one) { return one.handle_ == handle; })) {
    at::removeCallback(handle);
    if (one_thread) one_thread->end();
  }
  if (std::exchange(ends_hidden, false)) at::enableRecordFunction(true);
}

Recorder::Recorder(CallInputs inputs) : impl_(std::make_unique<Impl>(std::move(inputs))) {
  Impl& impl = *impl_;
  Trace& trace = impl.trace;
  trace.grad = at::GradMode::is_enabled();
  trace.inference = c10::InferenceMode::is_enabled();
  trace.casts = CastMode::now();
  for (uint32_t i = 0; i < impl.inputs.varying.size(); ++i)
    if (impl.inputs.varying[i]) trace.varying.insert(i);
  for (uint32_t i = 0; i < impl.inputs.free_ints.size(); ++i)
    if (impl.inputs.free_ints[i]) impl.free_int(i);
  for (size_t i = 0; i < impl.inputs.tensors.size(); ++i) {
    const at::Tensor& tensor = impl.inputs.tensors[i];
    Use use = trace.use(tensor);
    if (trace.root(use.tensor)) continue;
    std::string name =
        i < impl.inputs.tensor_names.size() ? impl.inputs.tensor_names[i] : "arg[" + std::to_string(i) + "]";
    trace.add_root({std::move(use), tensor, nullptr, static_cast<uint32_t>(i), std::move(name)});
  }
  impl.foreign = foreign_events.load(std::memory_order_relaxed);
  if (current) {
    trace.broken = "a call was recorded inside another recording";
    return;
  }
  current = &impl;
  impl.recording = true;
  impl.hides = !at::hasCallbacks() && !has_library_kernels(trace.device.is_cuda());  // a profiler sees all
  impl.note_device();
  impl.handle = at::addThreadLocalCallback(at::RecordFunctionCallback(on_start, on_end)
                                               .needsInputs(true)
                                               .needsOutputs(true)
                                               .scopes({at::RecordScope::FUNCTION}));
}

Recorder::~Recorder() = default;

c10::Device Recorder::device() const { return impl_->trace.device; }

bool Recorder::knows(const at::Tensor& tensor) const {
  return impl_->trace.find(tensor.unsafeGetTensorImpl()) != kNone;
}

bool Recorder::made(const at::Tensor& tensor) const {
  const Trace& trace = impl_->trace;
  const uint32_t id = trace.find(tensor.unsafeGetTensorImpl());
  return id != kNone && !trace.root(id);
}

// Views of a tensor share its counter, and its memory.
bool Recorder::counts_own_writes(const at::Tensor& tensor) const {
  const Trace& trace = impl_->trace;
  if (!made(tensor) || !tensor.has_storage()) return false;
  const auto memory = trace.storage_ids.find(tensor.storage().unsafeGetStorageImpl());
  return memory != trace.storage_ids.end() &&
         std::ranges::none_of(trace.roots, [&](const Source& root) { return root.before.storage == memory->second; });
}

void Recorder::add_captured(PyObject* object, const at::Tensor& tensor, std::string name) {
  Trace& trace = impl_->trace;
  const bool known = trace.find(tensor.unsafeGetTensorImpl()) != kNone;
  Use use = trace.use(tensor);
  if (trace.root(use.tensor) || known) return;  // an argument, or an intermediate of this call
  trace.add_root({std::move(use), tensor, object, kNone, std::move(name)});
}

void Recorder::give_up(const std::string& reason) {
  impl_->stop();
  impl_->trace.broken = reason;
}

std::vector<PyObject*> Recorder::numbers() const {
  std::vector<PyObject*> out;
  for (const auto& [number, name] : impl_->inputs.scalars) out.push_back(number);
  return out;
}

Capture Recorder::finish(const std::vector<at::Tensor>& outputs, const std::vector<uint32_t>& values,
                         const std::vector<bool>& symbolic, plan::Numerics numerics) {
  Impl& impl = *impl_;
  impl.leave();
  if (impl.trace.broken.empty()) impl.trace.broken = impl.blank.call_ended();
  Capture capture;
  try {
    for (std::string& line : impl.lines.texts()) impl.trace.lines.push_back(std::move(line));
    if (impl.inputs.for_any_size()) find_ways_back(impl.trace);
    capture = build(impl.trace, impl.inputs, outputs, values, symbolic, numerics);
  } catch (const std::exception& error) {
    capture = Capture{};
    capture.unsound = "the capture failed: " + support::first_line(error);
  }
  const auto is_call = [](const Event& event) { return event.op && event.parent == kNone; };
  capture.operators = static_cast<uint32_t>(std::ranges::count_if(impl.trace.events, is_call));
  capture.reads_values = std::ranges::any_of(impl.trace.events, [](const Event& event) {
    if (event.parent != kNone || !event.op) return event.name == kContentsRead || event.name == kTest || is_size(event);
    return event.facts.reads();
  });
  return capture;
}

bool runs_operator() noexcept { return current && !current->is_outermost(); }

}  // namespace fastjit::capture
