// Arrays of numpy. The elements of those that facts lead to are facts, where something reads them. What the call makes
// of these and of numbers, views too, is what it is in every call, as long as nothing stores to an array: no store is
// known, and a tensor that shares memory with one is not written (Host::on_array).
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>
#include <cstring>
#include <string_view>

#include "observe/judge/tracer.h"

namespace fastjit::observe {

// Elementwise functions of numpy and its types of numbers, given numbers and arrays.
bool Tracer::calls_numpy(PyObject* callable, Args args) {
  const bool is_type = PyType_Check(callable) && is_numpy_number((PyTypeObject*)callable);
  if (!is_type && std::strcmp(Py_TYPE(callable)->tp_name, "numpy.ufunc")) return false;
  const Ref inputs = Ref::steal(is_type ? nullptr : PyObject_GetAttrString(callable, "nin"));  // then come the outputs
  const bool is_plain = !args.empty() && !top().kwnames && !unpacked_names_;
  return is_plain && (is_type || Py_ssize_t(args.size()) <= PyLong_AsSsize_t(inputs.get())) && computes_array(args);
}

// Of operands that are the same in every call numpy makes the same array or number.
bool Tracer::computes_array(Args operands) {
  if (!std::ranges::all_of(operands, [&](PyObject* o) { return is_plain_value(o) || reads_array(o); })) return false;
  for (PyObject* operand : operands) touch(operand);
  top().nested_result = true;
  return true;
}

bool Tracer::reads_array(PyObject* o) {
  if (!is_array(o)) return false;
  if (!is_reached(o)) return is_known_array(o);
  if (facts_->find(o, Node::Kind::Array) >= 0) return true;
  if (!facts_->array(o, "the elements of " + names_[o], where())) return false;
  if (host_.on_array_read) host_.on_array_read(host_.context);
  PyObject* owner = owner_of_array(o);
  if (array_owners_.insert(owner).second) names_held_.push_back(Ref::share(owner));
  return true;
}

bool Tracer::readable_index(PyObject* index) {
  if (!PyTuple_CheckExact(index)) return reads_array(index) || readable(index);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(index); ++i)
    if (!readable_index(PyTuple_GET_ITEM(index, i))) return false;
  return true;
}

// Names an array that is no fact by what is in its way.
std::string Tracer::text_of_array(PyObject* o) {
  const Ref bytes = Ref::steal(is_array(o) && is_reached(o) ? PyObject_GetAttrString(o, "nbytes") : nullptr);
  const Py_ssize_t count = bytes ? PyLong_AsSsize_t(bytes.get()) : 0;
  return name_of(o) +
         (count > kMostArrayBytes ? " of " + std::to_string(count) + " bytes, more than guards compare" : "");
}

// One that facts do not lead to: the call made it, or it is a view of one that the call made or whose elements are
// facts, such as a row that an iterator gives.
bool Tracer::is_known_array(PyObject* o) {
  if (arguments_.contains(o)) return false;
  if (array_owners_.contains(owner_of_array(o))) return true;
  for (; o && is_array(o); o = base_of_array(o))
    if (fresh_.contains(o)) return true;
  return false;
}

// Nobody but the call has its memory.
bool Tracer::has_new_memory(PyObject* array) { return fresh_.contains(owner_of_array(array)); }

// Numbers, arrays, and lists of these.
bool Tracer::makes_array(PyObject* o, int depth) {
  if (is_array(o)) return reads_array(o);
  const auto is_type = [&] { return PyType_Check(o) && !(((PyTypeObject*)o)->tp_flags & Py_TPFLAGS_HEAPTYPE); };
  if (!PyList_CheckExact(o) && !PyTuple_CheckExact(o)) return (is_plain_value(o) || is_type()) && readable(o);
  if (depth > 8 || (PyList_CheckExact(o) && !is_known(o) && !open(o))) return false;
  PyObject** items = PySequence_Fast_ITEMS(o);
  return std::all_of(items, items + Py_SIZE(o), [&](PyObject* item) { return makes_array(item, depth + 1); });
}

void Tracer::judge_new_array(PyObject* callee, Args args) {
  constexpr size_t kOperands = 2;  // what comes behind them may be an array to write to
  for (size_t i = 0; i < args.size(); ++i)
    if (is_tensor(args[i]) || !makes_array(args[i]) || (i >= kOperands && is_array(args[i])))
      return deny("call of " + callee_text(callee) + " with " + text_of_array(args[i]));
  top().nested_result = true;
  top().expect = Expect::Inside;  // numpy's own Python code
}

// Their sizes and type are facts as their elements are.
bool Tracer::reads_array_attr(PyObject* o, PyObject* name) {
  constexpr std::string_view kNames[] = {"shape", "ndim", "size", "dtype", "T"};
  const bool is_known_name = std::ranges::find(kNames, std::string_view(PyUnicode_AsUTF8(name))) != std::end(kNames);
  if (!is_known_name || !reads_array(o)) return false;
  top().nested_result = true;
  return true;
}

// A number, a view or a copy of some of its elements.
bool Tracer::reads_elements(PyObject* array, PyObject* index) {
  if (!readable_index(index) || !reads_array(array)) return false;
  top().nested_result = true;
  return true;
}

}  // namespace fastjit::observe
#endif
