#pragma once
// The entry point of every call of a compiled function.
#include <Python.h>

namespace fastjit::dispatch {

PyObject* call_function(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames);

}  // namespace fastjit::dispatch
