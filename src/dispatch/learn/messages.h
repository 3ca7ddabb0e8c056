#pragma once
// What a user is told when a function runs eagerly: the thing, the place, the way out.
#include <Python.h>

namespace fastjit::dispatch {

// Pages are in the wheel (python/fastjit/_docs.py), where a file of the source tree or an address could not be opened.
inline constexpr const char* kLimitsAdvice =
    "'python -m fastjit docs limits' says what can be compiled; on_unsupported='eager' silences this";
inline constexpr const char* kCudaAdvice = "'python -m fastjit docs limits' says what CUDA tensors need";

/// The classes fastjit.FastJITWarning and fastjit.UnsupportedError; set once at import.
void register_message_types(PyObject* warning, PyObject* error);

/// How many Python frames up the line stands that a warning is about: calls come through frames of fastjit, torch and
/// other libraries.
Py_ssize_t user_level();

}  // namespace fastjit::dispatch
