#include "observe/facts/number_forms.h"

#if FASTJIT_OBSERVES
#include <algorithm>
#include <span>

#include "observe/facts/facts.h"

namespace fastjit::observe {
namespace {

bool is_number_type(PyObject* o) {
  return o == reinterpret_cast<PyObject*>(&PyFloat_Type) || o == reinterpret_cast<PyObject*>(&PyLong_Type);
}

std::span<PyObject* const> elements_of(PyObject* tuple) {
  return {&PyTuple_GET_ITEM(tuple, 0), static_cast<size_t>(PyTuple_GET_SIZE(tuple))};
}

// Of a number, or of one that a form stands for; else null.
PyObject* number_type(PyObject* o) {
  return is_number_type(o) ? o : is_number(o) ? reinterpret_cast<PyObject*>(Py_TYPE(o)) : nullptr;
}

// What two elements have in common, borrowed.
PyObject* common_element(PyObject* a, PyObject* b) {
  PyObject* const type = number_type(a);
  if (type && type == number_type(b)) return a == b || (!is_number_type(b) && same_bits(a, b)) ? a : type;
  return same_bits(a, b) ? a : nullptr;
}

}  // namespace

bool holds_numbers(PyObject* o) noexcept {
  constexpr Py_ssize_t kMost = 16;
  if (!o || !PyTuple_CheckExact(o) || PyTuple_GET_SIZE(o) > kMost) return false;
  const auto is_element = [](PyObject* element) { return is_number_type(element) || is_constant(element); };
  return std::ranges::all_of(elements_of(o), is_element) && std::ranges::any_of(elements_of(o), number_type);
}

Ref common_form(PyObject* a, PyObject* b) {
  if (!holds_numbers(a) || !holds_numbers(b) || PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) return {};
  Ref form = Ref::steal(PyTuple_New(PyTuple_GET_SIZE(a)));
  if (!form) return PyErr_Clear(), Ref();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); ++i) {
    PyObject* common = common_element(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i));
    if (!common) return {};
    PyTuple_SET_ITEM(form.get(), i, Py_NewRef(common));
  }
  return form;
}

std::vector<Py_ssize_t> open_elements(PyObject* form) {
  std::vector<Py_ssize_t> out;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(form); ++i)
    if (is_open_element(form, i)) out.push_back(i);
  return out;
}

Ref with_element(PyObject* tuple, Py_ssize_t element, PyObject* value) {
  Ref out = Ref::steal(PyTuple_New(PyTuple_GET_SIZE(tuple)));
  for (Py_ssize_t i = 0; out && i < PyTuple_GET_SIZE(tuple); ++i)
    PyTuple_SET_ITEM(out.get(), i, Py_NewRef(i == element ? value : PyTuple_GET_ITEM(tuple, i)));
  if (!out) PyErr_Clear();
  return out;
}

}  // namespace fastjit::observe
#endif
