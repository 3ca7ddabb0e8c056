// Functions as objects, functools.partial, read-only views of dictionaries, and classes made by metaclasses in Python:
// what inspect.signature and enum look at.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "observe/judge/tracer.h"

namespace fastjit::observe {
namespace {

// Attributes of a function that are places in it. Its code and defaults are compared wherever it is called.
constexpr struct {
  const char* name;
  size_t offset;
} kFunctionPlaces[] = {{"__name__", offsetof(PyFunctionObject, func_name)},
                       {"__qualname__", offsetof(PyFunctionObject, func_qualname)},
                       {"__module__", offsetof(PyFunctionObject, func_module)},
                       {"__doc__", offsetof(PyFunctionObject, func_doc)},
                       {"__annotations__", offsetof(PyFunctionObject, func_annotations)}};

PyObject** place_in(PyFunctionObject* f, PyObject* name) {
  for (auto [known, offset] : kFunctionPlaces)
    if (is_named(name, known)) return reinterpret_cast<PyObject**>(reinterpret_cast<char*>(f) + offset);
  return nullptr;
}

// The annotations are made a dictionary when they are first asked for.
void settle_annotations(PyFunctionObject* f) {
  Ref made = Ref::steal(PyObject_GetAttrString(reinterpret_cast<PyObject*>(f), "__annotations__"));
  PyErr_Clear();
}

}  // namespace

void Tracer::load_function_attr(PyObject* o, PyObject* name, bool probing) {
  auto* f = reinterpret_cast<PyFunctionObject*>(o);
  if (fresh_.contains(o)) {
    if (is_named(name, "__dict__")) top().container_result = true;
    return;
  }
  for (const char* fixed : {"__get__", "__call__", "__class__"})
    if (is_named(name, fixed)) return;
  const std::string owner = PyUnicode_AsUTF8(f->func_name), label = owner + "." + PyUnicode_AsUTF8(name);
  for (auto [known, part] : {std::pair("__code__", &f->func_code), std::pair("__defaults__", &f->func_defaults),
                             std::pair("__kwdefaults__", &f->func_kwdefaults)})
    if (is_named(name, known)) {
      facts_->function(f, where());
      return static_cast<void>(found(*part, label));
    }
  for (auto [known, part] : {std::pair("__globals__", f->func_globals), std::pair("__closure__", f->func_closure),
                             std::pair("__builtins__", f->func_builtins)})
    if (is_named(name, known)) return static_cast<void>(found(part, label));  // of this function they never change
  if (is_named(name, "__annotations__")) settle_annotations(f);
  Facts::Id attributes = facts_->instance_dict(o, owner, where());
  if (is_named(name, "__dict__") && attributes >= 0)
    return static_cast<void>(found(facts_->node(attributes).object, label));
  if (PyObject** place = place_in(f, name))
    return static_cast<void>(found(facts_->read_slot(place, label, where()), label));
  if (PyObject* attr = type_lookup(&PyFunction_Type, name, nullptr)) {  // this class never changes
    const bool is_method = Py_IS_TYPE(attr, &PyMethodDescr_Type) || Py_IS_TYPE(attr, &PyWrapperDescr_Type);
    if (!is_method) deny("read of function " + label);
    return;
  }
  if (PyObject* value = facts_->read_key(attributes, name, label, where()))
    return static_cast<void>(found(value, label));
  if (!probing) raising_ = true;
}

// Of the method object itself, or of the function in it.
void Tracer::load_method_attr(PyObject* o, PyObject* name, bool probing) {
  if (is_reached(o)) {  // what it is made of never changes
    const std::string label = names_[o];
    found(PyMethod_GET_FUNCTION(o), label + ".__func__");
    if (!is_known(PyMethod_GET_SELF(o))) found(PyMethod_GET_SELF(o), label + ".__self__");
  }
  const bool is_own = type_lookup(&PyMethod_Type, name, nullptr) && !is_named(name, "__doc__");
  is_own ? load_value_attr(o, name) : load_attr(PyMethod_GET_FUNCTION(o), name, probing);
}

bool Tracer::is_partial(PyObject* o) {
  static PyTypeObject* const partial = type_named("functools", "partial");
  return partial && PyType_IsSubtype(Py_TYPE(o), partial) && Py_TYPE(o)->tp_call == partial->tp_call;
}

// What a partial object calls; __setstate__ may change it. False after deny().
bool Tracer::note_partial(PyObject* o) {
  auto* p = reinterpret_cast<PartialObject*>(o);
  if (Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE) note_instance(o), class_attr(Py_TYPE(o), "__call__");
  if (!is_reached(o) && !fresh_.contains(o)) return deny("call of partial"), false;
  if (!fresh_.contains(o)) {
    const std::string label = names_[o];
    facts_->object(o, label, where());
    for (auto [place, part] :
         {std::pair(&p->function, ".func"), std::pair(&p->args, ".args"), std::pair(&p->keywords, ".keywords")})
      found(facts_->read_slot(place, label + part, where()), label + part);
    if (!open(p->keywords)) return deny("call of partial"), false;
  }
  return true;
}

void Tracer::judge_partial(PyObject*, Args args) {
  for (PyObject* arg : args) touch(arg);
  if (!args.empty() && is_partial(args[0]) && !note_partial(args[0])) return;  // the new one takes over its parts
  top().fresh_result = true;
}

void Tracer::call_partial(PyObject* callable, Args args) {
  if (!note_partial(callable)) return;
  auto* p = reinterpret_cast<PartialObject*>(callable);
  if (!PyTuple_CheckExact(p->args) || !PyDict_CheckExact(p->keywords)) return deny("call of partial");
  std::vector<PyObject*> all;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(p->args); ++i) all.push_back(PyTuple_GET_ITEM(p->args, i));
  all.insert(all.end(), args.begin(), args.end());
  // Methods of the table tell keywords by the call's own names.
  const Callee* row = PyDict_GET_SIZE(p->keywords) ? find_callee(p->function) : nullptr;
  const bool is_cached = PyDict_GET_SIZE(p->keywords) && is_cache(p->function);
  if (is_cached || (row && row->rule == Rule::Special)) return deny("call of partial");
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(p->keywords, &at, &key, &value);) all.push_back(value);
  call(p->function, all);
}

