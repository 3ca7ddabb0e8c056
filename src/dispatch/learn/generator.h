#pragma once
// Generators of torch's among the objects of a call.
#include <torch/csrc/Generator.h>

namespace fastjit::dispatch {

/// torch.Generator's metaclass is written in Python, so that torch's own check runs Python code, which may fail.
inline bool is_generator(PyObject* o) {
  return PyObject_TypeCheck(o, reinterpret_cast<PyTypeObject*>(THPGeneratorClass)) != 0;
}

}  // namespace fastjit::dispatch
