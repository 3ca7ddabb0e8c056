// The slow way of a call: run it eagerly, watched, and turn what was seen into a variant.
#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <sstream>
#include <unordered_set>

#include "backend/target.h"
#include "dispatch/by_values.h"
#include "dispatch/fresh_call.h"
#include "dispatch/function.h"
#include "dispatch/host.h"
#include "dispatch/messages.h"
#include "dispatch/refuse.h"
#include "plan/program.h"
#include "support/log.h"

#include <ATen/Parallel.h>

namespace fastjit::dispatch {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

thread_local bool recording_now = false;

// Products up to half of this keep one library call: MKL in row tiles cost 4 to 9 % at 512 and 1024, more than the
// epilogue gained.
constexpr int64_t kTileAbove = int64_t{64} << 20;
constexpr uint32_t kMostUnused = 64;  // recordings in a row of which none was used again
constexpr uint64_t kFirstRetry = 16;  // calls after an unsound recording before the next one; doubles each time

// Everything one recording holds together.
struct Recording {
  Recording(Function& f, const Modes& m) : function(f), modes(m) {}
  Function& function;
  Modes modes;
  std::shared_ptr<Variant> variant = std::make_shared<Variant>();
  std::vector<PyObject*> captured;
  std::vector<std::string> captured_names;
  capture::Recorder* recorder = nullptr;
  std::vector<at::Tensor> kept;  // the captured tensors: the call may store something else where they were found
  std::vector<PyObject*> leaves;
  std::vector<PyObject*> numbers;  // of the call, and read out of tensors
  observe::Observation observation;
  capture::Capture captured_graph;
  std::string unsound, advice;
};

void on_tensor(void* context, PyObject* tensor, const char* name) {
  auto* recording = static_cast<Recording*>(context);
  for (PyObject* known : recording->captured)
    if (known == tensor) return;
  recording->captured.push_back(tensor);
  recording->captured_names.emplace_back(name);
  recording->kept.push_back(unpack(tensor));
  recording->recorder->add_captured(tensor, unpack(tensor), name);
}

// Numbers read out of tensors, from `first` on, that the result holds. One that something else refers to as well is no
// longer symbolic.
std::vector<uint32_t> result_values(Recording& recording, size_t first, const Stored& stored) {
  std::vector<uint32_t> out;
  const std::vector<uint32_t> leaves = recording.variant->recipe.numbers();
  for (auto number = static_cast<uint32_t>(first); number < recording.numbers.size(); ++number) {
    const auto held = std::ranges::count(stored.values, recording.numbers[number]);
    const auto inside = std::ranges::count(leaves, number);
    if (inside > 0) out.push_back(number);
    if (recording.observation.references[number] != inside + held) recording.observation.symbolic[number] = false;
  }
  return out;
}

// Runs the function under both observers. Null if it raised.
PyObject* watched_call(Recording& recording, FreshCall& call, size_t nargsf, PyObject* kwnames,
                       const std::vector<std::string>& names) {
  Function& function = recording.function;
  capture::CallInputs inputs;
  for (PyObject* tensor : recording.variant->spec.flat().tensors) inputs.tensors.push_back(unpack(tensor));
  for (size_t i = 0; i < call.fresh.size(); ++i) inputs.scalars.emplace_back(call.fresh[i], call.names[i]);
  for (size_t i = 0; i < inputs.tensors.size(); ++i)
    inputs.tensor_names.push_back(i < names.size() ? names[i] : "arg" + std::to_string(i));
  inputs.adopt_unknown = function.options.pure;
  const RecordingFlag flag;
  capture::Recorder recorder(std::move(inputs));
  recording.recorder = &recorder;
  std::unique_ptr<observe::Observer> observer;
  if (!function.options.pure) {
    observe::Host host = torch_host();
    host.on_tensor = on_tensor;
    host.on_scalar_use = [](void* context, size_t scalar, bool alone, bool forwards) {
      static_cast<Recording*>(context)->recorder->scalar_used(scalar, alone, forwards);
    };
    host.on_scalar_use_end = [](void* context, bool entered) {
      static_cast<Recording*>(context)->recorder->scalar_use_ended(entered);
    };
    host.on_number = [](void* context, PyObject* number) {
      return static_cast<Recording*>(context)->recorder->number_read(number);
    };
    host.on_contents_read = [](void* context, PyObject* tensor) {
      static_cast<Recording*>(context)->recorder->contents_read(unpack(tensor));
    };
    host.context = &recording;
    observer = observe::make_observer(host);
    for (size_t i = 0; i < call.fresh.size(); ++i) observer->watch_scalar(call.fresh[i], call.originals[i]);
    for (PyObject* instance : recording.variant->spec.flat().instances) observer->describe(instance);
    if (!observer->start(function.callable)) recording.unsound = "tracer active";
  }
  PyObject* result = PyObject_Vectorcall(function.callable, call.args.data(),
                                         static_cast<size_t>(PyVectorcall_NARGS(nargsf)), kwnames);
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);  // stop() looks at objects, which clears what the call raised
  if (observer) recording.observation = observer->stop();
  PyErr_Restore(type, value, traceback);
  if (!result) return nullptr;
  std::string why;
  const Stored stored = stored_values(recording.observation.effects);
  if (!recording.variant->recipe.build(result, recorder.numbers(), recording.leaves, why, stored))
    recording.unsound = why;
  std::vector<at::Tensor> outputs;
  for (PyObject* leaf : recording.leaves) outputs.push_back(unpack(leaf));
  std::vector<bool>& symbolic = recording.observation.symbolic;
  symbolic.resize(std::max(symbolic.size(), call.fresh.size()), false);
  for (auto [a, b] : recording.observation.identities) recording.variant->spec.require_identity(a, b);
  for (PyObject* tensor : recording.observation.bare) recording.variant->spec.require_bare(tensor);
  recording.numbers = recorder.numbers();
  const std::vector<uint32_t> values = result_values(recording, call.fresh.size(), stored);
  recording.captured_graph =
      recorder.finish(outputs, values, recording.observation.symbolic, function.options.numerics);
  if (recording.unsound.empty()) recording.unsound = recording.observation.unsound;
  if (recording.unsound.empty()) recording.unsound = recording.captured_graph.unsound;
  if (recording.unsound.ends_with("requires grad")) recording.advice = kNoGradAdvice;
  return result;
}

