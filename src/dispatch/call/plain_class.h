#pragma once
// What the instances of a class are made of.
#include <Python.h>

namespace fastjit::dispatch {

/// All that an instance of `type` holds is attributes, and the items of a dictionary or a tuple: every class in its
/// __mro__ is written in Python without __slots__, or is object, dict, OrderedDict or tuple.
bool is_python_class(PyTypeObject* type);

/// OrderedDict, dict, tuple or object: whose memory layout the instances of a Python class have.
PyTypeObject* layout_of(PyTypeObject* type);

/// The attributes of an instance, borrowed; null where there are none.
PyObject* attributes_of(PyObject* object) noexcept;

}  // namespace fastjit::dispatch
