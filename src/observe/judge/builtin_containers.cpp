// What makes containers and iterators of others, and what looks into one.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>

#include "observe/judge/tracer.h"
#include "observe/known_functions.h"
#include "observe/sets.h"

namespace fastjit::observe {

// Lengths that no fact need tell: those of values in a tuple.
static bool has_fixed_lengths(PyObject* items) {
  const auto is_fixed = [](PyObject* o) {
    return PyTuple_CheckExact(o) || PyUnicode_CheckExact(o) || PyFrozenSet_CheckExact(o);
  };
  if (!PyTuple_CheckExact(items)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items); ++i)
    if (!is_fixed(PyTuple_GET_ITEM(items, i))) return false;
  return true;
}

// What C code may call for each item: it reads the item, or is an operator, which the recorder sees. What asks for
// sizes there is not seen to ask, so none of them may differ from call to call.
bool Tracer::maps_in_c(PyObject* callable) {
  if (has_data_sizes() && !name_of_size_reader(callable).empty()) return false;
  for (PyTypeObject* known : {&PyFrozenSet_Type, &PyTuple_Type})
    if (callable == (PyObject*)known) return true;
  if (is_itemgetter(callable)) return true;
  if (PyObject* self = bound_to(callable); self && PyDict_CheckExact(self) && fresh_.contains(self)) {
    constexpr std::string_view kReads[] = {"dict.get", "dict.pop", "dict.__getitem__"};
    touch_inside(self);  // whoever gets the values may be in C
    return std::ranges::find(kReads, callee_text(callable)) != std::end(kReads);
  }
  if (const Callee* row = find_callee(callable)) return row->rule == Rule::Pure;
  if (is_method_wrapper(callable))  // items of a tuple, which it has for good
    return PyTuple_CheckExact(bound_to(callable)) && callee_text(callable) == "tuple.__getitem__" &&
           readable(bound_to(callable));
  return host_.classify && host_.classify(callable) == Host::Callee::Operator;
}

// Of itertools: what calls its first argument, what takes its answer as true or false, what looks at the items itself.
constexpr std::string_view kCalling[] = {"itertools:starmap"};
constexpr std::string_view kChoosing[] = {"itertools:dropwhile", "itertools:filterfalse", "itertools:takewhile"};
constexpr std::string_view kReading[] = {"itertools:accumulate", "itertools:compress", "itertools:starmap"};

