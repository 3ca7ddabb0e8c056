#include "dispatch/call/function.h"

#include <ATen/record_function.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <span>

#include "dispatch/call/call.h"
#include "dispatch/call/this_thread.h"
#include "dispatch/call/value_tree.h"
#include "dispatch/learn/compile.h"
#include "python/stance.h"
#include "python/verify.h"
#include "support/env.h"

namespace fastjit::dispatch {
namespace {

const bool kChecksRecordings = support::setting_word(support::Setting::Check) == "record";

struct Bytes {
  const char *begin, *end;
  bool written;
};

// Whether any written input shares bytes with another input. Sorted, since optimizers write hundreds of inputs.
bool overlaps(const Executable& executable, const Inputs& inputs) {
  std::array<Bytes, 16> few;
  std::vector<Bytes> many(inputs.size() > few.size() ? inputs.size() : 0);
  const std::span<Bytes> all = many.empty() ? std::span(few.data(), inputs.size()) : std::span(many);
  for (size_t k = 0; k < inputs.size(); ++k) {
    const at::Tensor& t = *inputs[k];
    const char* begin = static_cast<const char*>(t.unsafeGetTensorImpl()->data());
    all[k] = {begin, begin + stretch_of(t) * static_cast<int64_t>(t.element_size()), false};
  }
  for (uint32_t k : executable.changes.reach_beyond) {
    const at::Storage& storage = inputs[k]->storage();
    all[k].begin = static_cast<const char*>(storage.data());
    all[k].end = all[k].begin + storage.nbytes();
  }
  for (const Changes::Written& written : executable.changes.written) all[written.input].written = true;
  std::ranges::sort(all, {}, &Bytes::begin);
  const char *end = nullptr, *written_end = nullptr;  // of those that begin before
  for (const Bytes& bytes : all) {
    if (bytes.begin == bytes.end) continue;
    if (bytes.begin < (bytes.written ? end : written_end)) return true;
    end = std::max(end, bytes.end);
    if (bytes.written) written_end = std::max(written_end, bytes.end);
  }
  return false;
}

uint64_t number_bits(PyObject* number, bool is_float) {
  if (is_float) return std::bit_cast<uint64_t>(PyFloat_AS_DOUBLE(number));
  return static_cast<uint64_t>(PyLong_AsLongLong(number));  // the call matched: it fits
}

bool within(PyObject* number, bool is_float, double limit) {
  const double value = is_float ? PyFloat_AS_DOUBLE(number) : static_cast<double>(PyLong_AsLongLong(number));
  return !(std::fabs(value) > limit) || std::isinf(value);
}

// A variant that serves this call, or null; borrowed from the function.
const std::shared_ptr<Variant>* find(Function& function, const Modes& modes, PyObject* const* args, Py_ssize_t nargs,
                                     PyObject* kwnames, PyObject** tensors, PyObject** numbers) {
  Variant* last = function.variants.last().get();
  if (last && serves(*last, modes, args, nargs, kwnames, tensors, numbers)) {
    last->used = function.stats.calls;
    return &function.variants.last();
  }
  const auto is_it = [&](const Variant& variant) {
    return &variant != last &&
           (variant.program.executable || variant.guards.values.empty()) &&  // else values decide: value_tree.cpp
           serves(variant, modes, args, nargs, kwnames, tensors, numbers);
  };
  const auto* found = function.variants.find(call_hash(args, nargs, kwnames, function.by_content), is_it);
  if (!found && function.variants.has_sized())
    found = function.variants.find(call_hash_of_any_size(args, nargs, kwnames, function.by_content), is_it);
  if (found) function.variants.used(*found, function.stats.calls);
  return found;
}

// The tensors that the program reads or writes; false if a written one shares memory with another. `is_just_found`:
// where captured ones lie, the look at them has just said, and of thousands each would be fetched again.
bool gather(const Variant& variant, PyObject* const* arg_tensors, Objects& objects, Inputs& inputs,
            bool is_just_found = false) {
  const std::vector<capture::InputSource>& sources = variant.program.inputs;
  objects.resize_for_overwrite(sources.size());
  inputs.resize_for_overwrite(sources.size());
  is_just_found &= !variant.guards.captured.has_lookups();
  if (is_just_found) inputs.first_elements.resize_for_overwrite(sources.size());
  for (size_t i = 0; i < sources.size(); ++i) {
    objects[i] = variant.input(sources[i], arg_tensors);
    inputs[i] = &THPVariable_Unpack(objects[i]);
    if (is_just_found) inputs.first_elements[i] = variant.first_element(sources[i]);
  }
  return !variant.program.checks_overlap || !overlaps(*variant.program.executable, inputs);
}

// Takes the gradients that the call leaves off its outputs, and leaves them where `is_real`.
void leave_grads(const HitProgram& program, Tensors& outputs, bool is_real) {
  const auto made = static_cast<size_t>(std::ranges::count(program.grads_made, true));
  const auto end = outputs.end() - static_cast<ptrdiff_t>(program.result_values);
  auto next = end - static_cast<ptrdiff_t>(made);
  for (size_t i = 0; i < program.grads_set.size() && is_real; ++i)
    unpack(program.grads_set[i]).mutable_grad() = program.grads_made[i] ? *next++ : at::Tensor();
  outputs.erase(end - static_cast<ptrdiff_t>(made), end);
}

void drop_hidden(const HitProgram& program, Tensors& outputs) {
  const auto end = outputs.end() - static_cast<ptrdiff_t>(program.result_values);
  outputs.erase(end - static_cast<ptrdiff_t>(program.hidden_results), end);
}

PyObject* wrap_outputs(const Variant& variant, Tensors& outputs, const Objects& objects, Recipe::Given given) {
  const plan::Program& program = variant.program.executable->program;
  c10::SmallVector<PyObject*, 8> leaves(outputs.size());
  const size_t tensors = outputs.size() - variant.program.result_values;
  const auto slot = [&](size_t i) -> const plan::Slot& { return program.slots[program.outputs[i]]; };
  // What is made below may start the garbage collector, and so finalisers that drop anything not held.
  for (size_t i = 0; i < tensors; ++i)
    if (slot(i).kind == plan::SlotKind::Input) leaves[i] = Py_NewRef(objects[slot(i).index]);
  for (size_t i = 0; i < tensors; ++i)
    if (slot(i).kind != plan::SlotKind::Input) leaves[i] = THPVariable_Wrap(std::move(outputs[i]));
  if (variant.program.recipe.single()) return leaves[0];
  PyObject** values = leaves.data() + tensors;
  for (size_t i = tensors; i < outputs.size(); ++i)
    leaves[i] = PyFloat_FromDouble(*static_cast<const double*>(outputs[i].const_data_ptr()));
  given.values = values;
  PyObject* result = variant.program.recipe.rebuild(leaves.data(), given);
  std::for_each(values, values + variant.program.result_values, Py_DecRef);
  return result;
}

bool execute(const Executable& executable, const plan::Program& program, const Inputs& inputs, const uint64_t* scalars,
             Tensors& outputs, ValueCheck* check) {
  if (check) return run_checked(executable, program, inputs.data(), scalars, outputs, *check);
  char* const* known = inputs.first_elements.empty() ? nullptr : inputs.first_elements.data();
  run(executable, program, inputs.data(), scalars, outputs, known);
  return true;
}

// Other threads may swap what a tensor's Python object stands for meanwhile.
bool run_without_gil(const Executable& executable, const plan::Program& program, const Inputs& inputs,
                     const uint64_t* scalars, Tensors& outputs, ValueCheck* check) {
  Tensors held;
  Inputs places;
  held.reserve(inputs.size());
  places.reserve(inputs.size());
  for (const at::Tensor* input : inputs) held.push_back(*input);
  for (const at::Tensor& tensor : held) places.push_back(&tensor);
  pybind11::gil_scoped_release release;
  return execute(executable, program, places, scalars, outputs, check);
}

}  // namespace

bool serves(const Variant& variant, const Modes& modes, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
            PyObject** tensors, PyObject** numbers) noexcept {
  const Sized* sized = variant.program.sized.get();
  const bool fits_late = sized && sized->finds_ints();
  return variant.key.modes == modes && variant.key.spec.match(args, nargs, kwnames, tensors, numbers) &&
         (!sized || fits_late || sized->fits(tensors, numbers)) &&
         (!variant.guards.facts || variant.guards.facts->check()) && variant.find_numbers(numbers) &&
         (!fits_late || sized->fits(tensors, numbers)) && variant.guards.captured.hold() &&
         (variant.program.device < 0 || variant.on_its_device(tensors)) &&
         (!variant.program.derived.has_guards() || variant.program.derived.holds(numbers, variant.number_count()));
}

bool checks_recordings() {
  return kChecksRecordings &&
         _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) == _PyEval_EvalFrameDefault;
}

