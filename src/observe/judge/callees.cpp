// The rules of known C functions, and the judgement of those that need more than a rule.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <cstring>
#include <map>

#include "observe/events/opcode_numbers.h"
#include "observe/judge/tracer.h"
#include "observe/known_functions.h"
#include "observe/libraries.h"

namespace fastjit::observe {
namespace {

constexpr Tracer::Rule kPure = Tracer::Rule::Pure;
}  // namespace

const Tracer::Callee* Tracer::find_callee(PyObject* callable) {
  static constexpr Callee kRows[] = {
#define PURE(name) {name, kPure, nullptr},
#define FRESH(name) {name, Rule::Fresh, nullptr},
#define IGNORE(name) {name, Rule::Ignore, nullptr},
#define MUTATE(name) {name, Rule::Mutate, nullptr},
#define JUDGE(name, method) {name, Rule::Special, &Tracer::method},
#include "observe/judge/callees.def"
  };
  const int row = known_function(callable);
  return row < 0 ? nullptr : &kRows[row];
}

void Tracer::judge_len(PyObject*, Args args) {
  if (args.size() == 1) length(args[0]);
}

void Tracer::judge_isinstance(PyObject*, Args args) {
  if (args.size() != 2) return;
  PyObject *o = args[0], *classes = args[1];
  if (Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE && !is_tensor(o)) {
    note_instance(o);
    note_bases(Py_TYPE(o));
  }
  if (PyType_Check(o)) note_bases((PyTypeObject*)o);
  std::vector<PyObject*> todo{classes};
  while (!todo.empty()) {
    PyObject* one = todo.back();
    todo.pop_back();
    if (PyTuple_CheckExact(one)) {
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(one); ++i) todo.push_back(PyTuple_GET_ITEM(one, i));
      continue;
    }
    if (is_union(one)) {
      const Ref parts = Ref::steal(PyObject_GetAttrString(one, "__args__"));
      if (!parts || !PyTuple_CheckExact(parts.get())) return PyErr_Clear(), deny("isinstance with " + name_of(one));
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parts.get()); ++i)
        todo.push_back(PyTuple_GET_ITEM(parts.get(), i));  // the union holds them
      continue;
    }
    if (!PyType_Check(one)) return deny("isinstance with " + name_of(one));
    if (Py_TYPE(one) == &PyType_Type) continue;
    for (const char* name : {"__instancecheck__", "__subclasscheck__"}) {
      PyObject* hook = class_attr(Py_TYPE(one), name);
      if (hook && PyFunction_Check(hook)) predicates_.insert(hook), may_enter_any();
    }
  }
}

// What a metaclass's own __instancecheck__ falls back to: the class of the object in the bases' order.
void Tracer::judge_real_instance(PyObject* callee, Args args) {
  PyObject* o = args.empty() ? nullptr : args.back();
  // A bound method asks its own class for __class__ before the function.
  if (!o || !(plain_getattribute(Py_TYPE(o)) || PyMethod_Check(o))) return deny("call of " + callee_text(callee));
  if (!(Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE) || is_tensor(o)) return;
  note_instance(o);
  note_bases(Py_TYPE(o));
  PyObject* claimed = class_attr(Py_TYPE(o), "__class__");
  if (claimed && !Py_IS_TYPE(claimed, &PyGetSetDescr_Type)) deny("call of " + callee_text(callee));
}

void Tracer::judge_callable(PyObject*, Args args) {
  if (args.size() != 1 || !(Py_TYPE(args[0])->tp_flags & Py_TPFLAGS_HEAPTYPE) || is_tensor(args[0])) return;
  if (is_instance(args[0])) note_instance(args[0]);
  class_attr(Py_TYPE(args[0]), "__call__");
}

void Tracer::judge_getattr(PyObject*, Args args) {
  if (args.size() < 2 || !PyUnicode_CheckExact(args[1])) return deny("getattr with a computed name");
  load_attr(args[0], intern(Py_NewRef(args[1])), args.size() == 3);
}