// Numbers of which the variant takes any value: the program reads them at run time, or nothing reads them.
void settle_scalars(Recording& recording, const FreshCall& call) {
  Variant& variant = *recording.variant;
  const capture::Capture& captured = recording.captured_graph;
  std::vector<int> place(recording.numbers.size(), -1), value(recording.numbers.size(), -1);
  const std::vector<PyObject*> flat = variant.spec.flat().numbers;
  std::vector<std::pair<size_t, size_t>> symbolic;  // (number among the flattened arguments, fresh index)
  for (uint32_t fresh = 0; fresh < call.fresh.size(); ++fresh)
    if (captured.bound_scalars[fresh])
      symbolic.emplace_back(std::find(flat.begin(), flat.end(), call.fresh[fresh]) - flat.begin(), fresh);
  std::sort(symbolic.begin(), symbolic.end());
  for (size_t i = 0; i < symbolic.size(); ++i) place[symbolic[i].second] = static_cast<int>(i);
  for (uint32_t fresh : captured.scalar_args) {
    variant.scalar_number.push_back(static_cast<uint32_t>(place[fresh]));
    variant.scalar_is_float.push_back(PyFloat_CheckExact(call.fresh[fresh]));
    variant.scalar_name.push_back(call.names[fresh]);
  }
  variant.scalar_limit = captured.scalar_limits;
  for (uint32_t number : captured.result_values) value[number] = static_cast<int>(variant.result_values++);
  variant.recipe.renumber(place, value, recording.numbers);
  for (auto [number, fresh] : symbolic) variant.spec.make_symbolic(number);
}