bool overlaps(const Variant& variant, PyObject* const* arg_tensors) {
  Objects objects;
  Inputs inputs;
  return !gather(variant, arg_tensors, objects, inputs);
}

bool Variant::on_its_device(PyObject* const* tensors) const noexcept {
  const auto is_elsewhere = [&](PyObject* object) {
    const at::Tensor& tensor = unpack(object);
    return tensor.is_cuda() && tensor.get_device() != program.device;
  };
  for (size_t i = 0; i < key.spec.tensor_count(); ++i)
    if (is_elsewhere(tensors[i])) return false;
  for (size_t i = 0; i < guards.captured.size(); ++i)
    if (PyObject* object = guards.captured.object(i); object != Py_None && is_elsewhere(object)) return false;
  return true;
}

c10::Device device_of(const Variant& variant) {
  return variant.program.device < 0 ? c10::Device(c10::kCPU)
                                    : c10::Device(c10::kCUDA, static_cast<int8_t>(variant.program.device));
}

namespace {

constexpr const char* kWatched = "a hook waits for the gradient of a parameter";
constexpr const char* kSharesMemory = "a written tensor shares memory with another argument";

using Scalars = c10::SmallVector<uint64_t, 8>;

// What the kernels are given of the call's numbers; false: one is beyond what eager takes.
bool gather_scalars(const Variant& variant, const Sized::Lease& sizes, PyObject* const* numbers, Scalars& scalars,
                    std::string& why) {
  for (size_t i = 0; i < variant.program.scalar_number.size(); ++i) {
    if (variant.program.scalar_number[i] == capture::Capture::kSize) {
      scalars.push_back(sizes ? sizes.scalar(i) : 0);
      continue;
    }
    PyObject* number = numbers[variant.program.scalar_number[i]];
    if (!within(number, variant.program.scalar_is_float[i], variant.program.scalar_limit[i])) {
      why = variant.program.scalar_name[i] + " is too large for the tensors it is used with";
      return false;
    }
    scalars.push_back(number_bits(number, variant.program.scalar_is_float[i]));
  }
  return true;
}

PyObject* run_with(const Variant& variant, const Objects& objects, const Inputs& inputs, PyObject* const* numbers,
                   PyObject* const* targets, std::string& why, ValueCheck* check, bool is_real,
                   Derived::Numbers* all = nullptr) {
  const Executable& executable = *variant.program.executable;
  const WayBack* back = variant.program.back.get();
  // What eager computes and drops has nodes too, which hooks would see.
  const char* eager = back ? back->why_eager() : variant.program.without_grad ? why_no_nodes() : nullptr;
  if (eager && is_real) return why = eager, nullptr;
  if (std::ranges::any_of(variant.program.gone_back_to, has_gradient_hooks)) return why = kWatched, nullptr;
  const Sized* sized = variant.program.sized.get();
  const Sized::Lease sizes = sized ? sized->take(inputs.data(), numbers) : Sized::Lease();
  if (sized && !sizes) return why = "the sizes of a tensor changed meanwhile", nullptr;
  const plan::Program& program = sized ? sizes.program() : executable.program;
  const bool releases_gil = executable.releases_gil || (sized && sizes.is_long());
  Scalars scalars;
  if (!gather_scalars(variant, sizes, numbers, scalars, why)) return nullptr;
  std::optional<ValueCheck> own;  // a run that finds sizes stops where they are others than the guards say
  if (sized && sized->has_late()) {
    if (!check) check = &own.emplace(ValueCheck{.expected = variant.guards.values});
    check->late = sizes.late(scalars.data());
  }
  c10::SmallVector<pybind11::object, 8> held;
  if (releases_gil) {  // others may take them out of the lists they came in
    const auto hold = [&](PyObject* object) { held.push_back(pybind11::reinterpret_borrow<pybind11::object>(object)); };
    held.reserve(objects.size() + variant.number_count());
    std::for_each(objects.begin(), objects.end(), hold);
    std::for_each(numbers, numbers + variant.number_count(), hold);
  }
  // A program that went through once goes through again, but for the steps that may raise; the first time any may, and
  // at other sizes calls of torch's.
  std::optional<Undo> undo;
  const Changes& changes = executable.changes;
  const bool may_differ = sized && (sizes.is_new() || sized->has_late());
  const bool first = changes.any() && (!variant.hits || (may_differ && changes.undoable_at_first));
  if (changes.undoable || first) undo.emplace(changes, inputs.data(), device_of(variant), first);
  Tensors outputs;
  bool done = false;
  std::optional<at::NoGradGuard> without_grad;
  if (variant.program.without_grad) without_grad.emplace();
  std::optional<c10::InferenceMode> inference;
  if (variant.program.in_inference_mode) inference.emplace();
  try {
    done = releases_gil ? run_without_gil(executable, program, inputs, scalars.data(), outputs, check)
                        : execute(executable, program, inputs, scalars.data(), outputs, check);
  } catch (const Restart& restart) {
    why = restart.why;
    if (sized) sized->fail(why);
  } catch (const std::exception& error) {
    if (executable.writes && !undo && lacks_memory(error)) throw;
    why = "an operator raised";  // eager raises its own error
  }
  if (!done) {
    if (undo) undo->put_back();
    if (own && why.empty()) why = "what it reads of tensors changed meanwhile";
    return nullptr;
  }
  if (sized) sizes.count_run();
  if (all && !all->finish()) return nullptr;
  if (back && is_real)
    back->attach(outputs, inputs.data(), scalars, sized ? sizes.symbols() : std::span<const int64_t>());
  if (back && !is_real) outputs.resize(outputs.size() - back->extras);
  if (!variant.program.grads_set.empty()) leave_grads(variant.program, outputs, is_real);
  if (variant.program.hidden_results) drop_hidden(variant.program, outputs);
  return wrap_outputs(variant, outputs, objects, {numbers, nullptr, scalars.data(), targets});
}

// The result, or with effects the tuple of it and the values to store. `is_real`: what the call draws in Python stays
// drawn, and autograd goes through its results.
PyObject* run_program(const Variant& variant, const Objects& objects, const Inputs& inputs, PyObject* const* numbers,
                      PyObject* const* targets, std::string& why, ValueCheck* check, bool is_real) {
  if (variant.program.derived.empty()) return run_with(variant, objects, inputs, numbers, targets, why, check, is_real);
  Derived::Numbers all(variant.program.derived, numbers, variant.number_count());
  why = all.why();
  PyObject* result =
      why.empty() ? run_with(variant, objects, inputs, all.data(), targets, why, check, is_real, &all) : nullptr;
  if (result && is_real) all.keep();
  return result;
}

}  // namespace