// object.__getattribute__ itself: the class's own __getattribute__ and __getattr__ do not run.
void Tracer::judge_getattribute(PyObject*, Args args) {
  if (args.size() != 2 || !PyUnicode_CheckExact(args[1])) return deny("getattr with a computed name");
  PyObject *o = args[0], *name = intern(Py_NewRef(args[1]));
  const bool is_own = !is_tensor(o) && !PyModule_Check(o) && is_instance(o) && !plain_getattribute(Py_TYPE(o));
  if (!is_own) return load_attr(o, name);
  holds_no_facts(o) ? load_fresh_attr(o, name, top().probing) : load_module_attr(o, name, top().probing);
}

void Tracer::judge_hasattr(PyObject*, Args args) {
  if (args.size() != 2 || !PyUnicode_CheckExact(args[1])) return deny("hasattr with a computed name");
  PyObject* name = intern(Py_NewRef(args[1]));
  const bool is_known_class = is_tensor(args[0]) && class_attr(Py_TYPE(args[0]), name);
  if (!is_known_class) load_attr(args[0], name, true);
}

void Tracer::judge_setattr(PyObject*, Args args) {
  if (args.size() != 3 || !PyUnicode_CheckExact(args[1])) return deny("setattr with a computed name");
  store_attr(args[0], intern(Py_NewRef(args[1])), args[2]);
}

void Tracer::judge_delattr(PyObject*, Args args) {
  if (args.size() != 2 || !PyUnicode_CheckExact(args[1])) return deny("delattr with a computed name");
  delete_attr(args[0], intern(Py_NewRef(args[1])));
}

void Tracer::judge_object_setattr(PyObject*, Args args) {
  if (args.size() != 3 || !PyUnicode_CheckExact(args[1])) return deny("setattr with a computed name");
  if (fresh_.contains(args[0])) return replaces_parts(args[0], args[1], args[2]) ? void() : touch(args[2]);
  PyObject* name = intern(Py_NewRef(args[1]));
  if (described_.contains(args[0])) return store_described_attr(args[0], name, args[2], false);
  store_reached_attr(args[0], name, args[2], false);
}

void Tracer::judge_iter(PyObject*, Args args) {
  if (args.size() != 1) return deny("iter with a sentinel");
  get_iter_of(args[0]);
}

void Tracer::judge_next(PyObject*, Args args) {
  if (args.empty() || !is_fresh_iterator(args[0]))
    return deny("next of " + (args.empty() ? "nothing" : name_of(args[0])));
  top().may_stop = true;
  may_enter_any();
}

// A new generator goes on with the value, which only moves.
void Tracer::judge_send(PyObject* callee, Args args) {
  if (args.size() != 2 || !is_fresh_iterator(args[0])) return deny("call of " + callee_text(callee));
  touch(args[1]);
  top().may_stop = true;
  may_enter_any();
}

void Tracer::judge_type(PyObject*, Args args) {
  if (args.size() != 1) return deny("creation of a class");
  PyObject* o = args[0];
  if ((Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE) && !is_tensor(o)) note_instance(o);
}

void Tracer::judge_super(PyObject*, Args args) {
  top().fresh_result = true;
  if (!args.empty()) return;
  PyCodeObject* code = top().code;  // super() reads the cell __class__
  for (int i = code->co_nlocalsplus - code->co_nfreevars; i < code->co_nlocalsplus; ++i)
    if (!PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(code->co_localsplusnames, i), "__class__")) load_deref(i);
}

// Nothing tells of a new class. Whoever asks keeps what it found: the next call need not ask again.
void Tracer::judge_subclasses(PyObject*, Args args) {
  interrupt("what the subclasses of " + (args.empty() ? "a class" : name_of(args[0])) + " are");
}

