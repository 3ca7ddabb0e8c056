#include "dispatch/function.h"

#include <ATen/record_function.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <bit>
#include <cmath>

#include "dispatch/call.h"
#include "support/env.h"

namespace fastjit::dispatch {
namespace {

Stance current_stance = Stance::Default;

// Whether any written input shares bytes with another input. Rare programs only.
bool overlaps(const Executable& executable, const c10::SmallVector<const at::Tensor*, 8>& inputs) {
  const auto range = [](const at::Tensor& t) {
    const char* begin = static_cast<const char*>(t.unsafeGetTensorImpl()->data());
    int64_t last = 0;
    for (int64_t d = 0; d < t.dim(); ++d) last += std::max<int64_t>(t.size(d) - 1, 0) * t.stride(d);
    return std::pair(begin, begin + (t.numel() ? (last + 1) * static_cast<int64_t>(t.element_size()) : 0));
  };
  std::vector<bool> written(inputs.size(), false);
  for (const ir::Store& store : executable.stores) written[store.input] = true;
  for (const plan::Step& step : executable.program.steps)
    if (const auto* call = std::get_if<plan::ExternStep>(&step))
      for (uint8_t operand : executable.externs[call->external].written) {
        plan::SlotId id = call->operands[operand];
        while (executable.program.slots[id].kind == plan::SlotKind::Alias) id = executable.program.slots[id].base;
        if (executable.program.slots[id].kind == plan::SlotKind::Input)
          written[executable.program.slots[id].index] = true;
      }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!written[i]) continue;
    const auto [begin, end] = range(*inputs[i]);
    for (size_t k = 0; k < inputs.size(); ++k) {
      const auto [from, to] = range(*inputs[k]);
      if (k != i && begin < to && from < end) return true;
    }
  }
  return false;
}

const bool kChecksRecordings = support::setting_text(support::Setting::Check) == "record";

uint64_t number_bits(PyObject* number, bool is_float) {
  if (is_float) return std::bit_cast<uint64_t>(PyFloat_AS_DOUBLE(number));
  return static_cast<uint64_t>(PyLong_AsLongLong(number));  // the call matched: it fits
}

bool within(PyObject* number, bool is_float, double limit) {
  const double value = is_float ? PyFloat_AS_DOUBLE(number) : static_cast<double>(PyLong_AsLongLong(number));
  return !(std::fabs(value) > limit) || std::isinf(value);
}

bool captured_hold(const Variant& variant) noexcept {
  for (const CapturedTensor& captured : variant.captured)
    if (!captured.spec.matches(captured.object)) return false;
  return true;
}

// A variant that serves this call, or null; borrowed from the function.
const std::shared_ptr<Variant>* find(Function& function, const Modes& modes, PyObject* const* args, Py_ssize_t nargs,
                                     PyObject* kwnames, PyObject** tensors, PyObject** numbers) {
  const auto serves = [&](Variant& variant) {
    return variant.modes == modes && variant.spec.match(args, nargs, kwnames, tensors, numbers) &&
           (!variant.facts || variant.facts->check()) && captured_hold(variant) &&
           (variant.device < 0 || variant.on_its_device(tensors));
  };
  const Variant* last = function.variants.last().get();
  if (last && serves(*function.variants.last())) return &function.variants.last();
  const auto* found = function.variants.find(call_hash(args, nargs, kwnames),
                                             [&](Variant& variant) { return &variant != last && serves(variant); });
  if (found) function.variants.used(*found);
  return found;
}

// The tensors that the program reads or writes; false if a written one shares memory with another.
bool gather(const Variant& variant, PyObject* const* arg_tensors, c10::SmallVector<PyObject*, 8>& objects,
            c10::SmallVector<const at::Tensor*, 8>& inputs) {
  for (const capture::InputSource& source : variant.inputs) {
    objects.push_back(source.kind == capture::InputSource::Kind::Argument ? arg_tensors[source.index]
                                                                          : variant.captured[source.index].object);
    inputs.push_back(&unpack(objects.back()));
  }
  return !variant.checks_overlap || !overlaps(*variant.executable, inputs);
}

bool is_checked(const Variant& variant, PyObject* const* arg_tensors) {
  c10::SmallVector<PyObject*, 8> objects;
  c10::SmallVector<const at::Tensor*, 8> inputs;
  return gather(variant, arg_tensors, objects, inputs);
}

