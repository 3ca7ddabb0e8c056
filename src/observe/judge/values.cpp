// Which objects may be read freely, and which need a fact.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>
#include <cstring>

#include "observe/judge/tracer.h"
#include "observe/sets.h"

namespace fastjit::observe {
namespace {

// C types, of torch most of them, whose objects never change.
constexpr const char* kTorchValues[] = {"re.Pattern",          "re.Match",     "torch.dtype", "torch.device",
                                        "torch.memory_format", "torch.layout", "torch.Size",  "torch.qscheme",
                                        "torch.finfo",         "torch.iinfo"};
// Numbers of numpy, which never change either.
constexpr const char* kNumpyValues[] = {"numpy.float64", "numpy.float32",  "numpy.float16",  "numpy.int64",
                                        "numpy.int32",   "numpy.int16",    "numpy.int8",     "numpy.uint8",
                                        "numpy.uint16",  "numpy.uint32",   "numpy.uint64",   "numpy.bool_",
                                        "numpy.bool",    "numpy.longlong", "numpy.ulonglong"};
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
                                      "itertools.zip_longest",
                                      "itertools.product",
                                      "itertools.combinations",
                                      "itertools.permutations",
                                      "itertools.repeat",
                                      "itertools.accumulate",
                                      "itertools.compress",
                                      "itertools.count",
                                      "itertools.cycle",
                                      "itertools.dropwhile",
                                      "itertools.filterfalse",
                                      "itertools.pairwise",
                                      "itertools.starmap",
                                      "itertools.takewhile",
                                      "dict_reversekeyiterator",
                                      "dict_reversevalueiterator",
                                      "_collections._deque_iterator",
                                      "collections._deque_iterator",
                                      "_collections._deque_reverse_iterator",
                                      "collections._deque_reverse_iterator",
                                      "longrange_iterator",
                                      "iterator"};

// Bits of type_flags_.
constexpr int kSeen = 1, kTorchValue = 2, kIterator = 4, kNumpyValue = 8;

template <size_t N>
bool listed(const char* name, const char* const (&list)[N]) {
  for (const char* entry : list)
    if (!std::strcmp(name, entry)) return true;
  return false;
}

int flags_of(FlatMap<PyTypeObject*, int>& cache, PyTypeObject* type) {
  int& flags = cache[type];
  if (flags) return flags;
  flags = kSeen;
  const unsigned long made = type->tp_flags & (Py_TPFLAGS_HEAPTYPE | Py_TPFLAGS_IMMUTABLETYPE);
  if (made == Py_TPFLAGS_HEAPTYPE) return flags;  // by Python code; C modules make heap types too, which never change
  if (listed(type->tp_name, kTorchValues)) flags |= kTorchValue;
  if (listed(type->tp_name, kNumpyValues)) flags |= kTorchValue | kNumpyValue;
  if (listed(type->tp_name, kIterators)) flags |= kIterator;
  return flags;
}

}  // namespace

bool Tracer::is_opaque(PyObject* o) { return !std::strcmp(Py_TYPE(o)->tp_name, "torch._C.ScriptObject"); }

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
  // A class has a sq_item of its own, which calls __getitem__: mp_subscript says whether that is the tuple's.
  bool reads_as_tuple = type->tp_iter == PyTuple_Type.tp_iter && type->tp_as_mapping &&
                        type->tp_as_mapping->mp_subscript == PyTuple_Type.tp_as_mapping->mp_subscript &&
                        type->tp_hash == PyTuple_Type.tp_hash &&
                        type->tp_as_mapping->mp_length == PyTuple_Type.tp_as_mapping->mp_length &&
                        !(type->tp_as_number && type->tp_as_number->nb_bool);
  if (reads_as_tuple && (type->tp_flags & Py_TPFLAGS_HEAPTYPE)) {
    note_comparisons(type);
    for (const char* name :
         {"__getitem__", "__len__", "__bool__", "__iter__", "__contains__", "__hash__", "__add__", "__radd__",
          "__mul__", "__rmul__", "__mod__", "__rmod__", "__repr__", "__str__", "__format__"})
      class_attr(type, name);
  }
  return reads_as_tuple || (flags_of(type_flags_, type) & kTorchValue);
}