// Every type's __new__ has the same PyMethodDef; its self tells which.
void Tracer::judge_new(PyObject* callee, Args args) {
  PyObject* base = PyCFunction_Check(callee) ? PyCFunction_GET_SELF(callee) : nullptr;
  if (base == (PyObject*)&PyBaseObject_Type) {
    top().fresh_result = true;
    return;
  }
  if (base == (PyObject*)&Py_GenericAliasType) {  // of an annotation: nothing is done with what it holds
    for (PyObject* arg : args) touch(arg);
    return;
  }
  for (PyTypeObject* type : {&PyTuple_Type, &PyList_Type, &PyDict_Type, &PyFloat_Type, &PyLong_Type, &PyUnicode_Type})
    if (base == (PyObject*)type &&
        (args.size() < 2 || type == &PyTuple_Type || readable_args(args.subspan(1), "__new__"))) {
      if (type == &PyTuple_Type && args.size() == 2 && !iterable(args[1], "iteration over")) return;
      const bool is_itself = args.size() == 2 && args[0] == base && Py_TYPE(args[1]) == type && is_immutable(args[1]);
      top().fresh_result = !is_itself;
      return;
    }
  if (reason_.empty()) call_host(callee, args);
}

void Tracer::judge_bool(PyObject*, Args args) {
  if (args.size() == 1) truth(args[0]);
}

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

// What C code may call for each item: it reads the item, or is an operator, which the recorder sees.
bool Tracer::maps_in_c(PyObject* callable) {
  for (PyTypeObject* known : {&PyFrozenSet_Type, &PyTuple_Type})
    if (callable == (PyObject*)known) return true;
  if (const Callee* row = find_callee(callable)) return row->rule == Rule::Pure;
  if (is_method_wrapper(callable))  // items of a tuple, which it has for good
    return PyTuple_CheckExact(bound_to(callable)) && callee_text(callable) == "tuple.__getitem__" &&
           readable(bound_to(callable));
  return host_.classify && host_.classify(callable) == Host::Callee::Operator;
}

void Tracer::judge_container(PyObject* callee, Args args) {
  // These look at the items (hash, truth, a C function), the others only pass them on.
  bool reads_items =
      callee == (PyObject*)&PySet_Type || callee == (PyObject*)&PyFrozenSet_Type || callee == (PyObject*)&PyFilter_Type;
  const auto is_container = [](PyObject* type) {  // else an iterator over its arguments
    for (PyTypeObject* known :
         {&PyList_Type, &PyTuple_Type, &PySet_Type, &PyFrozenSet_Type, &PyDict_Type, &PyODict_Type})
      if (type == (PyObject*)known) return true;
    return !PyType_Check(type);
  };
  const bool takes_callable = callee == (PyObject*)&PyMap_Type || callee == (PyObject*)&PyFilter_Type;
  bool reads_in_c = false;  // whenever an item comes, which may be long after this call
  const bool makes_dict = callee == (PyObject*)&PyDict_Type || callee == (PyObject*)&PyODict_Type;
  const size_t named = makes_dict && top().kwnames ? static_cast<size_t>(PyTuple_GET_SIZE(top().kwnames)) : 0;
  for (PyObject* value : args.last(named)) touch(value);
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
    bool callable_argument =
        is_first && (PyFunction_Check(arg) || PyCFunction_Check(arg) || PyType_Check(arg) || PyMethod_Check(arg) ||
                     Py_IS_TYPE(arg, &PyMethodDescr_Type) || is_method_wrapper(arg) || is_module(arg));
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
      if (callee == (PyObject*)&PyFilter_Type) predicates_.insert(function);
      continue;
    }
    if (takes_callable && &place == args.data()) reads_in_c = true;  // filter(None, items)
    if (reads_in_c && is_fresh_iterator(arg) && !readable_sources(arg, 0))
      return deny(callee_text(callee) + " in C over " + name_of(arg));
    if (callee == (PyObject*)&PyReversed_Type && is_instance(arg)) return reverse(arg);
    if (!is_fresh_iterator(arg) && !iterable(arg, "iteration over")) return;
    // Scalars in it may be read later without an instruction of their own.
    if (makes_dict ? !readable_source(arg) : !readable(arg) && reads_items)
      return deny("read of " + name_of(arg) + " by " + callee_text(callee));
  }
  top().reads_items = reads_items || makes_dict;
  top().reads_pairs = makes_dict;
  may_enter_any();
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

// Lists of tensors by device and type, which the key and the facts say.
void Tracer::judge_grouping(PyObject* callee, Args args) {
  if (readable_args(args, callee)) top().nested_result = true;
}