void take_captured(Recording& recording) {
  Variant& variant = *recording.variant;
  const capture::Capture& capture = recording.captured_graph;
  for (size_t i = 0; i < capture.inputs.size(); ++i) {
    if (capture.inputs[i].kind != capture::InputSource::Kind::Captured) continue;
    PyObject* object = capture.captured[capture.inputs[i].index];
    variant.captured.push_back({object, TensorSpec::of(object), capture.graph.inputs[i].name});
    if (recording.function.options.pure) variant.held.push_back(unpack(object));
  }
  // Of other tensors that the call found it may have read the metadata. Those named by facts that hold are alive.
  if (!recording.observation.facts || !recording.observation.facts->check()) return;
  std::unordered_set<PyObject*> compared;
  for (const CapturedTensor& tensor : variant.captured) compared.insert(tensor.object);
  for (size_t i = 0; i < recording.captured.size(); ++i)
    if (PyObject* object = recording.captured[i]; compared.insert(object).second)
      variant.captured.push_back({object, TensorSpec::of(object), recording.captured_names[i]});
}

// A call needs gradients when grad mode is on and a tensor that it reads requires grad. It stays eager for as long as
// that is so: the tensor and the facts that lead to it are guards of the reason.
void refuse_gradients(Recording& recording) {
  if (!recording.modes.grad()) return;
  const auto& facts = recording.observation.facts;
  if (!facts || !facts->check()) return;  // the tensors named by facts that hold are alive
  for (size_t i = 0; i < recording.captured.size(); ++i) {
    PyObject* object = recording.captured[i];
    if (!unpack(object).requires_grad()) continue;
    std::string_view name = recording.captured_names[i];  // of a module given to fastjit: as it names its parameters
    if (!PyFunction_Check(recording.function.callable) && name.starts_with("self.")) name.remove_prefix(5);
    recording.unsound = "parameter '" + std::string(name) + "' requires grad";
    recording.advice = kNoGradAdvice;
    recording.variant->captured.push_back({object, TensorSpec::of(object), recording.captured_names[i]});
    return;
  }
}

// Programs for CUDA are the same on every machine: nothing in their plans depends on the host.
backend::Target target_for(c10::Device device, plan::PlanOptions& options) {
  if (device.is_cuda()) {
    options.cuda = true;
    options.l2_bytes = std::numeric_limits<int64_t>::max();
    return {backend::Target::Kind::Cuda, backend::Isa::Avx2, backend::cuda_sm(device.index())};
  }
  const backend::Target target{backend::Target::Kind::Cpu, backend::host_isa(), 0};
  options.lanes = backend::lanes_for(target.isa);
  options.threads = at::get_num_threads();
  options.l2_bytes = kTileAbove;
  return target;
}

void compile(Recording& recording) {
  Function& function = recording.function;
  Variant& variant = *recording.variant;
  auto start = Clock::now();
  const pass::PassContext context{function.options.numerics};
  variant.inspection.ir = ir::print(recording.captured_graph.graph);
  ir::Graph graph = pass::run(recording.captured_graph.graph, context, &variant.inspection.passes);
  plan::PlanOptions options;
  options.numerics = function.options.numerics;
  const c10::Device device = device_of(variant.spec.flat().tensors);
  const backend::Target target = target_for(device, options);
  auto executable = std::make_unique<Executable>();
  executable->program = plan::plan(graph, options);
  executable->calls = std::move(recording.captured_graph.calls);
  variant.values = std::move(recording.captured_graph.guards);
  executable->externs = graph.externs;
  executable->stores = graph.stores;
  const runtime::Origin origin{function.options.name, variant.spec.signature(), variant.inspection.ir};
  std::vector<runtime::KernelResult> results;
  {
    pybind11::gil_scoped_release release;
    for (const plan::KernelPlan& kernel : executable->program.kernels)
      results.push_back(runtime::get_kernel(kernel, target, origin, function.options.cache));
  }
  for (runtime::KernelResult& result : results) {
    function.stats.compiles += result.source == runtime::Source::Compiled;
    function.stats.disk_hits += result.source == runtime::Source::Disk;
    function.stats.memory_hits += result.source == runtime::Source::Memory;
    variant.keys.push_back(result.key);
    executable->kernels.push_back(std::move(result.kernel));
  }
  if (device.is_cuda()) {
    variant.device = device.index();
    executable->load_on_cuda(device.index());
  }
  executable->prepare();
  variant.checks_overlap = executable->writes;
  variant.executable = std::move(executable);
  variant.inspection.graph = std::move(graph);
  variant.inputs = recording.captured_graph.inputs;
  variant.compile_ms = ms_since(start);
  function.stats.compile_ms += variant.compile_ms;
  support::log(support::Channel::Compile, "compiled " + function.options.name + "(" + variant.spec.signature() +
                                              ") in " + std::to_string(variant.compile_ms) + " ms");
}

