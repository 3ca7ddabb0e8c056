#include "dispatch/learn/refuse.h"

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

// Those of the arguments and of what they hold that are wanted.
static std::vector<std::string> names_of(const CallSpec& call, const std::vector<std::string>& arguments,
                                         bool (*is_wanted)(ArgKind)) {
  const std::vector<ArgSpec>& specs = call.specs();
  std::vector<std::string> out;
  size_t at = 0;
  const std::function<void(const std::string&)> walk = [&](const std::string& label) {
    const ArgSpec& spec = specs[at++];
    if (is_wanted(spec.kind)) out.push_back(label);
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

std::vector<std::string> tensor_names(const CallSpec& call, const std::vector<std::string>& arguments) {
  return names_of(call, arguments, [](ArgKind kind) { return kind == ArgKind::Tensor; });
}

std::vector<std::string> number_names(const CallSpec& call, const std::vector<std::string>& arguments) {
  return names_of(call, arguments, [](ArgKind kind) {
    return kind == ArgKind::Int || kind == ArgKind::Float || kind == ArgKind::Number;
  });
}

c10::Device device_of(const std::vector<PyObject*>& tensors) {
  const auto on_device = std::ranges::find_if(tensors, [](PyObject* tensor) { return unpack(tensor).is_cuda(); });
  return on_device == tensors.end() ? c10::Device(c10::kCPU) : unpack(*on_device).device();
}

// What the devices of a call's tensors are in the way of, or empty.
static std::string refuse_devices(const std::vector<PyObject*>& tensors, const std::function<std::string(size_t)>& name,
                                  std::string& advice) {
  const c10::Device device = device_of(tensors);
  size_t first = tensors.size();
  for (size_t i = tensors.size(); i-- > 0;) {
    const at::Tensor& tensor = unpack(tensors[i]);
    if (!tensor.is_cuda()) continue;
    first = i;
    if (tensor.device() == device) continue;
    advice = "move its tensors to one device";
    return "its arguments are on " + device.str() + " and " + tensor.device().str();
  }
  return first < tensors.size() ? refuse_device(name(first) + " is", device, advice) : "";
}

std::string refuse_device(const std::string& what_is, c10::Device device, std::string& advice) {
  if (!device.is_cuda() || cuda_problem().empty()) return "";
  advice = kCudaAdvice;
  return what_is + " on " + device.str() + " but " + cuda_problem();
}

std::string refuse(const Function& function, const CallSpec& spec, const std::vector<std::string>& names,
                   std::string& advice) {
  if (!function.options.pure && !observe::available()) {
    advice = "pass pure=True if the result depends on the arguments only";
    return "this build has no read observer, which is for CPython 3.11 to 3.14 with their GIL";
  }
  const auto name = [&](size_t tensor) { return "argument '" + tensor_names(spec, names)[tensor] + "'"; };
  for (size_t i = 0; i < spec.flat().tensors.size(); ++i) {
    const at::Tensor& tensor = unpack(spec.flat().tensors[i]);
    if (const char* why = unsupported(tensor)) return name(i) + " is not supported: " + why;
  }
  return refuse_devices(spec.flat().tensors, name, advice);
}

}  // namespace fastjit::dispatch
