#pragma once
// Tuples with numbers in them that differ from call to call. Their form, as of Expected::Kind::Form and of
// NumberPlace::was, is a tuple of the same constants with a type in the place of each such number.
#include <vector>

#include "observe/observe.h"

namespace fastjit::observe {

/// A tuple of a few constants, numbers among them, or a form of such tuples.
bool holds_numbers(PyObject* o) noexcept;
/// What two of these have in common: where they have two numbers of one type, that type. Null: they differ otherwise,
/// or one of them is something else. An error clears itself, and is null too.
Ref common_form(PyObject* a, PyObject* b);
/// Which elements of a form are types.
std::vector<Py_ssize_t> open_elements(PyObject* form);
inline bool is_open_element(PyObject* form, Py_ssize_t element) {
  return PyType_Check(PyTuple_GET_ITEM(form, element));
}
/// A new tuple with `value` in the place of this element.
Ref with_element(PyObject* tuple, Py_ssize_t element, PyObject* value);

}  // namespace fastjit::observe
