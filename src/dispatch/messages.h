#pragma once
// What a user is told when a function runs eagerly: the thing, the place, the way out.
#include <Python.h>

#include <string>

namespace fastjit::dispatch {

inline constexpr const char* kNoGradAdvice = "call it under torch.no_grad()";

/// The classes fastjit.FastJITWarning and fastjit.UnsupportedError; set once at import.
void register_message_types(PyObject* warning, PyObject* error);

}  // namespace fastjit::dispatch
