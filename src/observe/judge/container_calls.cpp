// What C functions do to containers that the call made: what they read of their arguments on the way.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>
#include <cmath>

#include "observe/judge/tracer.h"
#include "observe/known_functions.h"
#include "observe/sets.h"

namespace fastjit::observe {

// False after deny().
bool Tracer::is_own_container(PyObject* callee, Args args) {
  if (!args.empty() && is_own(args[0])) return true;
  deny("change of " + (args.empty() ? callee_text(callee) : name_of(args[0])) + " by " + callee_text(callee));
  return false;
}

// list.extend, set.update, dict.update: everything in the other arguments.
void Tracer::judge_fill(PyObject* callee, Args args) {
  if (keeps_as_it_is(callee_text(callee), args)) return;
  if (!is_own_container(callee, args)) return;
  const bool is_set = PyAnySet_Check(args[0]), is_dict = PyDict_Check(args[0]);
  const size_t named = top().kwnames ? static_cast<size_t>(PyTuple_GET_SIZE(top().kwnames)) : 0;
  for (PyObject* source : args.subspan(1, args.size() - 1 - named)) {
    if (!is_fresh_iterator(source) && !iterable(source, "iteration over")) return;
    if (is_dict ? !readable_source(source) : is_set && !readable(source))
      return deny("read of " + name_of(source) + " by " + callee_text(callee));
    keep(source);
  }
  top().reads_items = is_set || is_dict;
  top().reads_pairs = is_dict;
  may_enter_any();
}

// Of collections.Counter: the items of the second argument are keys of the first one.
void Tracer::judge_count(PyObject* callee, Args args) {
  if (args.size() != 2 || !is_own_container(callee, args)) return;
  if (!is_fresh_iterator(args[1]) && !iterable(args[1], "iteration over")) return;
  if (!readable(args[1])) return deny("read of " + name_of(args[1]) + " by " + callee_text(callee));
  top().reads_items = true;
  may_enter_any();
}

// The first argument behind the container is a key: its hash and, in sets, equal values are looked at.
void Tracer::judge_key_change(PyObject* callee, Args args) {
  if (args.size() > 1 && is_reached(args[0]) && keeps_as_it_is(callee_text(callee), args)) return;
  if (!is_own_container(callee, args)) return;
  if (args.size() > 1 && !keyable(args[1])) return deny("hash of " + name_of(args[1]));
  raising_ = args.size() == 2 && PyDict_Check(args[0]);  // a key that pop() does not find
  for (PyObject* value : args.subspan(1)) touch(value), keep(value);
  may_enter_any();
}

// Of a container that the call found: a member that is there already is added, or one that is not is discarded, and
// nothing changes. Where something does, the change is the call's last. False: this is no such change.
bool Tracer::keeps_as_it_is(std::string_view change, Args args) {
  const bool is_set = args.size() == 2 && PySet_CheckExact(args[0]), adds = change == "set.add";
  if (is_set && PyUnicode_CheckExact(args[1]) && (adds || change == "set.discard")) {
    const bool is_there = member_index(args[0], args[1], false) >= 0;
    if (adds == is_there) return facts_->has_member(args[0], pooled(args[1]), names_[args[0]], where()), true;
  }
  if (is_set && adds && keyable(args[1])) return interrupt("what is in " + names_[args[0]]), true;
  Facts::Id id;
  if (change == "dict.update") {  // with what it holds already
    if (args.size() != 2 || top().kwnames || !PyDict_CheckExact(args[1]) || !fresh_.contains(args[1])) return false;
    const bool is_reached = dict_node(args[0], &id);
    if (!is_reached && !(arguments_.contains(args[0]) && PyDict_CheckExact(args[0]))) return false;
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(args[1], &at, &key, &value);)
      if (!PyUnicode_CheckExact(key) || dict_lookup(args[0], key, nullptr) != value) return false;
    for (Py_ssize_t at = 0; is_reached && PyDict_Next(args[1], &at, &key, &value);) read_dict_item(id, args[0], key);
    return true;
  }
  if (change != "dict.setdefault" || !dict_node(args[0], &id)) return false;
  PyObject* key = pooled(args[1]);
  if (!keyable(args[1]) || !dict_lookup(args[0], key, nullptr))
    return interrupt("what " + names_[args[0]] + " keeps"), true;
  return read_dict_item(id, args[0], args[1]), true;
}

// These compare or order what is inside.
void Tracer::judge_ordered_change(PyObject* callee, Args args) {
  if (!is_own_container(callee, args)) return;
  if (!readable(args[0])) return deny("read of item of " + name_of(args[0]) + " by " + callee_text(callee));
  for (PyObject* arg : args.subspan(1)) {
    if (!called_in_c(arg)) return deny("call of " + callee_text(arg) + " by " + callee_text(callee));
    if (is_callable(arg)) continue;
    if (!comparable(arg) || holds_nan(arg)) return deny("comparison of " + name_of(arg));
    find_identical(args[0], arg);
  }
  top().reads_items = true;
  may_enter_any();
}

// The comparisons of a search for a number that differs from call to call: where they turn out the same, it ends there.
bool Tracer::is_searched(PyObject* list, PyObject* number, bool right) {
  const bool is_list = PyList_CheckExact(list) || PyTuple_CheckExact(list);
  if (!is_list || !numbers_.is_open(number)) return false;
  const std::vector<PyObject*> numbers = few_numbers_in(list);
  size_t low = 0, high = numbers.size();
  while (low < high) {
    const size_t middle = (low + high) / 2;
    PyObject* const one = right ? number : numbers[middle];
    PyObject* const other = right ? numbers[middle] : number;
    if (!compares_open(Py_LT, one, other)) return false;
    const bool is_less = PyObject_RichCompareBool(one, other, Py_LT) == 1;
    (is_less == right ? high : low) = is_less == right ? middle : middle + 1;
  }
  return !numbers.empty();
}