PyObject* run_on_tensors(const Variant& variant, const Objects& objects, const Inputs& inputs, PyObject* const* numbers,
                         PyObject* const* targets, std::string& why, ValueCheck* check) {
  PyObject* made = run_program(variant, objects, inputs, numbers, targets, why, check, false);
  return variant.program.replay ? variant.program.replay->result_of(made) : made;
}

PyObject* run_variant(const Variant& variant, PyObject* const* arg_tensors, PyObject* const* numbers, std::string& why,
                      ValueCheck* check, bool is_just_found) {
  Objects objects;
  Inputs inputs;
  if (!gather(variant, arg_tensors, objects, inputs, is_just_found)) {
    why = kSharesMemory;
    return nullptr;
  }
  const std::vector<observe::Ref> kept = variant.program.recipe.hold();
  PyObject* const* changed = arg_tensors + variant.key.spec.tensor_count();
  if (!variant.program.replay) return run_program(variant, objects, inputs, numbers, changed, why, check, true);
  why = variant.program.replay->refuse();
  if (!why.empty()) return nullptr;
  const std::vector<observe::Ref> targets = variant.program.replay->hold(changed);
  return variant.program.replay->apply(run_program(variant, objects, inputs, numbers, changed, why, check, true),
                                       changed);
}

void count_hit(Function& function, Variant& variant) {
  ++function.stats.hits;
  ++variant.hits;
  function.stats.operators += variant.program.operators;
  if (variant.program.sized && variant.program.sized->wants_plan()) [[unlikely]]
    plan_anew(function, variant);
}