bool Tracer::readable(PyObject* o, int depth) {
  if (depth > 32) return false;
  if (PyTuple_Check(o) && is_tuple(o)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i)
      if (!readable(PyTuple_GET_ITEM(o, i), depth + 1)) return false;
    return true;
  }
  if (is_plain_value(o)) return touch(o), true;
  if (acts_as_value(o)) return true;
  if (depth) note_names(o);  // the text of a container is that of its items
  if (is_tensor(o) || PyType_Check(o) || PyCFunction_Check(o) || PyFunction_Check(o)) return true;
  if (PyList_CheckExact(o)) {
    if (!is_known(o) && !open(o)) return false;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(o); ++i)
      if (!readable(PyList_GET_ITEM(o, i), depth + 1)) return false;
    return true;
  }
  if (is_dict(o)) return readable_dict(o, true, depth);
  if (PyFrozenSet_CheckExact(o) || PySet_CheckExact(o)) {
    if (PySet_CheckExact(o) && !is_known(o) && !open(o)) return false;
    for (const setentry& place : set_places(o))
      if (holds_item(place) && !readable(place.key, depth + 1)) return false;
    return true;
  }
  if (PySlice_Check(o)) {
    auto* s = reinterpret_cast<PySliceObject*>(o);
    return readable(s->start, depth + 1) && readable(s->stop, depth + 1) && readable(s->step, depth + 1);
  }
  if (is_view(o)) return readable_dict(view_dict(o), !PyDictKeys_Check(o), depth);
  if (is_deque(o)) {
    if (!is_known(o) && !open(o)) return false;
    for (Py_ssize_t i = 0; i < PySequence_Size(o); ++i)
      if (const Ref item = Ref::steal(PySequence_GetItem(o, i)); !item || !readable(item.get(), depth + 1))
        return false;
    return true;
  }
  if (PyMethod_Check(o) || is_itemgetter(o)) return true;
  if (PyExceptionInstance_Check(o) && fresh_.contains(o))  // of a class of Python's own, which shows what it was given
    return !(Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE) && readable(((PyBaseExceptionObject*)o)->args, depth + 1);
  if (PyWeakref_CheckRefExact(o) || is_opaque(o)) return fresh_.contains(o);
  // What a generator or a mapped function gives to a C function is judged when it is given; see give().
  if (!fresh_.contains(o)) return is_generator(o) && (is_reached(o) || passed_.contains(o));
  return PyGen_CheckExact(o) || Py_IS_TYPE(o, &PyMap_Type) || is_decimal(o) || readable_sources(o, depth);
}

bool Tracer::readable_sources(PyObject* iterator, int depth) {
  const auto known = sources_.find(iterator);
  if (known == sources_.end()) return false;
  const std::vector<PyObject*> sources = known->second;  // a source may be an iterator that ends meanwhile
  return std::ranges::all_of(sources, [&](PyObject* source) { return readable(source, depth + 1); });
}

bool Tracer::readable_dict(PyObject* dict, bool values, int depth) {
  if (!is_known(dict) && !open(dict) && !opens_subclass(dict)) return false;
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value);)
    if (!readable(key, depth + 1) || (values && !readable(value, depth + 1))) return false;
  return true;
}

// Tensors and members of enums go by identity; their __hash__ is Python code, of the address and of the name. Which
// object an argument is no fact says, and that of others the facts do.
bool Tracer::keyable(PyObject* o) {
  if (!is_tensor(o) && !hashes_in_python(o)) return hashable(o);
  know_apart(o);
  if (arguments_.contains(o) || described_.contains(o) || gradients_.contains(o)) return false;
  PyObject* hash = class_attr(Py_TYPE(o), "__hash__");
  if (hash && PyInstanceMethod_Check(hash) && is_reached(o)) {  // an enumerator of pybind11: C code, of its number
    remember_hash(o, PyObject_Hash(o));
    return !PyErr_Occurred() || (PyErr_Clear(), false);
  }
  if (!hash || !PyFunction_Check(hash)) return false;
  if (is_tensor(o)) {
    remember_hash(o, reinterpret_cast<Py_hash_t>(o));
  } else {
    PyObject* module = reinterpret_cast<PyFunctionObject*>(hash)->func_module;
    const bool is_enum = module && PyUnicode_Check(module) && is_named(module, "enum") && is_reached(o);
    const Ref name = is_enum ? Ref::steal(PyObject_GetAttrString(o, "_name_")) : Ref();
    if (!name || !PyUnicode_CheckExact(name.get())) return PyErr_Clear(), false;
    note_instance(o);
    remember_hash(o, PyObject_Hash(name.get()));
  }
  top().expect = Expect::Hash;
  top().expected = hash;
  return true;
}

bool Tracer::hashable(PyObject* o) {
  if (PyType_Check(o) && fresh_.contains(o)) return false;  // by its address, which no other call has
  if (holds_nan(o) || is_method_of_argument(o) || (hashes_in_python(o) && !is_tensor(o))) return false;
  if (PyTuple_Check(o) || PyFrozenSet_Check(o)) know_apart(o);
  if (readable(o)) return true;
  if (described_.contains(o)) return false;
  PyTypeObject* type = Py_TYPE(o);  // by identity
  if (type->tp_hash != PyBaseObject_Type.tp_hash || type->tp_richcompare != PyBaseObject_Type.tp_richcompare)
    return false;
  if (type->tp_flags & Py_TPFLAGS_HEAPTYPE)
    for (const char* name : {"__hash__", "__eq__"}) class_attr(type, name);
  return true;
}

