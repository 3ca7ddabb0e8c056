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

void Tracer::judge_len(PyObject* callee, Args args) {
  if (args.size() == 1) length(args[0], callee == called_);
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

bool Tracer::is_itemgetter(PyObject* o) {
  static const PyTypeObject* const type = type_named("operator", "itemgetter");
  return Py_TYPE(o) == type;
}

// operator.itemgetter and operator.attrgetter: what they ask for never changes.
bool Tracer::calls_getter(PyObject* callable, Args args) {
  static const PyTypeObject* const attributes = type_named("operator", "attrgetter");
  const bool is_item = is_itemgetter(callable);
  if ((!is_item && Py_TYPE(callable) != attributes) || args.size() != 1) return false;
  const Ref reduced = Ref::steal(PyObject_CallMethod(callable, "__reduce__", nullptr));
  PyObject* asked = reduced && PyTuple_GET_SIZE(reduced.get()) == 2 ? PyTuple_GET_ITEM(reduced.get(), 1) : nullptr;
  if (!asked || !PyTuple_CheckExact(asked)) return PyErr_Clear(), false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(asked); ++i) {
    PyObject* one = PyTuple_GET_ITEM(asked, i);
    if (!is_item && PyUnicode_FindChar(one, '.', 0, PyUnicode_GET_LENGTH(one), 1) >= 0) return false;
    is_item ? subscript_of(args[0], one) : load_attr(args[0], intern(Py_NewRef(one)));
  }
  return true;
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
      if (type == &PyTuple_Type && args.size() == 2 && is_fresh_iterator(args[1]))
        may_enter_any();
      else if (type == &PyTuple_Type && args.size() == 2 && !iterable(args[1], "iteration over"))
        return;
      const bool is_itself = args.size() == 2 && args[0] == base && Py_TYPE(args[1]) == type && is_immutable(args[1]);
      top().fresh_result = !is_itself;
      return;
    }
  if (reason_.empty()) call_host(callee, args);
}

void Tracer::judge_bool(PyObject*, Args args) {
  if (args.size() == 1) truth(args[0]);
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

// Without a function to call when the object is gone. As a key: see stored_key().
void Tracer::judge_new_reference(PyObject* callee, Args args) {
  if (args.size() != 1 || top().kwnames) return deny("call of " + callee_text(callee));
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

void Tracer::judge_side_effect(PyObject* callee, Args) { deny("side effect: " + callee_text(callee)); }

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
