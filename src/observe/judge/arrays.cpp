// Arrays of numpy. Those that facts lead to are read as tensors are indexed by them, and their elements are facts.
// Those that the call makes of numbers are what they are in every call, as long as nothing stores to them: no store is
// known.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>
#include <cstring>
#include <string_view>

#include "observe/judge/tracer.h"

namespace fastjit::observe {

// Elementwise functions of numpy and its types of numbers, given numbers.
bool Tracer::calls_numpy(PyObject* callable, Args args) {
  const bool is_type = PyType_Check(callable) && is_numpy_number((PyTypeObject*)callable);
  if (!is_type && std::strcmp(Py_TYPE(callable)->tp_name, "numpy.ufunc")) return false;
  if (args.empty() || top().kwnames || !std::ranges::all_of(args, [&](PyObject* o) { return is_plain_value(o); }))
    return false;
  for (PyObject* arg : args) touch(arg);
  return true;
}

bool Tracer::reads_array(PyObject* o) {
  if (!is_array(o)) return false;
  return is_new_array(o) || (is_reached(o) && facts_->array(o, "the elements of " + names_[o], where()));
}

bool Tracer::readable_index(PyObject* index) {
  if (!PyTuple_CheckExact(index)) return reads_array(index) || readable(index);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(index); ++i)
    if (!readable_index(PyTuple_GET_ITEM(index, i))) return false;
  return true;
}

bool Tracer::is_new_array(PyObject* o) {
  for (; o && is_array(o); o = base_of_array(o))
    if (fresh_.contains(o)) return true;  // or a view of one
  return false;
}

// Numbers, arrays that the call made, and lists of these.
bool Tracer::makes_array(PyObject* o, int depth) {
  if (is_array(o)) return is_new_array(o);
  if (!PyList_CheckExact(o) && !PyTuple_CheckExact(o)) return readable(o);
  if (depth > 8 || (PyList_CheckExact(o) && !is_known(o) && !open(o))) return false;
  PyObject** items = PySequence_Fast_ITEMS(o);
  return std::all_of(items, items + Py_SIZE(o), [&](PyObject* item) { return makes_array(item, depth + 1); });
}

void Tracer::judge_new_array(PyObject* callee, Args args) {
  for (PyObject* arg : args)
    if (is_tensor(arg) || !makes_array(arg)) return deny("call of " + callee_text(callee) + " with " + name_of(arg));
  top().nested_result = true;
  top().expect = Expect::Inside;  // numpy's own Python code
}

// Their sizes and type are facts as their elements are. A view of one that was found would be another array.
bool Tracer::reads_array_attr(PyObject* o, PyObject* name) {
  constexpr std::string_view kNames[] = {"shape", "ndim", "size", "dtype"};
  const std::string_view text = PyUnicode_AsUTF8(name);
  if (is_new_array(o) && text == "T") return true;
  return std::ranges::find(kNames, text) != std::end(kNames) && reads_array(o);
}

// A number of an array: an index for each of its dimensions.
bool Tracer::reads_element(PyObject* array, PyObject* index) {
  const auto is_index = [](PyObject* o) { return PyLong_CheckExact(o); };
  const Py_ssize_t given = PyTuple_CheckExact(index) ? PyTuple_GET_SIZE(index) : 1;
  PyObject** items = PyTuple_CheckExact(index) ? PySequence_Fast_ITEMS(index) : &index;
  const Ref dims = Ref::steal(is_array(array) ? PyObject_GetAttrString(array, "ndim") : nullptr);
  if (!dims || PyLong_AsSsize_t(dims.get()) != given || !std::all_of(items, items + given, is_index)) return false;
  return reads_array(array);
}

}  // namespace fastjit::observe
#endif
