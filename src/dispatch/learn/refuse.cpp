#include "dispatch/learn/refuse.h"

#include <algorithm>

#include "dispatch/call/value_tree.h"
#include "dispatch/learn/messages.h"
#include "dispatch/run/cuda_device.h"

namespace fastjit::dispatch {

// The Python function whose parameters a call's arguments are: below decorators that take any (functools.wraps).
static PyObject* with_parameters(PyObject* callable) {
  PyObject* function = PyMethod_Check(callable) ? PyMethod_GET_FUNCTION(callable) : callable;
  constexpr int kMostDecorators = 16;
  for (int i = 0; i < kMostDecorators && PyFunction_Check(function); ++i) {
    const auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function));
    PyObject* attributes = reinterpret_cast<PyFunctionObject*>(function)->func_dict;
    if (code->co_argcount > 0 || !(code->co_flags & CO_VARARGS) || !attributes) break;
    PyObject* wrapped = PyDict_GetItemString(attributes, "__wrapped__");
    if (!wrapped) break;
    function = wrapped;
  }
  return function;
}

std::vector<std::string> argument_names(PyObject* callable, Py_ssize_t nargs, PyObject* kwnames) {
  std::vector<std::string> names;
  PyObject* function = with_parameters(callable);
  PyObject* varnames = nullptr;
  if (PyFunction_Check(function))
    varnames = PyCode_GetVarnames(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function)));
  const Py_ssize_t skip = PyMethod_Check(callable) ? 1 : 0;
  for (Py_ssize_t i = 0; i < nargs; ++i) {
    const bool known =
        varnames && i + skip < reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function))->co_argcount;
    names.push_back(known ? PyUnicode_AsUTF8(PyTuple_GET_ITEM(varnames, i + skip)) : "arg" + std::to_string(i));
  }
  for (Py_ssize_t i = 0; kwnames && i < PyTuple_GET_SIZE(kwnames); ++i)
    names.emplace_back(PyUnicode_AsUTF8(PyTuple_GET_ITEM(kwnames, i)));
  Py_XDECREF(varnames);
  PyErr_Clear();
  return names;
}

std::vector<std::string> tensor_names(const CallSpec& call, const std::vector<std::string>& arguments) {
  const std::vector<ArgSpec>& specs = call.specs();
  std::vector<std::string> out;
  size_t at = 0;
  const std::function<void(const std::string&)> walk = [&](const std::string& label) {
    const ArgSpec& spec = specs[at++];
    if (spec.kind == ArgKind::Tensor) out.push_back(label);
    for (Py_ssize_t i = 0; i < spec.length; ++i) {
      const bool has_keys = spec.kind == ArgKind::Dict || spec.kind == ArgKind::Instance;
      PyObject* key = has_keys ? PyTuple_GET_ITEM(spec.object, i) : nullptr;
      if (spec.kind == ArgKind::Instance && PyUnicode_Check(key))
        walk(label + "." + PyUnicode_AsUTF8(key));
      else
        walk(label + "[" + (key ? repr(key) : std::to_string(i)) + "]");
    }
  };
  for (const std::string& argument : arguments)
    if (at < specs.size()) walk(argument);
  return out;
}

c10::Device device_of(const std::vector<PyObject*>& tensors) {
  return tensors.empty() ? c10::Device(c10::kCPU) : unpack(tensors[0]).device();
}

// What the devices of a call's tensors are in the way of, or empty.
static std::string refuse_devices(const Function& function, const std::vector<PyObject*>& tensors,
                                  const std::function<std::string(size_t)>& name, std::string& advice) {
  const c10::Device device = device_of(tensors);
  for (PyObject* tensor : tensors) {
    if (unpack(tensor).device() == device) continue;
    advice = "move its tensors to one device";
    return "its arguments are on " + device.str() + " and " + unpack(tensor).device().str();
  }
  if (!device.is_cuda()) return "";
  const std::string reason = name(0) + " is on " + device.str();
  if (!function.options.pure) {
    advice = "CUDA tensors need pure=True: a promise that the result depends on the arguments only";
    return reason;
  }
  if (cuda_problem().empty()) return "";
  advice = kCudaAdvice;
  return reason + " but " + cuda_problem();
}

std::string refuse(const Function& function, const CallSpec& spec, const Modes& modes,
                   const std::vector<std::string>& names, std::string& advice) {
  if (!function.options.pure && !observe::available()) {
    advice = "pass pure=True if the result depends on the arguments only";
    return "this build has no read observer, which is for CPython 3.11 to 3.14 with their GIL";
  }
  const auto name = [&](size_t tensor) { return "argument '" + tensor_names(spec, names)[tensor] + "'"; };
  for (size_t i = 0; i < spec.flat().tensors.size(); ++i) {
    const at::Tensor& tensor = unpack(spec.flat().tensors[i]);
    if (const char* why = unsupported(tensor)) return name(i) + " is not supported: " + why;
    if (function.differentiates && modes.grad() && tensor.requires_grad()) {
      advice = kNoGradAdvice;
      return name(i) + " requires grad";
    }
  }
  return refuse_devices(function, spec.flat().tensors, name, advice);
}

std::string waiting(const Function& function, uint64_t call) {
  return call < function.next_record ? function.pause_reason : "";
}

constexpr size_t kUnproven = 8;  // sizes or values that are recorded at once, while none of them has come again

bool has_new_sizes(const Function& function, const CallSpec& call) {
  constexpr size_t kMostSizes = 4096;  // that are noted
  bool known = false;
  size_t unproven = 0;
  for (const auto& variant : function.variants.all()) {
    if (known) break;
    if (!variant->key.spec.same_but_sizes(call)) continue;
    known = variant->key.spec.same_sizes(call);
    if (variant->program.device >= 0 && variant->program.device != device_of(call.flat().tensors).index()) continue;
    unproven += variant->hits == 0 && (variant->program.executable || variant->pending);
  }
  return unproven >= kUnproven && !known && function.seen_sizes.size() < kMostSizes &&
         !function.seen_sizes.contains(call.signature());
}

bool has_new_value(const Function& function, const std::vector<capture::ValueGuard>& path) {
  return !path.empty() && !function.seen_values.contains(hash_of(path)) && unproven_values(function, path) >= kUnproven;
}

uint32_t unused_recordings(const Function& function) {
  return function.stats.hits == function.hits_when_recorded ? function.unused_recordings + 1 : 0;
}

std::string fruitless(const Function& function, uint32_t unused) {
  constexpr uint32_t kMostUnused = 64;
  if (unused <= std::max(kMostUnused, function.options.max_variants)) return "";
  return "none of the last " + std::to_string(unused - 1) + " recordings served a second call";
}

constexpr size_t kMostObjects = 64;  // that a method may be bound to with max_variants each

std::string full(const Function& function, const CallSpec& call, const std::function<std::string()>& varied) {
  const uint64_t most = function.options.max_variants;
  if (function.variants.siblings(call).size() < most && function.variants.all().size() < kMostObjects * most) return "";
  const std::string what = varied();
  return "variant limit (" + std::to_string(most) + ") reached" + (what.empty() ? "" : ": " + what);
}

}  // namespace fastjit::dispatch