PyObject* wrap_outputs(const Variant& variant, Tensors& outputs, const c10::SmallVector<PyObject*, 8>& objects,
                       PyObject* const* numbers) {
  const plan::Program& program = variant.executable->program;
  c10::SmallVector<PyObject*, 8> leaves(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const plan::Slot& slot = program.slots[program.outputs[i]];
    if (slot.kind == plan::SlotKind::Input)
      leaves[i] = Py_NewRef(objects[slot.index]);
    else
      leaves[i] = THPVariable_Wrap(std::move(outputs[i]));
  }
  return variant.recipe.single() ? leaves[0] : variant.recipe.rebuild(leaves.data(), numbers);
}

}  // namespace

bool Variant::on_its_device(PyObject* const* tensors) const noexcept {
  for (size_t i = 0; i < spec.tensor_count(); ++i)
    if (unpack(tensors[i]).device().index() != device) return false;
  for (const CapturedTensor& tensor : captured)
    if (unpack(tensor.object).device().index() != device) return false;
  return true;
}

Stance stance() { return current_stance; }
void set_stance(Stance stance) { current_stance = stance; }

PyObject* run_variant(Variant& variant, PyObject* const* arg_tensors, PyObject* const* numbers, std::string& why) {
  const Executable& executable = *variant.executable;
  c10::SmallVector<PyObject*, 8> objects;
  c10::SmallVector<const at::Tensor*, 8> inputs;
  if (!gather(variant, arg_tensors, objects, inputs)) {
    why = "a written tensor shares memory with another argument";
    return nullptr;
  }
  c10::SmallVector<uint64_t, 8> scalars;
  for (size_t i = 0; i < variant.scalar_number.size(); ++i) {
    PyObject* number = numbers[variant.scalar_number[i]];
    if (!within(number, variant.scalar_is_float[i], variant.scalar_limit[i])) {
      why = variant.scalar_name[i] + " is too large for the tensors it is used with";
      return nullptr;
    }
    scalars.push_back(number_bits(number, variant.scalar_is_float[i]));
  }
  Tensors outputs;
  try {
    if (executable.long_running) {
      // Others may run meanwhile: hold the inputs.
      Tensors held;
      for (const at::Tensor* input : inputs) held.push_back(*input);
      for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = &held[i];
      pybind11::gil_scoped_release release;
      run(executable, inputs.data(), scalars.data(), outputs);
    } else {
      run(executable, inputs.data(), scalars.data(), outputs);
    }
  } catch (const Restart& restart) {
    if (executable.writes)
      throw std::runtime_error("fastjit: " + restart.why + ", after the program wrote to its arguments");
    why = restart.why;
    return nullptr;
  } catch (const std::exception&) {
    if (executable.writes) throw;
    why = "an operator raised";  // eager raises its own error
    return nullptr;
  }
  return wrap_outputs(variant, outputs, objects, numbers);
}

PyObject* call_function(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  HANDLE_TH_ERRORS
  auto* self = reinterpret_cast<FunctionObject*>(object);
  Function& function = *self->function;
  if (recording()) return PyObject_Vectorcall(function.callable, args, nargsf, kwnames);
  ++function.stats.calls;
  if (current_stance == Stance::Eager) return run_eager(function, "stance is eager", args, nargsf, kwnames);
  const Modes modes = current_modes();
  const Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
  const size_t width = function.variants.width();
  c10::SmallVector<PyObject*, 16> tensors(width), numbers(width);
  const auto* found = find(function, modes, args, nargs, kwnames, tensors.data(), numbers.data());
  if (!found) return learn(self, args, nargsf, kwnames, modes);
  Variant* variant = found->get();
  if (!variant->executable) return run_eager(function, variant->reason, args, nargsf, kwnames);
  if (observe::tracer_active()) return run_eager(function, "tracer active", args, nargsf, kwnames);
  if (kChecksRecordings && !function.options.pure && is_checked(*variant, tensors.data()))
    return check_recording(self, *variant, args, nargsf, kwnames);
  std::string why;
  // Others may drop the variant while Python code or another thread runs.
  const std::shared_ptr<Variant> held = variant->executable->runs_foreign_code() ? *found : nullptr;
  PyObject* result = run_variant(*variant, tensors.data(), numbers.data(), why);
  if (result) {
    ++function.stats.hits;
    ++variant->hits;
    return result;
  }
  if (PyErr_Occurred()) return nullptr;
  return run_eager(function, why, args, nargsf, kwnames);
  END_HANDLE_TH_ERRORS
}

}  // namespace fastjit::dispatch