bool Tracer::is_numpy_number(PyTypeObject* type) { return flags_of(type_flags_, type) & kNumpyValue; }

bool Tracer::is_fresh_iterator(PyObject* o) {
  return fresh_.contains(o) && (flags_of(type_flags_, Py_TYPE(o)) & kIterator);
}

PyObject* Tracer::intern(PyObject* name) {
  PyUnicode_InternInPlace(&name);
  Ref held = Ref::steal(name);
  if (interned_.insert(name).second) names_held_.push_back(std::move(held));
  return name;
}

PyObject* Tracer::literal(const char* name) {
  PyObject*& known = literals_[name];
  return known ? known : known = intern(PyUnicode_FromString(name));
}

std::string Tracer::name_of(PyObject* o) {
  if (PyType_Check(o)) return std::string("class ") + ((PyTypeObject*)o)->tp_name;
  if (auto it = names_.find(o); it != names_.end() && (is_module(o) || PyModule_Check(o))) return it->second;
  return Py_TYPE(o)->tp_name;
}

bool Tracer::leads_nowhere(PyObject* value) {
  return !PyMethod_Check(value) && !PyTuple_Check(value) && !PyFrozenSet_CheckExact(value) && !PySlice_Check(value) &&
         !bound_to(value);
}

bool Tracer::is_again(PyObject* value) {
  return found_.contains(value) && !arguments_.contains(value) && leads_nowhere(value);
}

bool Tracer::met(PyObject* value) {
  if (!value) return true;
  if (!stored_.empty() && stored_.contains(value)) return false;
  if (!PyLong_CheckExact(value) && !PyUnicode_CheckExact(value) && value != Py_None && !is_again(value)) return false;
  if (!fresh_.empty()) fresh_.erase(value);
  return true;
}

bool Tracer::read_again(Facts::Id dict, PyObject* name, PyObject** value) {
  return dict >= 0 && facts_->again(dict, name, value) && met(*value);
}

// The function keeps the cell alive.
bool Tracer::find_again(PyObject* function, PyObject* cell) {
  PyObject* value = nullptr;
  const Facts::Id id = facts_->find(cell, Node::Kind::Cell);
  return id >= 0 && facts_->find(function, Node::Kind::Function) >= 0 && facts_->again(id, nullptr, &value) &&
         met(value);
}

void Tracer::found_new(PyObject* value, const std::string& label) {
  names_.emplace(value, label);
  meet_argument(value, label);
  if (is_tensor(value) && host_.on_tensor && told_.insert(value).second)
    host_.on_tensor(host_.context, value, label.c_str());
  found_inside(value, label);
  found_.insert(value);
}

// What an object that cannot change leads to is found with it.
void Tracer::found_inside(PyObject* value, const std::string& label) {
  // It is that object for as long. A plain tuple may be replaced by another one: see Facts::replaced_tensors().
  if ((PyTuple_Check(value) && !PyTuple_CheckExact(value)) || PyFrozenSet_CheckExact(value)) know_apart(value);
  if (PyMethod_Check(value)) {
    if (PyTuple_Check(PyMethod_GET_SELF(value))) know_apart(PyMethod_GET_SELF(value));
    found(PyMethod_GET_SELF(value), label + ".__self__");
  }
  PyObject* self = bound_to(value);
  if (self && (is_tensor(self) || PyTuple_Check(self) || PyFrozenSet_CheckExact(self)))
    know_apart(self), found(self, label + ".__self__");
  if (PyTuple_Check(value))
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i)
      found(PyTuple_GET_ITEM(value, i), label + "[" + std::to_string(i) + "]");
  if (PyFrozenSet_CheckExact(value))
    for (const setentry& place : set_places(value))
      if (holds_item(place)) found(place.key, "an item of " + label);
  if (PySlice_Check(value)) {
    const auto* slice = reinterpret_cast<PySliceObject*>(value);
    for (PyObject* bound : {slice->start, slice->stop, slice->step}) know_apart(bound);
    found(slice->start, label + ".start");
    found(slice->stop, label + ".stop");
    found(slice->step, label + ".step");
  }
}

size_t Tracer::HashClassRead::operator()(const ClassRead& read) const noexcept {
  return (bits_of(read.type) * 31 + bits_of(read.name)) * 31 + bits_of(read.after);
}

