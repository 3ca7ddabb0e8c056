// Recording of facts and their check on every later call.
#include "observe/observe.h"

#if PY_VERSION_HEX < 0x030C0000
#include <cstring>

#include "observe/facts.h"

namespace fastjit::observe {
namespace {

bool is_constant(PyObject* o) {
  if (o == Py_None || o == Py_Ellipsis || o == Py_NotImplemented || PyBool_Check(o)) return true;
  if (PyLong_CheckExact(o) || PyFloat_CheckExact(o) || PyComplex_CheckExact(o)) return true;
  if (PyUnicode_CheckExact(o) || PyBytes_CheckExact(o)) return true;
  if (!PyTuple_CheckExact(o)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i)
    if (!is_constant(PyTuple_GET_ITEM(o, i))) return false;
  return true;
}

bool same_bits(PyObject* a, PyObject* b) noexcept {
  if (a == b) return true;
  if (Py_TYPE(a) != Py_TYPE(b)) return false;
  if (PyFloat_CheckExact(a)) return !std::memcmp(&((PyFloatObject*)a)->ob_fval, &((PyFloatObject*)b)->ob_fval, 8);
  if (PyComplex_CheckExact(a)) return !std::memcmp(&((PyComplexObject*)a)->cval, &((PyComplexObject*)b)->cval, 16);
  if (PyLong_CheckExact(a)) {
    if (Py_SIZE(a) != Py_SIZE(b)) return false;
    size_t digits = static_cast<size_t>(Py_SIZE(a) < 0 ? -Py_SIZE(a) : Py_SIZE(a));
    return !std::memcmp(((PyLongObject*)a)->ob_digit, ((PyLongObject*)b)->ob_digit, digits * sizeof(digit));
  }
  if (PyUnicode_CheckExact(a)) {
    if (PyUnicode_READY(a) < 0 || PyUnicode_READY(b) < 0) return PyErr_Clear(), false;
    if (PyUnicode_GET_LENGTH(a) != PyUnicode_GET_LENGTH(b) || PyUnicode_KIND(a) != PyUnicode_KIND(b)) return false;
    size_t bytes = static_cast<size_t>(PyUnicode_GET_LENGTH(a)) * static_cast<size_t>(PyUnicode_KIND(a));
    return !std::memcmp(PyUnicode_DATA(a), PyUnicode_DATA(b), bytes);
  }
  if (PyBytes_CheckExact(a))
    return Py_SIZE(a) == Py_SIZE(b) && !std::memcmp(PyBytes_AS_STRING(a), PyBytes_AS_STRING(b), (size_t)Py_SIZE(a));
  if (!PyTuple_CheckExact(a) || Py_SIZE(a) != Py_SIZE(b)) return false;
  for (Py_ssize_t i = 0; i < Py_SIZE(a); ++i)
    if (!same_bits(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) return false;
  return true;
}

Ref weak_to(PyObject* o) {
  if (!PyType_SUPPORTS_WEAKREFS(Py_TYPE(o))) return {};
  PyObject* ref = PyWeakref_NewRef(o, nullptr);
  if (!ref) PyErr_Clear();
  return Ref::steal(ref);
}

bool alive(PyObject* weak, PyObject* object) noexcept { return ((PyWeakReference*)weak)->wr_object == object; }
uintptr_t word(const void* p) { return reinterpret_cast<uintptr_t>(p); }

}  // namespace

PyObject* dict_lookup(PyObject* dict, PyObject* name, int32_t* hint) noexcept {
  auto* d = reinterpret_cast<PyDictObject*>(dict);
  const DictKeys* keys = keys_of(d);
  if (hint && keys->kind != 0 && *hint >= 0 && *hint < keys->nentries) {
    const DictEntry& entry = entries_of(keys)[*hint];
    PyObject* value = d->ma_values ? *(reinterpret_cast<PyObject**>(d->ma_values) + *hint) : entry.value;
    if (entry.key == name && value) return value;
  }
  PyObject* value = _PyDict_GetItem_KnownHash(dict, name, ((PyASCIIObject*)name)->hash);
  if (!value) {
    PyErr_Clear();
    return nullptr;
  }
  if (hint && *hint == kFindHint && keys->kind != 0) {
    for (Py_ssize_t i = 0; i < keys->nentries; ++i)
      if (entries_of(keys)[i].key == name) return *hint = static_cast<int32_t>(i), value;
  }
  return value;
}

PyObject* type_lookup(PyTypeObject* type, PyObject* name, PyTypeObject* after) noexcept {
  PyObject* found = _PyType_Lookup(type, name);  // also gives the type a version tag
  if (!after) return found;
  PyObject* mro = type->tp_mro;
  Py_ssize_t i = 0, n = PyTuple_GET_SIZE(mro);
  while (i < n && PyTuple_GET_ITEM(mro, i) != (PyObject*)after) ++i;
  for (++i; i < n; ++i) {
    PyObject* dict = ((PyTypeObject*)PyTuple_GET_ITEM(mro, i))->tp_dict;
    if (PyObject* value = dict_lookup(dict, name, nullptr)) return value;
  }
  return nullptr;
}

Expect Expect::of(PyObject* value) {
  Expect e;
  e.object = value;
  if (!value) return e;
  if (is_constant(value)) {
    e.kind = Kind::Equal;
    e.hold = Ref::share(value);
    return e;
  }
  e.was = Py_TYPE(value)->tp_name;
  if (PyDict_Check(value)) {
    e.kind = Kind::Node;  // finish() holds it instead where no node looks inside
    return e;
  }
  e.hold = weak_to(value);
  e.kind = e.hold ? Kind::Weak : Kind::Strong;
  if (!e.hold) e.hold = Ref::share(value);
  return e;
}

bool Expect::holds(PyObject* current) const noexcept {
  switch (kind) {
    case Kind::Absent:
      return current == nullptr;
    case Kind::Present:
      return current != nullptr;
    case Kind::Equal:
      return current && same_bits(object, current);
    case Kind::Weak:
      return current == object && alive(hold.get(), object);
    case Kind::Strong:
      return current == object;
    case Kind::Node:
      return current == object && PyDict_Check(current);
  }
  return false;
}

Facts::Id Facts::find(PyObject* object, Node::Kind kind) const {
  auto it = ids_.find({object, kind});
  return it == ids_.end() ? -1 : it->second;
}

Facts::Id Facts::add(PyObject* object, Node::Kind kind, const std::string& label, const std::string& where) {
  Node node{};
  node.kind = kind;
  node.object = object;
  node.label = label;
  node.where = where;
  bool kept = kind == Node::Kind::Dict || kind == Node::Kind::Cell || held_.contains(object);
  if (!kept) node.weak = weak_to(object);
  if (!kept && !node.weak) node.hold = Ref::share(object);
  Id id = static_cast<Id>(nodes_.size());
  nodes_.push_back(std::move(node));
  ids_[{object, kind}] = id;
  return id;
}

Facts::Id Facts::function(PyFunctionObject* f, const std::string& where) {
  Id id = find((PyObject*)f, Node::Kind::Function);
  if (id >= 0) return id;
  id = add((PyObject*)f, Node::Kind::Function, PyUnicode_AsUTF8(f->func_qualname), where);
  PyObject* parts[] = {f->func_code, f->func_defaults, f->func_kwdefaults};
  for (int i = 0; i < 3; ++i) node(id).parts[i] = Ref::share(parts[i]);
  if (f->func_kwdefaults) items(dict(f->func_kwdefaults, ""), node(id).label + " default ", where);
  return id;
}

Facts::Id Facts::object(PyObject* o, const std::string& label, const std::string& where) {
  Id id = find(o, Node::Kind::Object);
  if (id >= 0) return id;
  id = add(o, Node::Kind::Object, label, where);
  node(id).type = Py_TYPE(o);
  return id;
}

Facts::Id Facts::instance_dict(PyObject* o, const std::string& label, const std::string& where) {
  Id id = object(o, label, where);
  if (!node(id).dict_slot) {
    PyObject** slot = _PyObject_GetDictPtr(o);
    if (!slot) return -1;
    if (!*slot) {  // an attribute dictionary appears with the first attribute; make it so that there is one to watch
      PyObject* made = PyObject_GenericGetDict(o, nullptr);
      if (!made) return PyErr_Clear(), -1;
      Py_DECREF(made);
    }
    node(id).dict_slot = slot;
    node(id).dict = *slot;
  } else if (*node(id).dict_slot != node(id).dict && changed_.empty()) {
    changed_ = label + ".__dict__";
  }
  return dict(node(id).dict, label);
}

Facts::Id Facts::dict(PyObject* d, const std::string& label) {
  Id id = find(d, Node::Kind::Dict);
  return id >= 0 ? id : add(d, Node::Kind::Dict, label, "");
}

Key* Facts::find_key(Id id, PyObject* name, PyTypeObject* after) {
  auto it = key_ids_.find({id, {name, after}});
  return it == key_ids_.end() ? nullptr : &node(id).keys[it->second];
}

Key& Facts::add_key(Id id, PyObject* name, PyTypeObject* after, const std::string& label, const std::string& where) {
  Node& n = node(id);
  key_ids_[{id, {name, after}}] = n.keys.size();
  Key key;
  key.name = Ref::share(name);
  key.after = after;
  key.label = label;
  key.where = where;
  n.keys.push_back(std::move(key));
  return n.keys.back();
}

PyObject* Facts::note(Id id, PyObject* name, PyTypeObject* after, PyObject* value, const std::string& label,
                      const std::string& where) {
  Key* key = find_key(id, name, after);
  if (key && key->expect.kind != Expect::Kind::Present) {
    if (!key->expect.holds(value) && changed_.empty()) changed_ = key->label;
    return value;
  }
  if (!key) key = &add_key(id, name, after, label, where);
  key->expect = Expect::of(value);
  if (value) held_.insert(value);
  return value;
}

PyObject* Facts::read_key(Id id, PyObject* name, const std::string& label, const std::string& where) {
  if (Key* known = find_key(id, name, nullptr); known && known->expect.kind != Expect::Kind::Present) {
    PyObject* value = dict_lookup(node(id).object, name, &known->hint);
    if (!known->expect.holds(value) && changed_.empty()) changed_ = known->label;
    return value;
  }
  int32_t hint = kFindHint;
  PyObject* value = dict_lookup(node(id).object, name, &hint);
  note(id, name, nullptr, value, label, where);
  if (Key* key = find_key(id, name, nullptr)) key->hint = hint;
  return value;
}

bool Facts::has_key(Id id, PyObject* name, const std::string& label, const std::string& where) {
  PyObject* value = dict_lookup(node(id).object, name, nullptr);
  if (find_key(id, name, nullptr) || !value) {
    note(id, name, nullptr, value, label, where);
  } else {
    add_key(id, name, nullptr, label, where).expect.kind = Expect::Kind::Present;
  }
  return value != nullptr;
}

bool Facts::truth(Id id, const std::string& where) {
  Node& n = node(id);
  int8_t now = PyDict_GET_SIZE(n.object) != 0;
  if (n.truth >= 0 && n.truth != now && changed_.empty()) changed_ = n.label;
  n.truth = now;
  if (n.where.empty()) n.where = where;
  return now;
}

const std::vector<Key>& Facts::items(Id id, const std::string& prefix, const std::string& where) {
  Py_ssize_t at = 0;
  PyObject *name, *value;
  std::vector<Key> all;
  while (PyDict_Next(node(id).object, &at, &name, &value)) {
    Key key;
    key.name = Ref::share(name);
    key.expect = Expect::of(value);
    key.label = prefix + (PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : "?");
    key.where = where;
    held_.insert(value);
    all.push_back(std::move(key));
  }
  Node& n = node(id);
  for (const Key& old : n.keys) {  // what was noted before must hold still: the ordered list replaces it
    PyObject* now = dict_lookup(n.object, old.name.get(), nullptr);
    if (!old.expect.holds(now) && changed_.empty()) changed_ = old.label;
    if (old.expect.kind == Expect::Kind::Absent) {
      Key key;
      key.name = Ref::share(old.name.get());
      key.label = old.label;
      key.where = old.where;
      all.push_back(std::move(key));  // absent keys follow the present ones
    }
  }
  n.keys = std::move(all);
  n.ordered = true;
  key_ids_.erase(key_ids_.lower_bound({id, {nullptr, nullptr}}), key_ids_.lower_bound({id + 1, {nullptr, nullptr}}));
  n.truth = PyDict_GET_SIZE(n.object) != 0;
  if (n.where.empty()) n.where = where;
  for (size_t i = 0; i < n.keys.size(); ++i) key_ids_[{id, {n.keys[i].name.get(), nullptr}}] = i;
  return n.keys;
}

PyObject* Facts::read_type(PyTypeObject* type, PyObject* name, PyTypeObject* after, const std::string& where) {
  Id id = find((PyObject*)type, Node::Kind::Type);
  PyObject* value = type_lookup(type, name, after);
  if (id < 0) id = add((PyObject*)type, Node::Kind::Type, type->tp_name, where);
  std::string label = find_key(id, name, after) ? "" : std::string(type->tp_name) + "." + PyUnicode_AsUTF8(name);
  return note(id, name, after, value, label, where);
}

void Facts::type_order(PyTypeObject* type, const std::string& where) {
  Id id = find((PyObject*)type, Node::Kind::Type);
  if (id < 0) id = add((PyObject*)type, Node::Kind::Type, type->tp_name, where);
  Node& n = node(id);
  if (std::exchange(n.ordered, true)) return;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i)
    n.order.push_back(Expect::of(PyTuple_GET_ITEM(type->tp_mro, i)));
}

PyObject* Facts::read_cell(PyObject* cell, const std::string& label, const std::string& where) {
  PyObject* value = PyCell_GET(cell);
  Id id = find(cell, Node::Kind::Cell);
  if (id < 0) {
    id = add(cell, Node::Kind::Cell, label, where);
    Key key;
    key.expect = Expect::of(value);
    key.label = label;
    key.where = where;
    node(id).keys.push_back(std::move(key));
    if (value) held_.insert(value);
  } else if (!node(id).keys[0].expect.holds(value) && changed_.empty()) {
    changed_ = label;
  }
  return value;
}

std::string Facts::finish() {
  if (!changed_.empty()) return changed_;
  for (Node& n : nodes_)
    for (Key& key : n.keys)
      if (key.expect.kind == Expect::Kind::Node && find(key.expect.object, Node::Kind::Dict) < 0 &&
          key.expect.holds(n.kind == Node::Kind::Dict ? dict_lookup(n.object, key.name.get(), nullptr)
                           : n.kind == Node::Kind::Cell
                               ? PyCell_GET(n.object)
                               : type_lookup((PyTypeObject*)n.object, key.name.get(), key.after))) {
        key.expect.kind = Expect::Kind::Strong;
        key.expect.hold = Ref::share(key.expect.object);
      }
  checks_.clear();
  for (uint32_t i = 0; i < nodes_.size(); ++i) arm(i);
  for (Check& c : checks_)
    if (!(c.kind == Node::Kind::Dict || c.kind == Node::Kind::Type ? slow(c) : fast(c) || slow(c)))
      return failure(nodes_[c.node]);
  for (const Node& n : nodes_)
    if (n.kind == Node::Kind::Type && ((PyTypeObject*)n.object)->tp_version_tag == 0)
      return n.label + " (no version tag)";
  ids_.clear();
  key_ids_.clear();
  held_.clear();
  return "";
}

void Facts::arm(uint32_t index) {
  Node& n = nodes_[index];
  Check c{n.kind, index, n.object, n.weak.get(), 0, 0, 0};
  switch (n.kind) {
    case Node::Kind::Function:
      c.a = word(n.parts[0].get()), c.b = word(n.parts[1].get()), c.c = word(n.parts[2].get());
      break;
    case Node::Kind::Object: {
      static PyObject* no_dict = nullptr;
      c.a = word(n.type);
      c.b = word(n.dict_slot ? n.dict_slot : &no_dict);
      c.c = word(n.dict);
      break;
    }
    case Node::Kind::Dict:
    case Node::Kind::Type:
      break;  // the tag comes with the first look
    case Node::Kind::Cell:
      c.a = word(n.keys[0].expect.object);
      break;
  }
  checks_.push_back(c);
}

bool Facts::fast(const Check& c) noexcept {
  if (c.weak && !alive(c.weak, c.object)) return false;
  switch (c.kind) {
    case Node::Kind::Function: {
      auto* f = reinterpret_cast<PyFunctionObject*>(c.object);
      return word(f->func_code) == c.a && word(f->func_defaults) == c.b && word(f->func_kwdefaults) == c.c;
    }
    case Node::Kind::Object:
      return word(Py_TYPE(c.object)) == c.a && word(*reinterpret_cast<PyObject**>(c.b)) == c.c;
    case Node::Kind::Dict:
      return ((PyDictObject*)c.object)->ma_version_tag == c.a;
    case Node::Kind::Type:
      return ((PyTypeObject*)c.object)->tp_version_tag == c.a;
    case Node::Kind::Cell:
      return word(PyCell_GET(c.object)) == c.a;
  }
  return false;
}

bool Facts::slow(Check& c) noexcept {
  Node& n = nodes_[c.node];
  if (c.weak && !alive(c.weak, c.object)) return false;
  switch (n.kind) {
    case Node::Kind::Function:
    case Node::Kind::Object:
      return false;
    case Node::Kind::Cell: {
      // A value compared by its bits may come back as another object; an equal one is held by the fact from now on.
      PyObject* now = PyCell_GET(n.object);
      return n.keys[0].expect.holds(now);
    }
    case Node::Kind::Type: {
      auto* type = reinterpret_cast<PyTypeObject*>(n.object);
      for (Key& key : n.keys)
        if (!key.expect.holds(type_lookup(type, key.name.get(), key.after))) return false;
      if (n.ordered) {
        if (PyTuple_GET_SIZE(type->tp_mro) != static_cast<Py_ssize_t>(n.order.size())) return false;
        for (size_t i = 0; i < n.order.size(); ++i)
          if (!n.order[i].holds(PyTuple_GET_ITEM(type->tp_mro, (Py_ssize_t)i))) return false;
      }
      c.a = type->tp_version_tag ? type->tp_version_tag : UINTPTR_MAX;
      return true;
    }
    case Node::Kind::Dict:
      break;
  }
  if (n.truth >= 0 && n.truth != (PyDict_GET_SIZE(n.object) != 0)) return false;
  size_t first = 0;
  if (n.ordered) {
    Py_ssize_t at = 0;
    PyObject *name, *value;
    while (PyDict_Next(n.object, &at, &name, &value)) {
      if (first == n.keys.size() || n.keys[first].expect.kind == Expect::Kind::Absent) return false;
      const Key& key = n.keys[first++];
      if (!same_bits(key.name.get(), name) || !key.expect.holds(value)) return false;
    }
  }
  for (size_t i = first; i < n.keys.size(); ++i) {
    Key& key = n.keys[i];
    if (!key.expect.holds(dict_lookup(n.object, key.name.get(), &key.hint))) return false;
  }
  c.a = ((PyDictObject*)n.object)->ma_version_tag;
  return true;
}

bool Facts::check() noexcept {
  for (Check& c : checks_)
    if (!fast(c) && !slow(c)) return false;
  return true;
}

}  // namespace fastjit::observe
#endif