// The dictionary behind a read-only view, or the object itself.
PyObject* Tracer::unwrapped(PyObject* o) {
  if (!Py_IS_TYPE(o, &PyDictProxy_Type)) return o;
  PyObject* dict = reinterpret_cast<ProxyObject*>(o)->mapping;
  if (is_reached(o)) found(dict, std::string(label_of(o)));
  return dict;
}

void Tracer::judge_proxy(PyObject*, Args args) {
  const bool takes_one = args.size() == 1 && is_dict(args[0]);
  if (!takes_one || !(is_known(args[0]) || is_reached(args[0]))) return deny("call of mappingproxy");
  top().fresh_result = true;
}

void Tracer::judge_proxy_read(PyObject* callee, Args args) {
  std::vector<PyObject*> all(args.begin(), args.end());
  if (all.empty() || !Py_IS_TYPE(all[0], &PyDictProxy_Type)) return deny("call of " + callee_text(callee));
  all[0] = unwrapped(all[0]);
  all.size() == 1 ? judge_dict_view(callee, all) : judge_dict_read(callee, all);
}

// A class whose metaclass says in Python what a call does.
bool Tracer::call_metaclass(PyTypeObject* type, Args args) {
  if (Py_TYPE(type)->tp_call == PyType_Type.tp_call) return false;
  PyObject* method = class_attr(Py_TYPE(type), "__call__");
  if (method == (PyObject*)&PyDict_Type) return judge_container(method, args), true;  // a TypedDict
  if (!method || !PyFunction_Check(method)) return false;
  may_enter(method);
  return true;
}

