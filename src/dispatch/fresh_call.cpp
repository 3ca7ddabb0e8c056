#include "dispatch/fresh_call.h"

#include <pybind11/pybind11.h>

#include <cmath>

namespace fastjit::dispatch {
namespace {

bool worth_replacing(PyObject* object) {
  if (PyFloat_CheckExact(object)) return !std::isnan(PyFloat_AS_DOUBLE(object));  // containers look which one it is
  if (!PyLong_CheckExact(object)) return false;
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
  return !overflow && (value < -5 || value > 256);  // small ints are shared objects
}

PyObject* fresh_copy(PyObject* number) {
  return PyFloat_CheckExact(number) ? PyFloat_FromDouble(PyFloat_AS_DOUBLE(number))
                                    : PyLong_FromLongLong(PyLong_AsLongLong(number));
}

}  // namespace

void make_fresh(FreshCall& call, PyObject* const* args, Py_ssize_t total, const std::vector<std::string>& names,
                bool replace) {
  for (Py_ssize_t i = 0; i < total; ++i) {
    call.args.push_back(args[i]);
    if (!replace || !worth_replacing(args[i])) continue;
    PyObject* copy = fresh_copy(args[i]);
    if (!copy) throw pybind11::error_already_set();
    call.args.back() = copy;
    call.fresh.push_back(copy);
    call.originals.push_back(args[i]);
    call.names.push_back(names[static_cast<size_t>(i)]);
  }
}

}  // namespace fastjit::dispatch