// The recording stays a variant of its own: calls like it go straight to eager without being watched again. Where
// values of tensors decided, only calls that read the same are like it.
bool install_unsound(Recording& recording, const ValueMiss* miss) {
  Function& function = recording.function;
  const bool needs_gradients = recording.advice == kNoGradAdvice;
  recording.variant->reason = recording.unsound;
  recording.variant->executable = nullptr;
  recording.variant->replay = nullptr;
  recording.variant->facts = needs_gradients ? std::move(recording.observation.facts) : nullptr;
  if (!needs_gradients) recording.variant->captured.clear();
  const std::string reason = recording.unsound, advice = recording.advice;
  recording.variant->values = miss ? miss->path : std::vector<capture::ValueGuard>();
  if (miss || !recording.captured_graph.reads_values || needs_gradients)
    function.variants.add(std::move(recording.variant));
  if (!needs_gradients) {
    function.next_record = function.stats.calls + (kFirstRetry << std::min(function.unsound_recordings++, 20u));
    function.pause_reason = "an earlier recording was unsound: " + reason;
  }
  return note_fallback(function, reason, advice);
}

// Runs the function under both observers and settles what may differ between calls of the variant. Null if it raised.
PyObject* observe_call(Recording& recording, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  Function& function = recording.function;
  const Modes& modes = recording.modes;
  const Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
  const Py_ssize_t total = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
  const std::vector<std::string> names = argument_names(function.callable, nargs, kwnames);
  FreshCall call;
  make_fresh(call, args, total, names, !function.options.pure);
  recording.variant->modes = modes;
  std::string why;
  recording.variant->spec.build(call.args.data(), nargs, kwnames, function.by_content, why);
  const auto start = Clock::now();
  PyObject* result = watched_call(recording, call, nargsf, kwnames, names);
  if (!result) return nullptr;
  recording.variant->record_ms = ms_since(start);
  function.stats.record_ms += recording.variant->record_ms;
  refuse_gradients(recording);
  if (recording.unsound.empty() && !(current_modes() == modes))
    recording.unsound = "it changes a mode (such as grad mode) for its caller";
  if (recording.unsound.empty() && !recording.variant->recipe.has_tensors() &&
      recording.captured_graph.result_values.empty() && recording.captured_graph.graph.stores.empty() &&
      recording.captured_graph.guards.empty()) {
    // Nothing to run: the result is constant under the facts, which eager gives as well.
    recording.unsound = "its result holds no tensor";
  }
  // Autograd compares a view's version with its base's; stores are counted after the views are made.
  if (recording.unsound.empty() && !recording.captured_graph.graph.stores.empty())
    for (PyObject* leaf : recording.leaves)
      if (unpack(leaf).is_view() && unpack(leaf).requires_grad())
        recording.unsound = "it writes to a tensor that requires grad and returns a view of it";
  if (recording.unsound.empty()) {
    settle_scalars(recording, call);
    take_captured(recording);
    recording.variant->facts = std::move(recording.observation.facts);
    if (!recording.observation.effects.empty())
      recording.variant->replay = std::make_unique<Replay>(std::move(recording.observation.effects));
  }
  return result;
}

// The program read other values than eager, from the same tensors.
bool reads_otherwise(const Recording& recording, const ValueMiss* miss) {
  return miss && std::ranges::any_of(miss->tried, [&](const auto& variant) {
           return same_values(variant->values, recording.captured_graph.guards);
         });
}

// The call gave something that it had read another value, so that the facts of this recording fail from now on. A flag
// settles and a cache is filled once; where it goes on, the function runs eagerly. True: nothing is kept.
bool is_passing(Recording& recording) {
  constexpr uint32_t kSame = 2, kSameConstant = 8, kAny = 16;  // recordings without a hit between them
  Function& function = recording.function;
  const observe::Observation& seen = recording.observation;
  if (seen.state.empty() || function.stats.hits != function.state_hits || function.state_recordings == 0)
    function.state_recordings = function.state_place_recordings = 0;
  if (seen.state.empty()) return false;
  if (function.state != seen.state) function.state_place_recordings = 0;
  function.state = seen.state;
  function.state_hits = function.stats.hits;
  const bool goes_on = ++function.state_place_recordings > (seen.state_is_constant ? kSameConstant : kSame) ||
                       ++function.state_recordings > kAny;
  if (goes_on) recording.unsound = "state: " + seen.state + " is read and written";
  return !goes_on && !seen.state_is_constant;
}