// Values, and what new containers hold of them.
bool Tracer::holds_values_only(PyObject* o, int depth) {
  if (is_plain_value(o)) return true;
  if (depth > 8) return false;
  PyObject *key, *value;
  if (PyDict_CheckExact(o)) {
    for (Py_ssize_t at = 0; PyDict_Next(o, &at, &key, &value);)
      if (!holds_values_only(key, depth + 1) || !holds_values_only(value, depth + 1)) return false;
    return true;
  }
  if (!PyList_CheckExact(o) && !PyTuple_CheckExact(o)) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
    if (!holds_values_only(PySequence_Fast_ITEMS(o)[i], depth + 1)) return false;
  return true;
}

// Tensors that torch makes of numbers without an operator: of the type and on the device of another one, or by the
// class.
void Tracer::judge_data(PyObject* callee, Args args) {
  const bool is_method = !args.empty() && is_tensor(args[0]);
  const Args data = is_method ? args.subspan(1) : args;
  const bool is_list = !data.empty() && (PyList_CheckExact(data[0]) || PyTuple_CheckExact(data[0]));
  // torch.Tensor(3) is memory that nobody has written to.
  if (data.empty() || !(is_method || is_list) || !holds_numbers_only(data[0]))
    return deny("call of " + callee_text(callee));
  if (!readable_args(data, callee)) return;
  top().constant_result = true;
  may_enter_any();
}

// The same bytes for the same values.
void Tracer::judge_dumps(PyObject* callee, Args args) {
  for (PyObject* arg : args)
    if (!holds_values_only(arg) || !readable(arg)) return deny("call of " + callee_text(callee));
}

// What copy.copy() and copy.deepcopy() make another object of: its class and its attributes.
void Tracer::judge_reduce(PyObject* callee, Args args) {
  PyObject* o = args.empty() ? nullptr : args[0];
  // Without slots of its own: nothing but a dictionary and a list of weak references.
  const bool is_plain = o && !is_tensor(o) && !is_module(o) && is_instance(o) && !is_namespace(o) &&
                        !described_.contains(o) && PyType_IsSubtype(Py_TYPE(o), &PyBaseObject_Type) &&
                        !PyTuple_Check(o) && !PyDict_Check(o) && !PyList_Check(o);
  if (!is_plain) return deny("call of " + callee_text(callee));
  note_instance(o);
  for (const char* name : {"__reduce__", "__getstate__", "__getnewargs_ex__", "__getnewargs__", "__slots__"})
    if (PyObject* own = class_attr(Py_TYPE(o), name); own && PyFunction_Check(own))
      return deny("call of " + std::string(Py_TYPE(o)->tp_name) + "." + name);
  if (!fresh_.contains(o)) {
    load_module_attr(o, literal("__dict__"), false);
  } else if (PyObject** attributes = _PyObject_GetDictPtr(o); attributes && *attributes) {
    fresh_.insert(*attributes);
  }
  top().expect = Expect::Inside;  // copyreg notes once which slots the class has
}

// Of a class, as caches by class look for it; see stored_key().
void Tracer::judge_new_reference(PyObject* callee, Args args) {
  if (args.size() != 1 || top().kwnames || !PyType_Check(args[0])) return deny("call of " + callee_text(callee));
  top().fresh_result = true;
}

// A call of it is judged as one of the function in it.
void Tracer::judge_method(PyObject*, Args args) {
  for (PyObject* arg : args) touch(arg);
  top().fresh_result = true;
}

// A metaclass calls what makes instances of every class.
void Tracer::judge_type_call(PyObject*, Args args) {
  if (args.empty() || !PyType_Check(args[0])) return deny("call of type.__call__");
  construct(reinterpret_cast<PyTypeObject*>(args[0]), args.subspan(1));
}

// An autograd.Function: what its forward runs are operators. Where gradients are needed, the recorder sees it.
void Tracer::judge_function_apply(PyObject* callee, Args args) {
  PyObject* function = PyCFunction_Check(callee) ? PyCFunction_GET_SELF(callee) : nullptr;
  if (!function || !PyType_Check(function)) return deny("call of " + callee_text(callee));
  for (const char* name : {"forward", "setup_context", "_backward_cls"})
    class_attr(reinterpret_cast<PyTypeObject*>(function), name);
  for (PyObject* arg : args) touch(arg);
  top().makes_context = true;
  may_enter_any();
}

