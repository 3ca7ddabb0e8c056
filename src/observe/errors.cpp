#include "observe/errors.h"

#include <Python.h>

namespace fastjit::observe {

static int raise_again(void* error) {
  auto* value = static_cast<PyObject*>(error);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value)), value);
  Py_DECREF(value);
  return -1;
}

void put_off_error() noexcept {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  if (!type) return;
  PyErr_NormalizeException(&type, &value, &traceback);
  Py_DECREF(type);
  Py_XDECREF(traceback);
  if (value && Py_AddPendingCall(raise_again, value) < 0) Py_DECREF(value);  // as many as it takes wait already
}

void forget_error() noexcept {
  if (!PyErr_Occurred()) return;
  if (PyErr_ExceptionMatches(PyExc_Exception)) return PyErr_Clear();
  put_off_error();
}

}  // namespace fastjit::observe
