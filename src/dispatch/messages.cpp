#include "dispatch/messages.h"

#include "dispatch/function.h"
#include "support/log.h"

namespace fastjit::dispatch {
namespace {

PyObject* warning_type = nullptr;
PyObject* error_type = nullptr;

constexpr const char* kAdvice = "docs/limits.md says what can be compiled; on_unsupported='eager' silences this";

}  // namespace

void register_message_types(PyObject* warning, PyObject* error) {
  warning_type = Py_NewRef(warning);
  error_type = Py_NewRef(error);
}

bool note_fallback(Function& function, const std::string& reason, const std::string& advice) {
  ++function.stats.fallbacks[reason];
  const std::string text = "fastjit: " + function.options.name + " ran eagerly because " + reason + "; " +
                           (advice.empty() ? kAdvice : advice.c_str());
  support::log(support::Channel::Fallback, text);
  if (function.options.on_unsupported == OnUnsupported::Error) {
    PyErr_SetString(error_type, text.c_str());
    return false;
  }
  if (function.options.on_unsupported == OnUnsupported::Eager || function.warned) return true;
  function.warned = true;
  return PyErr_WarnEx(warning_type, text.c_str(), 1) == 0;
}

PyObject* run_eager(Function& function, const std::string& reason, PyObject* const* args, size_t nargsf,
                    PyObject* kwnames) {
  if (!reason.empty()) ++function.stats.fallbacks[reason];
  return PyObject_Vectorcall(function.callable, args, nargsf, kwnames);
}

}  // namespace fastjit::dispatch