void Tracer::judge_defaultdict(PyObject* callee, Args args) {
  PyObject* factory = args.empty() ? Py_None : args[0];
  const bool is_plain =
      factory == Py_None || (PyType_Check(factory) && !(((PyTypeObject*)factory)->tp_flags & Py_TPFLAGS_HEAPTYPE));
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

void Tracer::judge_contains(PyObject*, Args args) {
  if (args.size() != 2) return;
  PyObject *container = unwrapped(args[0]), *item = args[1];
  touch(item);
  if (is_tensor(container)) return tensor_method(container, "__contains__");
  if (Facts::Id id; keyable(item) && dict_node(container, &id)) {
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

void Tracer::judge_side_effect(PyObject* callee, Args) { deny("side effect: " + callee_text(callee)); }
void Tracer::judge_exit(PyObject* callee, Args) { deny(door_of(known_function(callee)) + callee_text(callee)); }
// A graph that begins in this call: what autograd then runs are operators.
void Tracer::judge_leaf(PyObject* callee, Args args) {
  const bool is_new = !args.empty() && is_tensor(args[0]) && !is_reached(args[0]) && !arguments_.contains(args[0]);
  if (!is_new || !host_.on_leaf || !host_.on_leaf(host_.context, args[0])) return judge_exit(callee, args);
  for (PyObject* arg : args.subspan(1)) touch(arg);
}

// torch.autograd.grad(), which gives the gradients and leaves none in the tensors. Nothing tells which numbers of the
// call the graph keeps: none may be another at a hit.
void Tracer::judge_backward(PyObject* callee, Args args) {
  const unsigned char* op = top().ops + 2 * top().offset;
  PyObject* names = op[0] == k_CALL_FUNCTION_EX ? unpacked_keywords(op[1]) : nullptr;
  PyObject* keeps = names && PyDict_CheckExact(names) ? PyDict_GetItemString(names, "accumulate_grad") : nullptr;
  if (keeps != Py_False) return deny("call of " + callee_text(callee));
  const Setting* hooks = host_.gradients_under ? host_.gradients_under() : nullptr;
  if (!hooks || hooks->now()) return deny(hooks ? std::string("gradients under ") + hooks->name : "use of autograd");
  facts_->setting(*hooks, where());
  if (args.empty() || !readable_args(args.subspan(1), callee)) return;  // the first is the engine
  for (size_t i = 0; i < numbers_.size(); ++i)
    if (numbers_.is_open(i)) close_number(i);
  top().container_result = true;
}

// Compiled autograd, which nobody uses, is switched off for a while.
void Tracer::judge_autograd_compiler(PyObject* callee, Args args) {
  if (args.empty() || args[0] != Py_None) deny("call of " + callee_text(callee));
}

// The elements as new lists of numbers: whoever told of it guards what they are.
void Tracer::judge_contents(PyObject* callee, Args args) {
  if (args.size() != 1 || !is_tensor(args[0]) || !host_.on_contents_read) return judge_exit(callee, args);
  if (host_.on_size_read) host_.on_size_read(host_.context, args[0]);
  host_.on_contents_read(host_.context, args[0]);
  top().nested_result = true;
}
// torch.tensor copies data without an operator: what it is given is the same in every call where it is all facts.
void Tracer::judge_tensor(PyObject* callee, Args args) {
  const bool copies = std::strcmp(known_name(known_function(callee)), "torch:as_tensor") != 0;
  if (!args.empty() && is_tensor(args[0]) && !copies)
    return readable_args(args, callee) ? may_enter_any() : void();  // the tensor itself, or what an operator gives
  if (!args.empty() && copies && is_array(args[0]) && reads_array(args[0]))
    return readable_args(args.subspan(1), callee) ? may_enter_any() : void();
  if (args.empty() || !holds_numbers_only(args[0])) return call_host(callee, args);
  if (numbers_.is_open(args[0]) && readable_args(args.subspan(1), callee)) {
    use_scalars(args.first(1), false);
    return may_enter_any();
  }
  if (readable_args(args, callee)) may_enter_any();
}

bool Tracer::holds_numbers_only(PyObject* o, int depth) {
  if (is_number(o) || PyBool_Check(o)) return true;
  if (depth > 8 || !(PyList_CheckExact(o) || PyTuple_CheckExact(o))) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
    if (!holds_numbers_only(PySequence_Fast_ITEMS(o)[i], depth + 1)) return false;
  return true;
}

// An abstract class keeps its answer for a class until any abstract class registers one, which a counter tells.
void Tracer::judge_abc(PyObject* callee, Args args) {
  Ref module = Ref::steal(PyImport_ImportModule("_abc"));
  auto* state = module ? static_cast<uint64_t*>(PyModule_GetState(module.get())) : nullptr;
  Ref token = module ? Ref::steal(PyObject_CallMethod(module.get(), "get_cache_token", nullptr)) : Ref();
  if (!state || !token || PyLong_AsUnsignedLongLong(token.get()) != state[1] || args.size() != 2)
    return deny("call of " + callee_text(callee));
  // Asked here, unobserved, so that the call itself finds the answer kept.
  const int known =
      PyType_Check(args[1]) ? PyObject_IsSubclass(args[1], args[0]) : PyObject_IsInstance(args[1], args[0]);
  if (known < 0) return PyErr_Clear(), deny("call of " + callee_text(callee));
  for (PyObject* o : args) {
    auto* type = PyType_Check(o) ? reinterpret_cast<PyTypeObject*>(o) : Py_TYPE(o);
    if (o == args[1] && !PyType_Check(o) && !is_tensor(o) && (type->tp_flags & Py_TPFLAGS_HEAPTYPE)) note_instance(o);
    if (type->tp_flags & Py_TPFLAGS_HEAPTYPE) note_bases(type);
  }
  // Of a class that was registered itself it keeps no answer: it asks its own Python code again.
  top().expect = Expect::Inside;
  facts_->word(&state[1], "the registration of classes with abstract ones", where());
}

// No stream records a graph as long as torch has not set up CUDA, which its module says.
void Tracer::judge_capturing(PyObject* callee, Args args) {
  if (PyType_Check(callee)) return call_type((PyTypeObject*)callee, args);  // in a torch without CUDA: raises in Python
  PyObject* name = intern(PyUnicode_FromString("_initialized"));
  Ref module = Ref::steal(PyImport_GetModule(intern(PyUnicode_FromString("torch.cuda"))));
  if (!module || !PyModule_CheckExact(module.get())) return PyErr_Clear(), deny("call of " + callee_text(callee));
  names_.emplace(module.get(), "torch.cuda");
  load_python_module_attr(module.get(), name, false);
  if (dict_lookup(PyModule_GetDict(module.get()), name, nullptr) != Py_False) deny("call of " + callee_text(callee));
  raising_ = true;  // where there is no driver, and as long as there is none
}

// What torch.compile would do with functions that are called next: here nothing, before as after.
void Tracer::judge_eval_frame(PyObject* callee, Args args) {
  if (args.size() != 1 || args[0] != Py_None) deny("call of " + callee_text(callee));
}

// copy.deepcopy() keeps what was copied already by address, in a dictionary that nobody else sees, and asks whether a
// copy is the object itself.
bool Tracer::is_copying() {
  const std::string_view file = "copy.py:";
  return owner_of(top().code) != Owner::User && where().starts_with(file);
}

// vars(o) is o.__dict__.
void Tracer::judge_vars(PyObject* callee, Args args) {
  if (args.size() != 1 || PyType_Check(args[0])) return deny("call of " + callee_text(callee));
  load_attr(args[0], literal("__dict__"));
}

// The address of an object that facts hold by identity is as determined as the object.
void Tracer::judge_identity(PyObject*, Args args) {
  if (is_copying()) return;
  if (args.size() == 1) know_apart(args[0]);
  const bool held = args.size() == 1 && is_reached(args[0]) && !is_plain_value(args[0]) && !PyTuple_Check(args[0]);
  if (!held) deny("read of an address by id");
}

}  // namespace fastjit::observe
#endif
