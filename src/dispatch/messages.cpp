#include "dispatch/messages.h"

#include <algorithm>

#include "dispatch/function.h"
#include "support/log.h"

namespace fastjit::dispatch {
namespace {

PyObject* warning_type = nullptr;
PyObject* error_type = nullptr;
std::vector<std::string> library_folders;

// The way out by what a reason begins with; the last row fits every reason.
constexpr struct {
  std::string_view begins, advice;
} kAdvice[] = {
    {"value of a tensor left", "choose with torch.where, or do this outside the function"},
    {"side effect", "do this outside the function"},
    {"store to", "do this outside the function"},
    {"call of TensorBase.", "choose with torch.where, or do this outside the function"},
    {"it returns", "return tensors, numbers, text, or tuples, lists and dictionaries of them"},
    {"iteration over", "pass it as an argument, or say pure=True if the result depends on the arguments only"},
    {"read of", "pass it as an argument, or say pure=True if the result depends on the arguments only"},
    {"result of", "torch.where keeps the sizes; or do this outside the function"},
    {"use of a tensor outside operators", "do this outside the function"},
    {"", "docs/limits.md says what can be compiled; on_unsupported='eager' silences this"},
};

std::string_view way_out(std::string_view reason) {
  if (reason.ends_with(')') && reason.find(" (called at ") != reason.npos)  // inside a library: no argument can help
    return "do this outside the function";
  return std::ranges::find_if(kAdvice, [&](const auto& row) { return reason.starts_with(row.begins); })->advice;
}

bool in_library(PyFrameObject* frame) {
  PyCodeObject* code = PyFrame_GetCode(frame);
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  const bool found = file && std::ranges::any_of(library_folders, [&](const std::string& folder) {
                       return std::string_view(file).starts_with(folder);
                     });
  if (!file) PyErr_Clear();
  Py_DECREF(code);
  return found;
}

// How many frames up the line stands that a warning is about: a module's call comes through torch's own frames.
Py_ssize_t user_level() {
  Py_ssize_t level = 1;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  for (; frame && in_library(frame); ++level) {
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  if (!frame) return 1;
  Py_DECREF(frame);
  return level;
}

}  // namespace

void register_message_types(PyObject* warning, PyObject* error, std::vector<std::string> libraries) {
  warning_type = Py_NewRef(warning);
  error_type = Py_NewRef(error);
  library_folders = std::move(libraries);
}

bool note_fallback(Function& function, const std::string& reason, const std::string& advice) {
  ++function.stats.fallbacks[reason];
  const std::string text = "fastjit: " + function.options.name + " ran eagerly because " + reason + "; " +
                           std::string(advice.empty() ? way_out(reason) : advice);
  support::log(support::Channel::Fallback, text);
  if (function.options.on_unsupported == OnUnsupported::Error) {
    PyErr_SetString(error_type, text.c_str());
    return false;
  }
  if (function.options.on_unsupported == OnUnsupported::Eager || function.warned) return true;
  function.warned = true;
  return PyErr_WarnEx(warning_type, text.c_str(), user_level()) == 0;
}

PyObject* run_eager(Function& function, const std::string& reason, PyObject* const* args, size_t nargsf,
                    PyObject* kwnames) {
  if (!reason.empty()) ++function.stats.fallbacks[reason];
  return PyObject_Vectorcall(function.callable, args, nargsf, kwnames);
}

}  // namespace fastjit::dispatch
