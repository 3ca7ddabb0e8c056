#pragma once
// What the operator recorder asks of Python's frames.
#include <Python.h>

#include <string>

namespace fastjit::capture {

/// torch's own package, with a slash at the end; empty if it is not known.
std::string folder_of_torch();

/// The variable that the instruction after the frame's current one gives its result to, or "".
std::string stored_name(PyFrameObject* frame, PyCodeObject* code);

}  // namespace fastjit::capture
