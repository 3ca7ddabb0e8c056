// Which numbers and tuples are taken by value, numbers as objects of their own, and those that follow from others.
#include "observe/observe.h"

namespace fastjit::observe {
namespace {

constexpr long long kLeastShared = -5, kMostShared = 256;  // Objects/longobject.c: _PY_NSMALLNEGINTS, _PY_NSMALLPOSINTS

// What Python makes of such a value is always the same object.
PyObject* unshared(long long value) {
  const auto magnitude = static_cast<digit>(value < 0 ? -value : value);
#if PY_VERSION_HEX >= 0x030C0000
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // 3.14 has no other way that does not share small numbers
  digit digits[] = {magnitude};
  PyLongObject* made = _PyLong_FromDigits(value < 0, 1, digits);
#pragma GCC diagnostic pop
  constexpr uintptr_t kZero = 1;  // Include/internal/pycore_long.h: SIGN_ZERO, and no digits
  if (made && value == 0) made->long_value.lv_tag = kZero;
  return reinterpret_cast<PyObject*>(made);
#else
  PyLongObject* made = _PyLong_New(1);
  if (!made) return nullptr;
  made->ob_digit[0] = magnitude;
  Py_SET_SIZE(made, value < 0 ? -1 : value > 0);
  return reinterpret_cast<PyObject*>(made);
#endif
}

}  // namespace

bool fits_program(PyObject* number) noexcept {
  return PyFloat_CheckExact(number) || (PyLong_CheckExact(number) && _PyLong_NumBits(number) <= 62);
}

bool is_empty_container(PyObject* o) noexcept {
  if (PySet_CheckExact(o)) return PySet_GET_SIZE(o) == 0;
  return PyODict_CheckExact(o) && PyDict_GET_SIZE(o) == 0;
}

bool holds_only_items(PyTypeObject* type) noexcept {
  return PyType_IsSubtype(type, &PyTuple_Type) && !type->tp_dictoffset && type->tp_iter == PyTuple_Type.tp_iter;
}

bool is_shared(PyObject* number) {
  if (!PyLong_CheckExact(number)) return false;
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
  return !overflow && value >= kLeastShared && value <= kMostShared;
}

PyObject* own_copy(PyObject* number) {
  if (PyFloat_CheckExact(number)) return PyFloat_FromDouble(PyFloat_AS_DOUBLE(number));
  const long long value = PyLong_AsLongLong(number);
  if (value == -1 && PyErr_Occurred()) return nullptr;
  return is_shared(number) ? unshared(value) : PyLong_FromLongLong(value);
}

PyObject* Derivation::compute(PyObject* const* numbers) const {
  if (comparison >= 0) return PyObject_RichCompare(numbers[0], numbers[1], comparison);
  if (binary) return binary(numbers[0], numbers[1]);
  if (unary) return unary(numbers[0]);
  return PyObject_Vectorcall(function.get(), numbers, operands.size(), nullptr);
}

}  // namespace fastjit::observe