// An instance of a subclass of a number or of str (a member of an IntEnum) that is compared as that value.
bool Tracer::compares_as_value(PyObject* o) {
  PyTypeObject* type = Py_TYPE(o);
  if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE)) return false;
  for (PyTypeObject* base : {&PyLong_Type, &PyUnicode_Type, &PyFloat_Type}) {
    if (!PyType_IsSubtype(type, base) || type->tp_richcompare != base->tp_richcompare) continue;
    note_instance(o);
    note_comparisons(type);
    return true;
  }
  return false;
}

// An instance of a subclass of a number or of str, such as a member of an IntEnum, with which Python computes as with
// that value: it never changes.
bool Tracer::acts_as_value(PyObject* o) {
  PyTypeObject* type = Py_TYPE(o);
  if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE) || !is_reached(o)) return false;
  const auto same = [](const auto* mine, const auto* base) {
    if (!mine || !base) return mine == base || !base;
    return !std::memcmp(mine, base, sizeof *base);
  };
  for (PyTypeObject* base : {&PyLong_Type, &PyUnicode_Type, &PyFloat_Type}) {
    if (!PyType_IsSubtype(type, base)) continue;
    const bool computes_alike = type->tp_richcompare == base->tp_richcompare &&
                                same(type->tp_as_number, base->tp_as_number) &&
                                same(type->tp_as_mapping, base->tp_as_mapping) && type->tp_iter == base->tp_iter;
    if (!computes_alike) return false;
    note_instance(o);
    note_comparisons(type);
    for (const char* name :
         {"__add__",      "__radd__", "__sub__", "__rsub__", "__mul__",     "__rmul__", "__truediv__",
          "__floordiv__", "__mod__",  "__pow__", "__and__",  "__or__",      "__int__",  "__index__",
          "__float__",    "__bool__", "__neg__", "__len__",  "__getitem__", "__iter__"})
      class_attr(type, name);
    return true;
  }
  return false;
}

// Its class compares by Python code, which is watched.
bool Tracer::compares_in_python(PyObject* o) {
  if (is_tensor(o) || PyType_Check(o) || !is_instance(o)) return false;
  const auto is_watched = [&](const char* name) {
    PyObject* method = class_attr(Py_TYPE(o), name);
    return method &&
           (PyFunction_Check(method) || (Py_IS_TYPE(method, &PyWrapperDescr_Type) && !described_.contains(o)));
  };
  note_instance(o);
  constexpr std::array kNames{"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"};
  PyObject* equals = class_attr(Py_TYPE(o), kNames[0]);
  return equals && PyFunction_Check(equals) && std::ranges::all_of(kNames, is_watched);
}

// A list or a tuple of such objects, compared with == or !=: Python takes the answer of each as true or false.
bool Tracer::compares_items_in_python(PyObject* o) {
  if (!PyTuple_CheckExact(o) && !(PyList_CheckExact(o) && (is_known(o) || open(o)))) return false;
  PyObject** items = PySequence_Fast_ITEMS(o);
  const auto compares = [&](PyObject* item) {
    if (!compares_in_python(item)) return comparable(item);
    predicates_.insert(class_attr(Py_TYPE(item), "__eq__"));
    return true;
  };
  if (!std::all_of(items, items + Py_SIZE(o), compares)) return false;
  know_apart(o);
  return !holds_argument_tensor(o) && !holds_nan(o);
}

// A tuple whose class leaves comparing to tuple: its items are compared, which are for good.
bool Tracer::compares_as_tuple(PyObject* o) {
  if (!PyTuple_Check(o) || Py_TYPE(o)->tp_richcompare != PyTuple_Type.tp_richcompare) return false;
  PyObject** items = PySequence_Fast_ITEMS(o);
  return std::all_of(items, items + PyTuple_GET_SIZE(o), [&](PyObject* item) { return comparable(item); });
}

