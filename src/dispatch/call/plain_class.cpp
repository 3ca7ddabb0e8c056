#include "dispatch/call/plain_class.h"

namespace fastjit::dispatch {

// Python classes without __slots__ share their deallocator; a class written in C has its own.
static destructor python_dealloc() {
  static const destructor found = [] {
    PyObject* made = PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyType_Type), "s(){}", "Plain");
    return made ? reinterpret_cast<PyTypeObject*>(made)->tp_dealloc : nullptr;
  }();
  return found;
}

bool is_python_class(PyTypeObject* type) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    auto* base = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(type->tp_mro, i));
    const bool known =
        base == &PyBaseObject_Type || base == &PyDict_Type || base == &PyODict_Type || base == &PyTuple_Type;
    const bool has_slots = Py_SIZE(base) != 0;
    if (!known && (!(base->tp_flags & Py_TPFLAGS_HEAPTYPE) || base->tp_dealloc != python_dealloc() || has_slots))
      return false;
  }
  return true;
}

PyTypeObject* layout_of(PyTypeObject* type) {
  for (PyTypeObject* base : {&PyODict_Type, &PyDict_Type, &PyTuple_Type})
    if (PyType_IsSubtype(type, base)) return base;
  return &PyBaseObject_Type;
}

PyObject* attributes_of(PyObject* object) noexcept {
  PyObject** slot = _PyObject_GetDictPtr(object);
  return slot ? *slot : nullptr;
}

}  // namespace fastjit::dispatch