PyObject* record(FunctionObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames, const Modes& modes,
                 const ValueMiss* miss) {
  Function& function = *self->function;
  Recording recording(function, modes);
  PyObject* result = observe_call(recording, args, nargsf, kwnames);
  if (!result) return nullptr;
  if (recording.unsound.empty() && is_passing(recording)) return result;
  if (recording.unsound.empty() && reads_otherwise(recording, miss))
    recording.unsound = "the value of " + miss->path.back().label + " is not the same each time it is computed";
  if (recording.unsound.empty()) {
    try {
      compile(recording);
      function.variants.add(std::move(recording.variant));
      return result;
    } catch (const pybind11::error_already_set&) {
      Py_DECREF(result);
      throw;
    } catch (const std::exception& error) {
      recording.unsound = std::string("it could not be compiled (") + error.what() + ")";
      recording.advice = "please report it";
    }
  }
  if (install_unsound(recording, miss)) return result;
  Py_DECREF(result);
  return nullptr;
}

// Recordings that never serve a second call, such as those of arguments that are new objects each time, stop at some
// point: each costs more than the call.
bool is_fruitless(Function& function) {
  const bool unused = function.stats.hits == function.hits_when_recorded;
  function.hits_when_recorded = function.stats.hits;
  function.unused_recordings = unused ? function.unused_recordings + 1 : 0;
  if (function.unused_recordings <= std::max(kMostUnused, function.options.max_variants)) return false;
  function.next_record = function.stats.calls + (kFirstRetry << std::min(function.unsound_recordings++, 20u));
  function.pause_reason =
      "none of the last " + std::to_string(function.unused_recordings - 1) + " recordings served a second call";
  return true;
}

// A call with wrong arguments says what eager says, and nothing else.
PyObject* eager_because(Function& function, const std::string& why, const std::string& advice, PyObject* const* args,
                        size_t nargsf, PyObject* kwnames) {
  if (function.options.on_unsupported == OnUnsupported::Error) {
    note_fallback(function, why, advice);
    return nullptr;
  }
  PyObject* result = run_eager(function, "", args, nargsf, kwnames);
  if (!result || note_fallback(function, why, advice)) return result;
  Py_DECREF(result);
  return nullptr;
}

}  // namespace

bool recording() { return recording_now; }
RecordingFlag::RecordingFlag() { recording_now = true; }
RecordingFlag::~RecordingFlag() { recording_now = false; }

namespace {

// The first line in which two lists of lines differ, in words; empty if they are the same.
std::string first_difference(const std::vector<std::string>& then, const std::vector<std::string>& now) {
  for (size_t i = 0; i < std::max(then.size(), now.size()); ++i) {
    const std::string a = i < then.size() ? then[i] : "nothing", b = i < now.size() ? now[i] : "nothing";
    if (a != b) return "'" + a + "' then, '" + b + "' now";
  }
  return "";
}

// The nodes, without the places they come from: one program may be recorded from several.
std::vector<std::string> program_of(const ir::Graph& graph) {
  std::vector<std::string> lines;
  std::istringstream stream(ir::print(graph));
  for (std::string line; std::getline(stream, line);) lines.push_back(line.substr(0, line.rfind(" @ ")));
  return lines;
}

std::vector<std::string> facts_of(const Variant& variant) {
  return variant.facts ? variant.facts->describe() : std::vector<std::string>{};
}

std::vector<std::string> effects_of(const Variant& variant) {
  return variant.replay ? variant.replay->describe() : std::vector<std::string>{};
}

}  // namespace