void Tracer::judge_container(PyObject* callee, Args args) {
  // These look at the items (hash, truth, a C function), the others only pass them on.
  const std::string_view name = known_name(known_function(callee));
  const auto is_among = [&](const auto& names) { return std::ranges::find(names, name) != std::end(names); };
  const bool takes_predicate = callee == (PyObject*)&PyFilter_Type || is_among(kChoosing);
  bool reads_items = callee == (PyObject*)&PySet_Type || callee == (PyObject*)&PyFrozenSet_Type || takes_predicate ||
                     is_among(kReading);
  const auto is_container = [](PyObject* type) {  // else an iterator over its arguments
    for (PyTypeObject* known :
         {&PyList_Type, &PyTuple_Type, &PySet_Type, &PyFrozenSet_Type, &PyDict_Type, &PyODict_Type})
      if (type == (PyObject*)known) return true;
    return !PyType_Check(type);
  };
  const bool takes_callable = callee == (PyObject*)&PyMap_Type || takes_predicate || is_among(kCalling);
  bool reads_in_c = false;  // whenever an item comes, which may be long after this call
  const bool makes_dict = callee == (PyObject*)&PyDict_Type || callee == (PyObject*)&PyODict_Type;
  const size_t named = makes_dict && top().kwnames ? static_cast<size_t>(PyTuple_GET_SIZE(top().kwnames)) : 0;
  for (PyObject* const& place : args.first(args.size() - named)) {
    PyObject* arg = place;
    const bool is_first = takes_callable && &place == args.data();
    if (is_first && is_partial(arg)) {
      if (!note_partial(arg)) return;
      PyObject* inner = reinterpret_cast<PartialObject*>(arg)->function;
      if (!PyFunction_Check(inner) && !maps_in_c(inner)) return deny("map with " + callee_text(inner));
      if (PyFunction_Check(inner)) note_function((PyFunctionObject*)inner);
      reads_in_c = reads_items = !PyFunction_Check(inner);
      if (reads_in_c && !readable(reinterpret_cast<PartialObject*>(arg)->args))
        return deny("map with " + callee_text(inner));
      continue;
    }
    bool callable_argument = is_first && (PyFunction_Check(arg) || PyCFunction_Check(arg) || PyType_Check(arg) ||
                                          PyMethod_Check(arg) || Py_IS_TYPE(arg, &PyMethodDescr_Type) ||
                                          is_method_wrapper(arg) || is_module(arg) || is_itemgetter(arg));
    const bool is_len = callable_argument && args.size() == 2 && find_callee(arg) &&
                        find_callee(arg)->judge == &Tracer::judge_len && has_fixed_lengths(args[1]);
    if (is_len) {
      reads_in_c = reads_items = true;
      continue;
    }
    if (callable_argument) {
      if (!PyFunction_Check(arg) && !PyMethod_Check(arg)) {
        if (!maps_in_c(arg)) return deny("map with " + callee_text(arg));
      }
      PyObject* function = PyMethod_Check(arg) ? PyMethod_GET_FUNCTION(arg) : arg;
      reads_in_c = !PyFunction_Check(function);
      if (!PyFunction_Check(arg)) reads_items = true;
      if (PyFunction_Check(arg)) call_function((PyFunctionObject*)arg);
      if (takes_predicate) predicates_.insert(function);
      continue;
    }
    if (takes_callable && &place == args.data()) reads_in_c = true;  // filter(None, items)
    if (reads_in_c && is_fresh_iterator(arg) && !readable_sources(arg, 0))
      return deny(callee_text(callee) + " in C over " + name_of(arg));
    if (callee == (PyObject*)&PyReversed_Type && is_instance(arg)) return reverse(arg);
    if (!is_fresh_iterator(arg) && !iterable(arg, "iteration over")) return;
    if (makes_dict ? !readable_source(arg) : (reads_items || reads_in_c) && !readable(arg) && reads_items)
      return deny("read of " + name_of(arg) + " by " + callee_text(callee));
  }
  top().reads_items = reads_items || makes_dict;
  top().reads_pairs = makes_dict;
  may_enter_any();
  walks_in_c_ |= !is_container(callee) && (reads_in_c || reads_items);
  if (!is_container(callee)) top().sources.assign(args.begin() + takes_callable, args.end());
  // tuple() of a tuple is that tuple.
  top().fresh_result = args.size() != 1 || Py_TYPE(args[0]) != (PyTypeObject*)callee || !is_immutable(args[0]);
}

// Of a subclass it runs the class's own code.
void Tracer::judge_fromkeys(PyObject* callee, Args args) {
  if (!PyCFunction_Check(callee) || PyCFunction_GET_SELF(callee) != (PyObject*)&PyDict_Type)
    return deny("call of " + callee_text(callee));
  const bool is_list = !args.empty() && (PyTuple_CheckExact(args[0]) ||
                                         (PyList_CheckExact(args[0]) && (is_known(args[0]) || open(args[0]))));
  for (Py_ssize_t i = 0; is_list && i < PySequence_Fast_GET_SIZE(args[0]); ++i)
    if (PyObject* key = PySequence_Fast_ITEMS(args[0])[i]; !keyable(key)) return deny("hash of " + name_of(key));
  if (!readable_args(is_list ? args.subspan(1) : args, callee)) return;
  top().fresh_result = true;
  top().reads_items = true;
  may_enter_any();
}