// The items of a list that is in order are compared with another: numbers and what else compares in C.
void Tracer::judge_bisect(PyObject* callee, Args args) {
  const bool is_right = callee == imported("_bisect:bisect_right").get();
  if (args.size() == 2 && !top().kwnames && is_searched(args[0], args[1], is_right)) return;
  if (args.size() < 2 || top().kwnames || !readable_args(args, callee)) return;
  const bool is_list = PyList_CheckExact(args[0]) || PyTuple_CheckExact(args[0]);
  if (!is_list) return deny("search in " + name_of(args[0]));
  if (!Py_SIZE(args[0])) return;  // nothing is compared
  std::vector<PyObject*> compared(PySequence_Fast_ITEMS(args[0]), PySequence_Fast_ITEMS(args[0]) + Py_SIZE(args[0]));
  compared.push_back(args[1]);
  for (PyObject* o : compared)
    if (is_tensor(o) || !comparable(o)) return deny("comparison of " + name_of(o));
}

bool Tracer::is_callable(PyObject* o) {
  return PyFunction_Check(o) || PyMethod_Check(o) || PyCFunction_Check(o) || PyType_Check(o) ||
         Py_IS_TYPE(o, &PyMethodDescr_Type) || Py_IS_TYPE(o, &PyWrapperDescr_Type);
}

// Whether C code may call this argument, as sorted() and max() call their key: Python code is watched, C code must be
// known to read its arguments only. True of what is not callable.
bool Tracer::called_in_c(PyObject* o) {
  if (!is_callable(o)) return true;
  if (PyMethod_Check(o)) o = PyMethod_GET_FUNCTION(o);
  if (PyFunction_Check(o)) return call_function((PyFunctionObject*)o), true;
  if (PyObject* self = bound_to(o); self && PyUnicode_CheckExact(self)) {
    constexpr std::string_view kSearches[] = {"str.find", "str.rfind", "str.index", "str.rindex", "str.count"};
    return std::ranges::find(kSearches, callee_text(o)) != std::end(kSearches);
  }
  const Callee* row = find_callee(o);
  return row && row->rule == Rule::Pure;
}

// [*chain.from_iterable(tuples)]: nothing can change what it walks before it has walked all of it.
void Tracer::judge_flatten(PyObject* callee, Args args) {
  static PyTypeObject* const chain = type_named("itertools", "chain");
  PyObject* all = args.size() == 1 ? args[0] : Py_None;
  const bool is_chain = PyCFunction_Check(callee) && PyCFunction_GET_SELF(callee) == reinterpret_cast<PyObject*>(chain);
  const bool is_list = PyTuple_CheckExact(all) || (PyList_CheckExact(all) && (is_known(all) || open(all)));
  const auto holds_tuples = [&] {
    PyObject** items = PySequence_Fast_ITEMS(all);
    return std::all_of(items, items + Py_SIZE(all), [](PyObject* item) { return PyTuple_CheckExact(item); });
  };
  if (!is_chain || !is_list || !holds_tuples() || !is_unpacked_next()) return deny("call of " + callee_text(callee));
  top().fresh_result = true;
}

// A NaN in a container equals itself and no other: which object it is decides.
bool Tracer::holds_nan(PyObject* o, int depth) {
  if (PyFloat_CheckExact(o)) return std::isnan(PyFloat_AS_DOUBLE(o));
  if (depth > 8) return true;
  if (PyList_Check(o) || PyTuple_Check(o))
    return std::any_of(PySequence_Fast_ITEMS(o), PySequence_Fast_ITEMS(o) + PySequence_Fast_GET_SIZE(o),
                       [&](PyObject* item) { return holds_nan(item, depth + 1); });
  PyObject *key, *value;
  if (PyDict_Check(o))
    for (Py_ssize_t at = 0; PyDict_Next(o, &at, &key, &value);)
      if (holds_nan(key, depth + 1) || holds_nan(value, depth + 1)) return true;
  if (PyAnySet_Check(o))
    for (const setentry& place : set_places(o))
      if (holds_item(place) && holds_nan(place.key, depth + 1)) return true;
  return false;
}

// A class or a function whose text is asked for: all of its names may be assigned.
void Tracer::note_names(PyObject* o) {
  if (fresh_.contains(o) || !(PyType_Check(o) || PyFunction_Check(o))) return;
  const std::string label = PyType_Check(o) ? name_of(o) : "function " + callee_text(o);
  const auto read = [&](PyObject** place, const char* part) { facts_->read_slot(place, label + part, where()); };
  if (PyFunction_Check(o)) {
    read(&((PyFunctionObject*)o)->func_qualname, ".__qualname__");
    read(&((PyFunctionObject*)o)->func_name, ".__name__");
  } else if (((PyTypeObject*)o)->tp_flags & Py_TPFLAGS_HEAPTYPE) {
    auto* type = reinterpret_cast<PyHeapTypeObject*>(o);
    read(&type->ht_name, ".__name__");
    read(&type->ht_qualname, ".__qualname__");
    class_attr((PyTypeObject*)o, "__module__");
    if (Py_TYPE(o) == &PyType_Type) return;
    for (const char* name : {"__repr__", "__str__", "__format__"}) class_attr(Py_TYPE(o), name);
  }
}

}  // namespace fastjit::observe
#endif
