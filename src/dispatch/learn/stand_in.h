#pragma once
// A target whose call begins with no Python frame of its own (a C function, a partial) is recorded as the call of a
// Python function that calls it: the observer then judges it as any call inside a Python function.
#include <Python.h>

namespace fastjit::dispatch {

/// Whether the first thing that a call of `callable` does is to run a Python function: itself, or its class's __call__.
bool begins_in_python(PyObject* callable) noexcept;

/// A function that takes a callable and the arguments of a call of this form, and makes that call. Borrowed, kept for
/// ever. Null without an exception where a keyword is no plain identifier.
PyObject* stand_in(Py_ssize_t nargs, PyObject* kwnames);

}  // namespace fastjit::dispatch