PyObject* check_recording(FunctionObject* self, const Variant& known, PyObject* const* args, size_t nargsf,
                          PyObject* kwnames) {
  Function& function = *self->function;
  Recording recording(function, known.modes);
  PyObject* result = observe_call(recording, args, nargsf, kwnames);
  if (!result) return nullptr;
  std::string difference = recording.unsound.empty() ? "" : "it is unsound now: " + recording.unsound;
  if (difference.empty()) difference = first_difference(facts_of(known), facts_of(*recording.variant));
  if (difference.empty()) difference = first_difference(effects_of(known), effects_of(*recording.variant));
  const std::vector<capture::ValueGuard>& values = recording.captured_graph.guards;
  // A number may be ambiguous where it happens to equal another one; such a recording bakes it in and tells less.
  const bool comparable =
      known.spec.number_count() == recording.variant->spec.number_count() && known.values.size() == values.size();
  if (difference.empty() && comparable && !same_values(known.values, values))
    difference = "it read other values of tensors";
  if (difference.empty() && comparable)
    difference = first_difference(
        program_of(known.inspection.graph),
        program_of(pass::run(recording.captured_graph.graph, pass::PassContext{function.options.numerics})));
  if (difference.empty() && comparable)
    difference = first_difference({known.recipe.text()}, {recording.variant->recipe.text()});
  if (difference.empty()) {
    ++function.stats.hits;
    return result;
  }
  Py_DECREF(result);
  PyErr_Format(PyExc_AssertionError,
               "fastjit: FASTJIT_CHECK=record: the guards of %s held, but a new recording differs: %s",
               function.options.name.c_str(), difference.c_str());
  return nullptr;
}

PyObject* learn(FunctionObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames, const Modes& modes,
                const ValueMiss* miss) {
  Function& function = *self->function;
  if (const char* why = unusual(modes)) return run_eager(function, why, args, nargsf, kwnames);
  if (observe::tracer_active()) return run_eager(function, "tracer active", args, nargsf, kwnames);
  ++function.stats.misses;
  if (stance() == Stance::ErrorOnCompile) {
    PyErr_Format(
        PyExc_RuntimeError,
        "fastjit: %s would compile for a new call (%s) while the stance is 'error_on_compile'; call warmup() before",
        function.options.name.c_str(), explain(function, args, PyVectorcall_NARGS(nargsf), kwnames).c_str());
    return nullptr;
  }
  CallSpec spec;
  std::string why, advice;
  if (!spec.build(args, PyVectorcall_NARGS(nargsf), kwnames, function.by_content, why))
    return eager_because(function, why, "", args, nargsf, kwnames);
  if (compare_by_content(function, spec)) {
    spec = CallSpec();
    spec.build(args, PyVectorcall_NARGS(nargsf), kwnames, function.by_content, why);
  }
  why = refuse(function, spec, modes, argument_names(function.callable, PyVectorcall_NARGS(nargsf), kwnames), advice);
  if (!why.empty()) return eager_because(function, why, advice, args, nargsf, kwnames);
  if (const std::string pause = waiting(function, function.stats.calls); !pause.empty())
    return run_eager(function, pause, args, nargsf, kwnames);
  function.variants.drop_dead();
  const std::string limit = full(function, spec, [&] {
    return miss ? varied_value(function, *miss)
                : most_varied(function, spec, argument_names(function.callable, PyVectorcall_NARGS(nargsf), kwnames));
  });
  if (!limit.empty())
    return eager_because(function, limit, "raise max_variants, or pass what changes as a tensor", args, nargsf,
                         kwnames);
  bool known = miss != nullptr, has_like = false;  // known: its sizes are not what is new
  for (const auto& variant : function.variants.all()) {
    if (known) break;
    if (!variant->spec.same_but_sizes(spec)) continue;
    known = variant->spec.same_sizes(spec);
    if (variant->device >= 0 && variant->device != device_of(spec.flat().tensors).index()) continue;
    has_like |= variant->executable != nullptr;
  }
  // A size seen once may never come again: the second call records.
  if (has_like && !known && function.seen_sizes.size() < 4096 && function.seen_sizes[spec.signature()]++ == 0)
    return PyObject_Vectorcall(function.callable, args, nargsf, kwnames);
  if (is_fruitless(function))
    return eager_because(function, function.pause_reason, "pass the tensors in what changes as arguments of their own",
                         args, nargsf, kwnames);
  return record(self, args, nargsf, kwnames, modes, miss);
}

}  // namespace fastjit::dispatch