// What is sorted is compared; of a dictionary's items that are the keys where these are strings, which are all
// distinct.
void Tracer::judge_sorted(PyObject* callee, Args args) {
  const bool is_keyed = top().kwnames || args.size() != 1;
  PyObject* view = !is_keyed && PyDictItems_Check(args[0]) ? args[0] : nullptr;
  if (!view) return apply_reader({"builtins:sorted", Rule::Fresh, nullptr}, callee, args);
  if (!iterable(view, "iteration over")) return;
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(view_dict(view), &at, &key, &value); touch(value))
    if (!PyUnicode_CheckExact(key)) return apply_reader({"builtins:sorted", Rule::Fresh, nullptr}, callee, args);
  top().fresh_result = true;
}

void Tracer::judge_defaultdict(PyObject* callee, Args args) {
  PyObject* factory = args.empty() ? Py_None : args[0];
  const bool is_heap = PyType_Check(factory) && (((PyTypeObject*)factory)->tp_flags & Py_TPFLAGS_HEAPTYPE);
  // A key that is missing makes an instance: that its code runs then nobody has foreseen.
  PyObject* init = is_heap && Py_TYPE(factory)->tp_call == PyType_Type.tp_call
                       ? class_attr((PyTypeObject*)factory, "__init__")
                       : nullptr;
  if (init) class_attr(Py_TYPE(factory), "__call__");
  const bool is_plain = factory == Py_None || (PyType_Check(factory) && !is_heap) || (init && PyFunction_Check(init));
  if (PyFunction_Check(factory)) call_function((PyFunctionObject*)factory);
  if ((!is_plain && !PyFunction_Check(factory)) || args.size() > 1) return deny("call of " + callee_text(callee));
  top().fresh_result = true;
}

// reversed() of an instance: its own __reversed__ decides what it gives, else its length and items.
void Tracer::reverse(PyObject* o) {
  note_instance(o);
  const auto method = [&](const char* name) { return class_attr(Py_TYPE(o), name); };
  PyObject* own = method("__reversed__");
  PyObject *length = own ? nullptr : method("__len__"), *item = own ? nullptr : method("__getitem__");
  const bool watched =
      own ? PyFunction_Check(own) : length && item && PyFunction_Check(length) && PyFunction_Check(item);
  if (!watched) return deny("reversed " + name_of(o));
  top().fresh_result = !own;
  may_enter_any();
}

void Tracer::judge_dict_read(PyObject* callee, Args args) {
  if (args.size() >= 2 && is_known(args[0])) {
    if (!readable(args[1])) deny("hash of " + name_of(args[1]));
    return;
  }
  if (Facts::Id id; args.size() >= 2 && keyable(args[1]) && dict_base_node(args[0], &id))
    return read_dict_item(id, args[0], args[1]);
  deny("call of " + callee_text(callee));
}

void Tracer::judge_dict_view(PyObject*, Args args) {
  // The view itself reads nothing; what walks it is judged by the dictionary behind it.
  if (args.size() == 1) top().fresh_result = is_known(args[0]) || is_reached(args[0]);
}

// A dictionary that the call finds, or one of a subclass that looks for keys as a dictionary does, as Counter.
bool Tracer::keys_node(PyObject* d, Facts::Id* id) {
  if (dict_node(d, id)) return true;
  PyObject* const contains = _PyType_Lookup(&PyDict_Type, literal("__contains__"));
  if (!PyDict_Check(d) || !is_reached(d) || class_attr(Py_TYPE(d), "__contains__") != contains) return false;
  note_instance(d);
  return dict_base_node(d, id);
}

// What a list, a tuple, a set or the keys of a dictionary hold, if these are few; none: it is something else.
static std::vector<PyObject*> few_in(PyObject* container) {
  constexpr Py_ssize_t kMost = 32;
  std::vector<PyObject*> all;
  if (PyList_CheckExact(container) || PyTuple_CheckExact(container)) {
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(container);
    PyObject** const items = PySequence_Fast_ITEMS(container);
    if (size <= kMost) all.assign(items, items + size);
  } else if (PyAnySet_CheckExact(container) && PySet_GET_SIZE(container) <= kMost) {
    for (const setentry& place : set_places(container))
      if (holds_item(place)) all.push_back(place.key);
  } else if (PyDict_Check(container) && PyDict_GET_SIZE(container) <= kMost) {
    PyObject* key = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(container, &at, &key, nullptr);) all.push_back(key);
  }
  return all;
}