// An enumerator of pybind11: C code compares its number.
bool Tracer::is_enumerator(PyObject* o) {
  PyTypeObject* type = Py_TYPE(o);
  if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE) || is_tensor(o) || !is_reached(o)) return false;
  PyObject *entries = class_attr(type, "__entries"), *equals = class_attr(type, "__eq__");
  return entries && PyDict_CheckExact(entries) && equals && PyInstanceMethod_Check(equals);
}

// int | None: its parts are compared, which never change; those are classes that compare in C.
bool Tracer::compares_as_union(PyObject* o) {
  if (!is_union(o)) return false;
  const Ref parts = Ref::steal(PyObject_GetAttrString(o, "__args__"));
  if (!parts || !PyTuple_CheckExact(parts.get())) return PyErr_Clear(), false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parts.get()); ++i) {
    PyObject* part = PyTuple_GET_ITEM(parts.get(), i);
    PyTypeObject* meta = Py_TYPE(part);
    const bool in_c = meta->tp_hash == PyType_Type.tp_hash && meta->tp_richcompare == PyType_Type.tp_richcompare;
    if (!PyType_Check(part) || !in_c || fresh_.contains(part)) return false;
    if (meta->tp_flags & Py_TPFLAGS_HEAPTYPE) note_comparisons(meta), class_attr(meta, "__hash__");
  }
  return true;
}

// Comparing it runs no Python code and reads nothing that changes.
bool Tracer::comparable(PyObject* o) {
  const bool by_identity =
      Py_TYPE(o)->tp_richcompare == PyBaseObject_Type.tp_richcompare || PyType_Check(o) || PyFunction_Check(o);
  if (!readable(o) && !by_identity && !compares_as_value(o) && !compares_as_tuple(o) && !is_enumerator(o) &&
      !compares_as_union(o))
    return false;
  if (described_.contains(o) || is_method_of_argument(o)) return false;
  // Items that are one object are equal without a look.
  if (!is_tensor(o)) know_apart(o);
  if (!is_tensor(o) && (holds_argument_tensor(o) || (!PyFloat_CheckExact(o) && holds_nan(o)))) return false;
  if (Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE) note_comparisons(Py_TYPE(o));
  return true;
}