std::string why_not_run(const Variant& variant, PyObject* const* arg_tensors, PyObject* const* numbers) {
  if (overlaps(variant, arg_tensors)) return kSharesMemory;
  std::string why = variant.program.replay ? variant.program.replay->refuse() : "";
  if (!why.empty()) return why;
  const Derived::Numbers all(variant.program.derived, numbers, variant.number_count());
  Scalars scalars;
  if (all.why().empty()) gather_scalars(variant, {}, all.data(), scalars, why);
  return all.why() + why;
}

namespace {

// What torch warns of meanwhile is kept and then said in Python; errors of torch and of C++ become Python's.
template <class Body>
PyObject* with_warnings(Body body) {
  HANDLE_TH_ERRORS
  return body();
  END_HANDLE_TH_ERRORS
}

// Null without an exception: the call is to be eager, `why` says why.
PyObject* hit(Function& function, Variant& variant, PyObject* const* tensors, PyObject* const* numbers,
              std::string& why, bool is_just_found = false) {
  PyObject* result = run_variant(variant, tensors, numbers, why, nullptr, is_just_found);
  if (result) count_hit(function, variant);
  return result;
}

// A call that a variant serves, where nothing but its kernels runs: no operator of torch can warn.
bool runs_kernels_only(const Function& function, const Variant& variant) {
  return variant.reason.empty() && variant.guards.values.empty() && !variant.program.executable->calls_torch &&
         !function.options.verify && !kChecksRecordings && !observe::tracer_active();
}

PyObject* call_served(FunctionObject* self, const std::shared_ptr<Variant>& variant, PyObject* const* tensors,
                      PyObject* const* numbers, PyObject* const* args, size_t nargsf, PyObject* kwnames,
                      const Modes& modes) {
  Function& function = *self->function;
  if (variant->pending) {
    const Settled settled = settle(function, variant);
    if (settled == Settled::Raises) return nullptr;
    if (settled == Settled::Waits) return run_eager(function, kBeingCompiled, args, nargsf, kwnames);
    if (settled == Settled::Eager) return run_eager(function, "", args, nargsf, kwnames);
  }
  if (!variant->reason.empty() && variant->guards.values.empty()) {
    if (retire(function, variant)) return learn(self, args, nargsf, kwnames, modes);
    return run_in_parts(function, variant->reason, args, nargsf, kwnames);
  }
  if (observe::tracer_active()) return run_eager(function, "tracer active", args, nargsf, kwnames);
  if (!variant->guards.values.empty()) {
    if (skips_values(function, function.stats.calls))
      return ++function.stats.misses, run_in_stretch(function, args, nargsf, kwnames);
    return call_by_values(self, variant, args, nargsf, kwnames, modes);
  }
  if (checks_recordings() && !function.options.pure && !overlaps(*variant, tensors))
    return check_recording(self, *variant, numbers, args, nargsf, kwnames);
  if (function.options.verify > 0 && is_verified(function.options.verify, variant->hits) &&
      !variant->program.derived.asks_clock() && !overlaps(*variant, tensors))
    return verified_call(self, variant, tensors, numbers, args, nargsf, kwnames);
  std::string why;
  PyObject* result = hit(function, *variant, tensors, numbers, why);
  return result || PyErr_Occurred() ? result : run_eager(function, why, args, nargsf, kwnames);
}

}  // namespace

