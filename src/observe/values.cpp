// Which objects may be read freely, and which need a fact.
#include "observe/observe.h"

#if PY_VERSION_HEX < 0x030C0000
#include <cstring>

#include "observe/tracer.h"

namespace fastjit::observe {
namespace {

// C types of torch whose objects never change.
constexpr const char* kTorchValues[] = {"torch.dtype", "torch.device",  "torch.memory_format", "torch.layout",
                                        "torch.Size",  "torch.qscheme", "torch.finfo",         "torch.iinfo"};
// Iterators that only walk something judged when they were made.
constexpr const char* kIterators[] = {"list_iterator",
                                      "tuple_iterator",
                                      "range_iterator",
                                      "str_iterator",
                                      "str_ascii_iterator",
                                      "dict_keyiterator",
                                      "dict_valueiterator",
                                      "dict_itemiterator",
                                      "odict_iterator",
                                      "set_iterator",
                                      "list_reverseiterator",
                                      "reversed",
                                      "zip",
                                      "enumerate",
                                      "map",
                                      "filter",
                                      "generator",
                                      "itertools.chain",
                                      "itertools.islice",
                                      "itertools.product",
                                      "dict_reversekeyiterator",
                                      "dict_reversevalueiterator",
                                      "longrange_iterator",
                                      "iterator"};

// Bits of type_flags_.
constexpr int kSeen = 1, kTorchValue = 2, kIterator = 4;

template <size_t N>
bool listed(const char* name, const char* const (&list)[N]) {
  for (const char* entry : list)
    if (!std::strcmp(name, entry)) return true;
  return false;
}

int flags_of(std::unordered_map<PyTypeObject*, int>& cache, PyTypeObject* type) {
  int& flags = cache[type];
  if (flags) return flags;
  flags = kSeen;
  if (type->tp_flags & Py_TPFLAGS_HEAPTYPE) return flags;
  if (listed(type->tp_name, kTorchValues)) flags |= kTorchValue;
  if (listed(type->tp_name, kIterators)) flags |= kIterator;
  return flags;
}

PyObject* view_dict(PyObject* view) {
  struct View {
    PyObject_HEAD PyObject* dict;
  };
  return reinterpret_cast<View*>(view)->dict;
}

bool is_view(PyObject* o) {
  return PyDictViewSet_Check(o) || PyDictValues_Check(o) || PyObject_TypeCheck(o, &PyODictValues_Type);
}

}  // namespace

bool Tracer::is_module(PyObject* o) { return host_.is_module && host_.is_module(o); }

bool Tracer::is_plain_value(PyObject* o) {
  return o == Py_None || o == Py_Ellipsis || o == Py_NotImplemented || PyBool_Check(o) || PyLong_CheckExact(o) ||
         PyFloat_CheckExact(o) || PyUnicode_CheckExact(o) || PyComplex_CheckExact(o) || PyBytes_CheckExact(o) ||
         Py_IS_TYPE(o, &PyRange_Type) || (flags_of(type_flags_, Py_TYPE(o)) & kTorchValue);
}

bool Tracer::is_tuple(PyObject* o) {
  if (PyTuple_CheckExact(o)) return true;
  if (!PyTuple_Check(o)) return false;
  PyTypeObject* type = Py_TYPE(o);
  bool reads_as_tuple = type->tp_iter == PyTuple_Type.tp_iter && type->tp_as_sequence &&
                        type->tp_as_sequence->sq_item == PyTuple_Type.tp_as_sequence->sq_item &&
                        type->tp_hash == PyTuple_Type.tp_hash;
  return reads_as_tuple || (flags_of(type_flags_, type) & kTorchValue);
}

void Tracer::touch(PyObject* o) {
  if (scalars_.empty()) return;
  if (auto it = scalars_.find(o); it != scalars_.end()) symbolic_[it->second] = false;
  if (PyTuple_Check(o))
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i) touch(PyTuple_GET_ITEM(o, i));
}

void Tracer::use_scalars(Args operands, bool forwards) {
  if (scalars_.empty() || !host_.on_scalar_use) return;
  auto is_number = [](PyObject* o) { return PyFloat_CheckExact(o) || PyLong_CheckExact(o) || PyBool_Check(o); };
  auto equal = [](PyObject* a, PyObject* b) {
    const double x = PyFloat_CheckExact(a) ? PyFloat_AS_DOUBLE(a) : 0,
                 y = PyFloat_CheckExact(b) ? PyFloat_AS_DOUBLE(b) : 0;
    return PyObject_RichCompareBool(a, b, Py_EQ) == 1 || (x != x && y != y);
  };
  for (size_t i = 0; i < operands.size(); ++i) {
    auto scalar = scalars_.find(operands[i]);
    if (scalar == scalars_.end()) continue;
    bool alone = true;
    for (size_t k = 0; k < operands.size(); ++k)
      if (k != i && is_number(operands[k]) && equal(operands[i], operands[k])) alone = false;
    host_.on_scalar_use(host_.context, scalar->second, alone, forwards);
    using_scalars_ = true;
  }
}

