#pragma once
// What a user is told when a function runs eagerly: the thing, the place, the way out.
#include <Python.h>

#include <string>
#include <vector>

namespace fastjit::dispatch {

inline constexpr const char* kNoGradAdvice = "call it under torch.no_grad()";

/// The classes fastjit.FastJITWarning and fastjit.UnsupportedError, and the folders whose frames are no user's code
/// (torch's, fastjit's); set once at import.
void register_message_types(PyObject* warning, PyObject* error, std::vector<std::string> libraries);

}  // namespace fastjit::dispatch