PyObject* Tracer::class_attr(PyTypeObject* type, PyObject* name, PyTypeObject* after) {
  if (!fresh_.empty() && fresh_.contains((PyObject*)type)) return type_lookup(type, name, after);
  if (!class_sets_.empty() && is_set_for_a_while(type, name, after)) return type_lookup(type, name, after);
  const auto label = [&] { return std::string(type->tp_name) + "." + PyUnicode_AsUTF8(name); };
  const auto known = class_reads_.find({type, name, after});
  if (known != class_reads_.end() && known->second.tag == type->tp_version_tag)
    return known->second.value ? found(known->second.value, label) : nullptr;
  PyObject* value = facts_->read_type(type, name, after, where());
  if (type->tp_version_tag) class_reads_.insert_or_assign({type, name, after}, ClassValue{type->tp_version_tag, value});
  if (value) found(value, label);
  return value;
}

bool Tracer::is_namespace(PyObject* o) {
  static const PyTypeObject* const type = type_named("types", "SimpleNamespace");
  return Py_TYPE(o) == type;
}

bool Tracer::is_union(PyObject* o) { return !std::strcmp(Py_TYPE(o)->tp_name, "types.UnionType"); }

bool Tracer::is_instance(PyObject* o) {
  if (is_namespace(o)) return holds_no_facts(o) || is_reached(o);
  if (PyType_Check(o) || is_tensor(o) || !(Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE)) return false;
  if (is_deque(o)) return false;  // since 3.12 its type lies on the heap
  return is_module(o) || holds_no_facts(o) || is_reached(o);
}

std::string_view Tracer::label_of(PyObject* o) {
  const auto name = names_.find(o);
  return name == names_.end() ? std::string_view(Py_TYPE(o)->tp_name) : name->second;
}

void Tracer::note_instance(PyObject* o) {
  if (!holds_no_facts(o) && facts_->find(o, Node::Kind::Object) < 0)
    facts_->object(o, std::string(label_of(o)), where());
}

PyObject* Tracer::pooled(PyObject* key) {
  if (PyUnicode_CheckExact(key)) return intern(Py_NewRef(key));
  if (!is_plain_value(key) && !PyTuple_Check(key)) return names_held_.push_back(Ref::share(key)), key;
  if (!keys_) keys_ = Ref::steal(PyDict_New());
  return PyDict_SetDefault(keys_.get(), key, key);
}

std::string Tracer::item_label(PyObject* container, PyObject* key) {
  auto owner = module_dicts_.find(container);
  if (owner == module_dicts_.end() || !PyUnicode_Check(key)) return names_[container] + "[" + words(key) + "]";
  return (owner->second.empty() ? "" : owner->second + ".") + PyUnicode_AsUTF8(key);
}

bool Tracer::open(PyObject* o) {
  Facts::Id id;
  if (list_node(o, &id)) {
    if (!opened_.insert(o).second) return true;
    const std::string label = names_[o];
    facts_->length(id, where());
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(o); ++i)
      found(facts_->read_item(id, i, where()), label + "[" + std::to_string(i) + "]");
    return true;
  }
  if (PySet_CheckExact(o) && is_reached(o)) {
    if (!opened_.insert(o).second) return true;
    const std::string label = names_[o];
    for (const Key& key : facts_->members(o, label, where())) found(key.expect.object, "an item of " + label);
    return true;
  }
  if (is_deque(o) && is_reached(o)) {
    if (!opened_.insert(o).second) return true;
    for (const Key& key : facts_->deque(o, names_[o], where())) found(key.expect.object, key.label);
    return true;
  }
  if (!dict_node(o, &id)) return false;
  if (!opened_.insert(o).second) return true;
  if (PyODict_Check(o) && PyDict_GET_SIZE(o) > 1)  // move_to_end changes its order but no version tag
    facts_->order(o, "the order of " + names_[o], where());
  open_dict(id, o);
  return true;
}

void Tracer::open_dict(Facts::Id id, PyObject* dict) {
  const auto label = [&](PyObject* key) { return item_label(dict, key); };
  for (const Key& key : facts_->items(id, label, where())) {
    if (key.expect.kind == Expected::Kind::Absent) continue;
    know_apart(key.name.get());
    found(key.name.get(), "key of " + names_[dict]);
    found(key.expect.object, key.label);
  }
}

bool Tracer::dict_node(PyObject* d, Facts::Id* id) {
  if (!is_dict(d) || is_known(d)) return false;
  auto name = names_.find(d);
  if (name == names_.end()) return false;
  *id = facts_->dict(d, name->second);
  return true;
}

bool Tracer::dict_base_node(PyObject* d, Facts::Id* id) {
  if (!PyDict_Check(d) || !is_reached(d)) return dict_node(d, id);
  *id = facts_->dict(d, names_[d]);
  return true;
}

bool Tracer::list_node(PyObject* l, Facts::Id* id) {
  if (!PyList_CheckExact(l) || !is_reached(l)) return false;
  *id = facts_->list(l, names_[l]);
  return true;
}

}  // namespace fastjit::observe
#endif