bool Tracer::readable(PyObject* o, int depth) {
  if (depth > 32) return false;
  if (PyTuple_Check(o) && is_tuple(o)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i)
      if (!readable(PyTuple_GET_ITEM(o, i), depth + 1)) return false;
    return true;
  }
  if (is_plain_value(o)) return touch(o), true;
  if (is_tensor(o) || PyType_Check(o) || PyCFunction_Check(o) || PyFunction_Check(o)) return true;
  if (PyList_CheckExact(o)) {
    if (!is_known(o)) return false;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(o); ++i)
      if (!readable(PyList_GET_ITEM(o, i), depth + 1)) return false;
    return true;
  }
  if (PyDict_CheckExact(o)) {
    if (!is_known(o)) return false;
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(o, &at, &key, &value);)
      if (!readable(key, depth + 1) || !readable(value, depth + 1)) return false;
    return true;
  }
  if (PyFrozenSet_CheckExact(o) || PySet_CheckExact(o)) {
    if (PySet_CheckExact(o) && !is_known(o)) return false;
    PyObject* item;
    Py_hash_t hash;
    for (Py_ssize_t at = 0; _PySet_NextEntry(o, &at, &item, &hash);)
      if (!readable(item, depth + 1)) return false;
    return true;
  }
  if (PySlice_Check(o)) {
    auto* s = reinterpret_cast<PySliceObject*>(o);
    return readable(s->start, depth + 1) && readable(s->stop, depth + 1) && readable(s->step, depth + 1);
  }
  if (is_view(o)) return readable(view_dict(o), depth + 1);
  if (PyMethod_Check(o)) return true;
  // What a generator or a mapped function gives to a C function is judged when it is given; see give().
  return fresh_.contains(o) && (PyGen_CheckExact(o) || Py_IS_TYPE(o, &PyMap_Type));
}

bool Tracer::hashable(PyObject* o) {
  if (readable(o)) return true;
  PyTypeObject* type = Py_TYPE(o);  // by identity
  if (type->tp_hash != PyBaseObject_Type.tp_hash || type->tp_richcompare != PyBaseObject_Type.tp_richcompare)
    return false;
  if (type->tp_flags & Py_TPFLAGS_HEAPTYPE)
    for (const char* name : {"__hash__", "__eq__"}) class_attr(type, intern(PyUnicode_FromString(name)));
  return true;
}

bool Tracer::is_fresh_iterator(PyObject* o) {
  return fresh_.contains(o) && (flags_of(type_flags_, Py_TYPE(o)) & kIterator);
}

PyObject* Tracer::intern(PyObject* name) {
  PyUnicode_InternInPlace(&name);
  names_held_.push_back(Ref::steal(name));
  return name;
}

std::string Tracer::name_of(PyObject* o) {
  if (PyType_Check(o)) return std::string("class ") + ((PyTypeObject*)o)->tp_name;
  if (auto it = names_.find(o); it != names_.end() && (is_module(o) || PyModule_Check(o))) return it->second;
  return Py_TYPE(o)->tp_name;
}

PyObject* Tracer::found(PyObject* value, const std::string& label) {
  if (!value) return value;
  fresh_.erase(value);  // what existed before the call is not new, whatever had this address
  if (PyLong_Check(value) || PyUnicode_Check(value) || value == Py_None) return value;
  names_.emplace(value, label);
  if (is_tensor(value) && host_.on_tensor && told_.insert(value).second)
    host_.on_tensor(host_.context, value, label.c_str());
  if (PyTuple_Check(value))  // its items cannot change
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i)
      found(PyTuple_GET_ITEM(value, i), label + "[" + std::to_string(i) + "]");
  return value;
}

PyObject* Tracer::class_attr(PyTypeObject* type, PyObject* name, PyTypeObject* after) {
  if (fresh_.contains((PyObject*)type)) return type_lookup(type, name, after);
  PyObject* value = facts_->read_type(type, name, after, where());
  if (value) found(value, std::string(type->tp_name) + "." + PyUnicode_AsUTF8(name));
  return value;
}

void Tracer::type_method(PyObject* o, const char* name) {
  PyObject* method = class_attr(Py_TYPE(o), intern(PyUnicode_FromString(name)));
  if (method && PyFunction_Check(method)) return may_enter_any();
  if (!method || !PyCFunction_Check(method)) deny(std::string(name) + " of " + name_of(o));
}

bool Tracer::dict_node(PyObject* d, Facts::Id* id) {
  if (!(PyDict_CheckExact(d) || Py_IS_TYPE(d, &PyODict_Type)) || is_known(d)) return false;
  auto name = names_.find(d);
  if (name == names_.end()) return false;
  *id = facts_->dict(d, name->second);
  return true;
}