void Tracer::note_comparisons(PyTypeObject* type) {
  for (const char* name : {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"}) class_attr(type, name);
}

// Equal where the objects are one: the key does not say which an argument is.
bool Tracer::is_method_of_argument(PyObject* o) {
  PyObject* self = PyMethod_Check(o) ? PyMethod_GET_SELF(o) : PyCFunction_Check(o) ? PyCFunction_GET_SELF(o) : nullptr;
  return self && (arguments_.contains(self) || described_.contains(self));
}

// One (key, value) of what makes a dictionary: the value only moves.
bool Tracer::readable_pair(PyObject* o) {
  const bool is_list = PyList_CheckExact(o) && is_known(o);
  if ((!PyTuple_CheckExact(o) && !is_list) || Py_SIZE(o) != 2) return false;
  return hashable(PySequence_Fast_ITEMS(o)[0]);
}

// Whether all that such a source gives may go on to a new container, where who reads it will be judged.
bool Tracer::moves(PyObject* source) {
  return PyTuple_CheckExact(source) || PyList_CheckExact(source) || readable(source);
}

// What dict() and OrderedDict() are made of: the values only move.
bool Tracer::readable_source(PyObject* o) {
  o = unwrapped(o);
  if (is_dict(o) || PyDictItems_Check(o)) return true;  // iterable() has judged the keys
  if (PyGen_CheckExact(o)) return true;                 // see give()
  if (const auto zipped = sources_.find(o); zipped != sources_.end() && fresh_.contains(o)) {
    const std::vector<PyObject*> sources = zipped->second;
    const bool is_pairs = Py_IS_TYPE(o, &PyZip_Type) && sources.size() == 2;
    if (is_pairs && readable(sources[0]) && moves(sources[1])) return true;
    if (Py_IS_TYPE(o, &PyEnum_Type) && moves(sources[0])) return true;
    return readable(o);
  }
  if (!PyTuple_CheckExact(o) && !PyList_CheckExact(o)) return readable(o);
  for (Py_ssize_t i = 0; i < Py_SIZE(o); ++i)
    if (!readable_pair(PySequence_Fast_ITEMS(o)[i])) return false;
  return true;
}

// The names in the dictionaries of its bases are facts. None of a class in C can change. False: its metaclass may say
// what its dictionary and its bases are, and in which order these are.
bool Tracer::note_class_names(PyTypeObject* type) {
  for (const char* name : {"__dict__", "__bases__", "__getattribute__", "mro"})
    if (class_attr(Py_TYPE(type), name) != type_lookup(&PyType_Type, literal(name), nullptr)) return false;
  note_bases(type);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    PyObject* base = PyTuple_GET_ITEM(type->tp_mro, i);
    const bool can_change = !(reinterpret_cast<PyTypeObject*>(base)->tp_flags & Py_TPFLAGS_IMMUTABLETYPE);
    if (can_change && !fresh_.contains(base)) facts_->type_names(reinterpret_cast<PyTypeObject*>(base), where());
  }
  return true;
}

// Of a class: the names of its bases, each once, sorted.
void Tracer::judge_dir(PyObject* callee, Args args) {
  if (args.size() == 1 && !is_tensor(args[0]) && is_instance(args[0])) return list_names_of(args[0]);
  if (args.size() != 1 || !PyType_Check(args[0])) return deny("call of " + callee_text(callee));
  auto* type = reinterpret_cast<PyTypeObject*>(args[0]);
  const bool is_plain = class_attr(Py_TYPE(type), "__dir__") == type_lookup(&PyType_Type, literal("__dir__"), nullptr);
  if (!is_plain || !note_class_names(type)) return deny("call of " + callee_text(callee) + " on " + name_of(args[0]));
  top().fresh_result = true;
}

// Of an instance: what its class says in Python; else the names of its class, and its own where it is new.
void Tracer::list_names_of(PyObject* o) {
  PyTypeObject* type = Py_TYPE(o);
  note_instance(o);
  PyObject* method = class_attr(type, "__dir__");
  top().fresh_result = true;
  const bool is_python = method && PyFunction_Check(method);
  if (is_python && !(((PyCodeObject*)((PyFunctionObject*)method)->func_code)->co_flags & CO_GENERATOR)) {
    top().reads_items = true;  // C code sorts what it gives
    return may_enter(method);
  }
  const auto is_built_in = [&](const char* name) {
    PyObject* attr = class_attr(type, name);
    return !attr || Py_IS_TYPE(attr, &PyGetSetDescr_Type);
  };
  const bool is_plain = fresh_.contains(o) && method == type_lookup(&PyBaseObject_Type, literal("__dir__"), nullptr) &&
                        plain_getattribute(type) && is_built_in("__dict__") && is_built_in("__class__");
  if (!is_plain || !note_class_names(type)) return deny("call of dir");
  PyObject** own = _PyObject_GetDictPtr(o);
  PyObject* key;
  for (Py_ssize_t at = 0; own && *own && PyDict_Next(*own, &at, &key, nullptr);)
    if (!PyUnicode_CheckExact(key)) return deny("call of dir");
}

void Tracer::judge_recursion_limit(PyObject*, Args) {
  static const Setting limit{"the recursion limit", [] { return static_cast<uint64_t>(Py_GetRecursionLimit()); },
                             [](uint64_t value) { Py_SetRecursionLimit(static_cast<int>(value)); }};
  facts_->setting(limit, where());
}

}  // namespace fastjit::observe
#endif
