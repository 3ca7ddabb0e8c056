#include "dispatch/messages.h"

#include <algorithm>

#include "dispatch/function.h"
#include "support/log.h"

namespace fastjit::dispatch {
namespace {

PyObject* warning_type = nullptr;
PyObject* error_type = nullptr;

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
  return std::ranges::find_if(kAdvice, [&](const auto& row) { return reason.starts_with(row.begins); })->advice;
}

}  // namespace

void register_message_types(PyObject* warning, PyObject* error) {
  warning_type = Py_NewRef(warning);
  error_type = Py_NewRef(error);
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
  return PyErr_WarnEx(warning_type, text.c_str(), 1) == 0;
}

PyObject* run_eager(Function& function, const std::string& reason, PyObject* const* args, size_t nargsf,
                    PyObject* kwnames) {
  if (!reason.empty()) ++function.stats.fallbacks[reason];
  return PyObject_Vectorcall(function.callable, args, nargsf, kwnames);
}

}  // namespace fastjit::dispatch