// The numbers that it holds, all of which are facts from now on; none: it holds other things too, or more. A set or a
// dictionary that the call finds may be a cache, which grows: of these a fact is of one key.
std::vector<PyObject*> Tracer::few_numbers_in(PyObject* container) {
  std::vector<PyObject*> numbers = few_in(container);
  const auto is_plain = [this](PyObject* o) { return is_number(o) && !holds_nan(o); };
  if (!std::ranges::all_of(numbers, is_plain)) return {};
  const auto is_fact = [&] {
    if (is_known(container)) return true;
    if (is_dict(container) || PySet_CheckExact(container)) return false;
    if (readable(container)) return true;
    if (PyList_CheckExact(container)) return open(container);
    Facts::Id id;
    if (!keys_node(container, &id)) return false;
    if (opened_.insert(container).second) open_dict(id, container);
    return true;
  };
  return is_fact() ? numbers : std::vector<PyObject*>();
}

// Whether the program asks it of each: `step in (100, 200)`. Of a step that differs from call to call the answers are
// the same in many.
bool Tracer::is_asked_of_each(PyObject* container, PyObject* item) {
  if (!numbers_.is_open(item)) return false;
  const std::vector<PyObject*> numbers = few_numbers_in(container);
  for (PyObject* number : numbers) {
    if (!compares_open(Py_EQ, item, number)) return false;
    if (PyObject_RichCompareBool(item, number, Py_EQ) == 1) break;
  }
  return !numbers.empty();
}

void Tracer::judge_contains(PyObject*, Args args) {
  if (args.size() != 2) return;
  PyObject *container = unwrapped(args[0]), *item = args[1];
  if (is_asked_of_each(container, item)) return;
  touch(item);
  if (is_tensor(container)) return tensor_method(container, "__contains__");
  if (Facts::Id id; keyable(item) && keys_node(container, &id)) {
    PyObject *key = pooled(item), *again = nullptr;
    if (!facts_->again(id, key, &again)) facts_->has_key(id, key, item_label(container, item), where());
    return;
  }
  if (PySet_CheckExact(container) && is_reached(container) && hashable(item)) {
    PyObject* one = pooled(item);
    // What equals a string, a type or None is that very value; of others a fact could miss an equal of another type.
    const bool is_plain = PyUnicode_CheckExact(item) || PyType_Check(item) || item == Py_None;
    if (is_plain || member_index(container, one, false) >= 0)
      return static_cast<void>(facts_->has_member(container, one, names_[container], where()));
    if (open(container)) return;
  }
  if (is_instance(container)) {
    if (PyObject* method = class_attr(Py_TYPE(container), "__contains__")) predicates_.insert(method);
    return type_method(container, "__contains__");
  }
  if (PyObject* method = metaclass_method(container, "__contains__"))
    return predicates_.insert(method), may_enter(method);
  const bool is_set = PyAnySet_CheckExact(container) || is_dict(container);
  if (is_set && fresh_.contains(container) && is_tensor(item) && keyable(item)) return;
  if (is_set && (is_known(container) || PyFrozenSet_CheckExact(container)) && hashable(item)) return;
  find_identical(container, item);
  if (!comparable(item) || holds_nan(item)) return deny("comparison of " + name_of(item));
  if (readable(container)) return;
  const bool is_list = PyList_CheckExact(container) && (is_known(container) || open(container));
  if (is_list || (PyTuple_Check(container) && is_tuple(container))) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(container); ++i)
      if (PyObject* o = PySequence_Fast_ITEMS(container)[i]; !comparable(o)) return deny("comparison of " + name_of(o));
    return;
  }
  deny("search in " + name_of(container));
}

}  // namespace fastjit::observe
#endif
