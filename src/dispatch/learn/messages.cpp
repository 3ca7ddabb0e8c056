#include "dispatch/learn/messages.h"

#include <algorithm>
#include <optional>

#include "dispatch/call/function.h"
#include "observe/libraries.h"
#include "support/log.h"

namespace fastjit::dispatch {
namespace {

PyObject* warning_type = nullptr;
PyObject* error_type = nullptr;

constexpr std::string_view kDynamo =
    " at eval_frame.py:";  // where the first step of an optimizer keeps Dynamo out, too
constexpr std::string_view kOutside = "do this outside the function";
constexpr std::string_view kCompiler =
    "functions of torch.compile are not compiled inside of others; call them outside";
constexpr std::string_view kGradients =
    "'python -m fastjit docs training' says which gradients are compiled; where none is needed, call it under "
    "torch.no_grad()";
constexpr std::string_view kReentrant = "pass use_reentrant=False to torch.utils.checkpoint";
constexpr std::string_view kCheckpoint =
    "'python -m fastjit docs training' says what a checkpoint inside a call may do";
constexpr std::string_view kScripted =
    "TorchScript is not compiled inside of other functions; give it to fastjit itself";
constexpr std::string_view kHandedOver =
    "the interpreter takes what TorchScript converts (a bool or a dtype for an int), texts that are not ASCII, hooks "
    "and numbers that wrap around; pass values of the types that the signature names";
constexpr std::string_view kLargeArray = "more than guards compare";
constexpr std::string_view kAsArgument =
    "pass it as an argument, or say pure=True if the result depends on the arguments only";

// The way out by what a reason begins with; the last row fits every reason.
constexpr struct {
  std::string_view begins, advice;
} kAdvice[] = {
    {"recording limit",
     "give fastjit the body of the loop, work on whole tensors, or raise the FASTJIT_RECORD_ setting"},
    {"its gradients", kGradients},
    {"backward(), and", kGradients},
    {"value of a tensor left", "choose with torch.where, or do this outside the function"},
    {"side effect", kOutside},
    {"an array of numpy is read", "make a tensor of it outside the function"},
    {"the memory of an array", "torch.tensor(array) makes a copy"},
    {"its result shares memory with an array", "torch.tensor(array) makes a copy"},
    {"store to", kOutside},
    {"call of TensorBase.", "choose with torch.where, or do this outside the function"},
    {"its TorchScript", "rewrite this, or decorate the Python code that it was made of"},
    {"call of ScriptFunction", kScripted},
    {"call of torch._C.ScriptMethod", kScripted},
    {"it returns", "return tensors, numbers, text, or tuples, lists and dictionaries of them"},
    {"iteration over", kAsArgument},
    {"read of", kAsArgument},
    {"result of", "torch.where keeps the sizes; or do this outside the function"},
    {"use of a tensor outside operators", kOutside},
    {"", kLimitsAdvice},
};

std::string_view way_out(const Function& function, std::string_view reason) {
  if (function.original && reason.starts_with("call of Script")) return kHandedOver;
  if (reason.find(kDynamo) != reason.npos) return kCompiler;
  if (reason.find("CheckpointFunctionBackward") != reason.npos) return kReentrant;
  if (reason.find("torch.utils.checkpoint") != reason.npos) return kCheckpoint;
  if (reason.ends_with(')') && reason.find(" (called at ") != reason.npos)  // inside a library: no argument can help
    return kOutside;
  if (reason.find(kLargeArray) != reason.npos) return "make the tensor outside the function";
  return std::ranges::find_if(kAdvice, [&](const auto& row) { return reason.starts_with(row.begins); })->advice;
}

std::string parts_text(const Function& function) {
  const size_t count = function.parts.with_programs().size();
  if (!count) return "";
  return count == 1 ? " (one part of it is a program: see parts())"
                    : " (" + std::to_string(count) + " parts of it are programs: see parts())";
}

}  // namespace

Py_ssize_t user_level() {
  Py_ssize_t level = 1, found = 1;
  std::optional<observe::Owner> nearest;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  for (; frame && nearest != observe::Owner::User; ++level) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const observe::Owner owner = observe::owner_of(code);
    Py_DECREF(code);
    if (!nearest || owner < *nearest) nearest = owner, found = level;
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
  return found;
}

void register_message_types(PyObject* warning, PyObject* error) {
  warning_type = Py_NewRef(warning);
  error_type = Py_NewRef(error);
}

bool note_stretch(Function& function, const std::string& reason, const std::string& advice, bool warns) {
  count_fallback(function.stats, reason);
  const std::string text =
      "fastjit: " + function.options.name + " runs new calls eagerly for a while because " + reason + "; " + advice;
  support::log(support::Channel::Fallback, text);
  if (!warns || function.options.on_unsupported == OnUnsupported::Eager || function.patience.warned) return true;
  function.patience.warned = true;
  return PyErr_WarnEx(warning_type, text.c_str(), user_level()) == 0;
}

bool note_fallback(Function& function, const std::string& reason, const std::string& advice, bool may_pass) {
  count_fallback(function.stats, reason);
  const std::string text = "fastjit: " + function.options.name + " ran eagerly because " + reason + "; " +
                           std::string(advice.empty() ? way_out(function, reason) : advice) + parts_text(function);
  support::log(support::Channel::Fallback, text);
  if (function.options.on_unsupported == OnUnsupported::Error) {
    PyErr_SetString(error_type, text.c_str());
    return false;
  }
  const bool is_once = reason.starts_with("import of ") || reason.starts_with("call of __import__ ") ||
                       reason.find(kDynamo) != reason.npos;
  if (function.options.on_unsupported == OnUnsupported::Eager || function.warned || (may_pass && is_once)) return true;
  function.warned = true;
  return PyErr_WarnEx(warning_type, text.c_str(), user_level()) == 0;
}

PyObject* run_eager(Function& function, const std::string& reason, PyObject* const* args, size_t nargsf,
                    PyObject* kwnames) {
  if (!reason.empty()) count_fallback(function.stats, reason);
  return PyObject_Vectorcall(function.eager(), args, nargsf, kwnames);
}

PyObject* run_in_stretch(Function& function, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  return run_in_parts(function, function.patience.why, args, nargsf, kwnames);
}

PyObject* run_in_parts(Function& function, const std::string& reason, PyObject* const* args, size_t nargsf,
                       PyObject* kwnames) {
  if (!Parts::available() || function.options.pure || function.is_part || function.original || observe::tracer_active())
    return run_eager(function, reason, args, nargsf, kwnames);
  if (!reason.empty()) count_fallback(function.stats, reason);
  return function.parts.call(function.callable, function.options, args, nargsf, kwnames);
}

}  // namespace fastjit::dispatch