bool Tracer::iterable(PyObject* o, const char* verb) {
  if (is_plain_value(o)) return touch(o), true;
  if (PyTuple_Check(o) && is_tuple(o)) return true;
  if ((PyList_CheckExact(o) || PyDict_CheckExact(o)) && is_known(o)) return true;
  // The order of a set is that of its hashes: determined for values, not for objects hashed by address.
  if (PyAnySet_CheckExact(o) && readable(o)) return true;
  if (is_tensor(o)) {
    class_attr(Py_TYPE(o), intern(PyUnicode_FromString("__iter__")));
    may_enter_any();
    return true;
  }
  PyObject* dict = is_view(o) ? view_dict(o) : o;
  if (dict != o && is_known(dict)) return true;
  if (auto owner = module_dicts_.find(dict); owner != module_dicts_.end() && PyDict_CheckExact(dict)) {
    std::string prefix = owner->second.empty() ? "" : owner->second + ".";
    for (const Key& key : facts_->items(facts_->dict(dict, names_[dict]), prefix, where()))
      if (key.expect.kind != observe::Expect::Kind::Absent) found(key.expect.object, key.label);
    return true;
  }
  if (is_module(o) || (fresh_.contains(o) && (Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE))) {
    type_method(o, "__iter__");
    return reason_.empty();
  }
  deny(std::string(verb) + " " + name_of(dict));
  return false;
}

void Tracer::truth(PyObject* o) {
  if (PyBool_Check(o) || o == Py_None) return;
  if (is_plain_value(o)) return touch(o);
  if (is_tensor(o)) return may_enter_any();
  Facts::Id id;
  if (dict_node(o, &id)) return static_cast<void>(facts_->truth(id, where()));
  if (PyTuple_Check(o) && is_tuple(o)) return;
  bool is_container = PyList_CheckExact(o) || PyDict_CheckExact(o) || PySet_CheckExact(o);
  if ((is_container && is_known(o)) || PyFrozenSet_CheckExact(o)) return;
  if (PyType_Check(o) || PyFunction_Check(o) || PyCFunction_Check(o) || PyMethod_Check(o) || PyModule_Check(o)) return;
  if (is_module(o) || fresh_.contains(o)) {
    if (!(Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE)) return;
    for (const char* name : {"__bool__", "__len__"})
      if (class_attr(Py_TYPE(o), intern(PyUnicode_FromString(name)))) return may_enter_any();
    return;
  }
  deny("truth of " + name_of(o));
}

void Tracer::length(PyObject* o) {
  if (is_plain_value(o)) return touch(o);
  if (is_tensor(o)) return may_enter_any();
  if (PyTuple_Check(o) && is_tuple(o)) return;
  if (is_view(o)) o = view_dict(o);
  if (is_known(o) && (PyList_CheckExact(o) || PyDict_CheckExact(o) || PySet_CheckExact(o))) return;
  if (PyFrozenSet_CheckExact(o)) return;
  if (module_dicts_.contains(o)) return static_cast<void>(iterable(o, "length of"));
  if (is_module(o) || fresh_.contains(o)) return type_method(o, "__len__");
  Facts::Id id;
  if (PyDict_Check(o) && PyDict_GET_SIZE(o) == 0 && dict_node(o, &id))
    return static_cast<void>(facts_->truth(id, where()));
  deny("length of " + name_of(o));
}

void Tracer::subscript_of(PyObject* container, PyObject* index) {
  if (is_tensor(container)) {
    touch(index);
    if (!readable(index)) return deny("index of type " + name_of(index));
    return may_enter_any();
  }
  touch(index);
  if (auto owner = module_dicts_.find(container); owner != module_dicts_.end() && PyUnicode_CheckExact(index)) {
    std::string label = owner->second + "." + PyUnicode_AsUTF8(index);
    PyObject* name = intern(Py_NewRef(index));
    PyObject* value = facts_->read_key(facts_->dict(container, names_[container]), name, label, where());
    return value ? found_in_module(owner->second, name, value) : void();
  }
  if (is_module(container)) return type_method(container, "__getitem__");
  if (!hashable(index)) return deny("hash of " + name_of(index));
  if (is_plain_value(container) || (PyTuple_Check(container) && is_tuple(container))) return;
  if ((PyList_CheckExact(container) || PyDict_CheckExact(container)) && is_known(container)) return;
  if (fresh_.contains(container) && (Py_TYPE(container)->tp_flags & Py_TPFLAGS_HEAPTYPE))
    return type_method(container, "__getitem__");
  bool is_alias = PyType_Check(container) && !(((PyTypeObject*)container)->tp_flags & Py_TPFLAGS_HEAPTYPE);
  if (is_alias) return;  // list[int]
  deny("read of item of " + name_of(container));
}

}  // namespace fastjit::observe
#endif