PyObject* call_function(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  auto* self = reinterpret_cast<FunctionObject*>(object);
  Function& function = *self->function;
  const ThisThread& thread = this_thread();
  if (thread.recording)
    return PyObject_Vectorcall(function.slots ? function.eager() : function.callable, args, nargsf, kwnames);
  ++function.stats.calls;
  const auto eagerly = [&](const std::string& why) {
    return with_warnings([&] { return run_eager(function, why, args, nargsf, kwnames); });
  };
  try {
    if (stance() == Stance::Eager) return eagerly("stance is eager");
    if (function.slots && !function.slots->refresh()) return nullptr;
    const Modes modes = current_modes(thread);
    const size_t width = function.variants.width();
    c10::SmallVector<PyObject*, 16> tensors(width), numbers(width);
    const auto* found =
        find(function, modes, args, PyVectorcall_NARGS(nargsf), kwnames, tensors.data(), numbers.data());
    if (!found) return with_warnings([&] { return learn(self, args, nargsf, kwnames, modes); });
    const std::shared_ptr<Variant> variant = *found;  // finalisers, Python code or another thread may drop it
    if (!runs_kernels_only(function, *variant))
      return with_warnings(
          [&] { return call_served(self, variant, tensors.data(), numbers.data(), args, nargsf, kwnames, modes); });
    std::string why;
    PyObject* result = hit(function, *variant, tensors.data(), numbers.data(), why, true);
    return result || PyErr_Occurred() ? result : eagerly(why);
  } catch (const std::exception&) {
    torch::translate_exception_to_python(std::current_exception());
    return nullptr;
  }
}

}  // namespace fastjit::dispatch
