// Recording of facts.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include "observe/facts/facts.h"
#include "observe/sets.h"
#include "support/work.h"

namespace fastjit::observe {
namespace {

Py_ssize_t size_of(const Node& n) {
  return n.kind == Node::Kind::List ? PyList_GET_SIZE(n.object) : PyDict_GET_SIZE(n.object);
}

}  // namespace

void Facts::changed(const std::string& label, const std::string& where) {
  if (changed_.empty()) changed_ = label + ", which it reads at " + where;
}

Facts::Id Facts::find(PyObject* object, Node::Kind kind) const {
  auto it = ids_.find({object, kind});
  return it == ids_.end() ? -1 : it->second;
}

Facts::Id Facts::add(PyObject* object, Node::Kind kind, std::string label, const std::string& where) {
  Node node{};
  node.kind = kind;
  node.object = object;
  node.label = std::move(label);
  node.where = where;
  const bool inside = kind == Node::Kind::Dict || kind == Node::Kind::List || kind == Node::Kind::Cell ||
                      kind == Node::Kind::Slot || kind == Node::Kind::Word || kind == Node::Kind::Order ||
                      kind == Node::Kind::Setting;  // what it was reached through keeps it
  const bool kept = inside || held_.contains(object);
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
  const std::string prefix = node(id).label + " default ";
  if (f->func_kwdefaults)
    items(dict(f->func_kwdefaults, ""), [&](PyObject* key) { return prefix + PyUnicode_AsUTF8(key); }, where);
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
  } else if (*node(id).dict_slot != node(id).dict) {
    changed(label + ".__dict__", where);
  }
  return dict(node(id).dict, label);
}

Facts::Id Facts::known_dict(PyObject* o) const {
  const Id id = find(o, Node::Kind::Object);
  if (id < 0) return -1;
  const Node& n = nodes_[static_cast<size_t>(id)];
  return n.dict_slot && *n.dict_slot == n.dict ? find(n.dict, Node::Kind::Dict) : -1;
}

Facts::Id Facts::dict(PyObject* d, std::string label) {
  const Id id = find(d, Node::Kind::Dict);
  return id >= 0 ? id : add(d, Node::Kind::Dict, std::move(label), "");
}

Key* Facts::find_key(Id id, PyObject* name, PyTypeObject* after) {
  auto it = key_ids_.find({id, {name, after}});
  return it == key_ids_.end() ? nullptr : &node(id).keys[it->second];
}

Key& Facts::add_key(Id id, PyObject* name, PyTypeObject* after, std::string label, const std::string& where) {
  constexpr size_t kFew = 4;
  Node& n = node(id);
  if (n.keys.empty()) n.keys.reserve(kFew);
  key_ids_[{id, {name, after}}] = n.keys.size();
  Key key;
  key.name = Ref::share(name);
  key.after = after;
  key.label = std::move(label);
  key.where = where;
  n.keys.push_back(std::move(key));
  return n.keys.back();
}

PyObject* Facts::note(Id id, PyObject* name, PyTypeObject* after, PyObject* value, std::string label,
                      const std::string& where) {
  Key* key = find_key(id, name, after);
  if (key && key->expect.kind != Expected::Kind::Present) {
    if (!key->expect.holds(value)) changed(key->label, where);
    return value;
  }
  if (!key) key = &add_key(id, name, after, std::move(label), where);
  key->expect = Expected::of(value);
  if (value) held_.insert(value);
  return value;
}

PyObject* Facts::read_key(Id id, PyObject* name, std::string label, const std::string& where) {
  Key* known = find_key(id, name, nullptr);
  pin_read(known, id, name, -1);
  if (is_own(node(id).object, name)) return dict_lookup(node(id).object, name, nullptr);
  if (known && known->expect.kind != Expected::Kind::Present) {
    PyObject* value = dict_lookup(node(id).object, name, &known->hint);
    if (!known->expect.holds(value)) changed(known->label, where);
    return value;
  }
  int32_t hint = node(id).next_hint;  // keys are mostly read in their order
  PyObject* value = dict_lookup(node(id).object, name, &hint);
  if (!is_entry(node(id).object, hint, name)) hint -= 2;  // or in the opposite order
  if (!is_entry(node(id).object, hint, name)) hint = kFindHint, value = dict_lookup(node(id).object, name, &hint);
  Key& key = known ? *known : add_key(id, name, nullptr, std::move(label), where);
  key.expect = Expected::of(value);
  key.hint = hint;
  node(id).next_hint = hint + 1;
  if (value) held_.insert(value);
  return value;
}

bool Facts::again(Id id, PyObject* name, PyObject** value) {
  using Kind = observe::Expected::Kind;
  Key* key = find_key(id, name, nullptr);
  if (!key || key->expect.kind == Kind::Present || key->expect.is_open()) return false;
  if (!own_.empty() && is_own(node(id).object, name)) return false;
  *value = name ? dict_lookup(node(id).object, name, &key->hint) : held_in(node(id));
  return key->expect.holds(*value);
}

bool Facts::has_key(Id id, PyObject* name, std::string label, const std::string& where) {
  PyObject* value = dict_lookup(node(id).object, name, nullptr);
  if (is_own(node(id).object, name)) return value != nullptr;
  if (find_key(id, name, nullptr) || !value) {
    note(id, name, nullptr, value, std::move(label), where);
  } else {
    add_key(id, name, nullptr, std::move(label), where).expect.kind = Expected::Kind::Present;
  }
  return value != nullptr;
}

bool Facts::truth(Id id, const std::string& where) {
  Node& n = node(id);
  int8_t now = size_of(n) != 0;
  if (n.grown_from >= 0 || (n.truth >= 0 && n.truth != now)) changed(n.label, where);
  n.truth = now;
  if (n.where.empty()) n.where = where;
  return now;
}

Py_ssize_t Facts::length(Id id, const std::string& where) {
  Node& n = node(id);
  const Py_ssize_t now = size_of(n);
  if (n.grown_from >= 0 || (n.length >= 0 && n.length != now)) changed(n.label, where);
  n.length = now;
  if (n.where.empty()) n.where = where;
  for (Node::Overwritten& key : std::exchange(n.overwritten, {}))  // a store makes an item more where there was none
    if (!find_key(id, key.name.get(), nullptr))
      add_key(id, key.name.get(), nullptr, key.label, key.where).expect.kind = Expected::Kind::Present;
  return now;
}

const std::vector<Key>& Facts::items(Id id, const Label& label, const std::string& where) {
  Py_ssize_t at = 0;
  PyObject *name, *value;
  std::vector<Key> all;
  while (PyDict_Next(node(id).object, &at, &name, &value)) {
    support::count_work();
    Key key;
    key.name = Ref::share(name);
    key.expect = Expected::of(value);
    key.label = label(name);
    key.where = where;
    held_.insert(value);
    all.push_back(std::move(key));
  }
  Node& n = node(id);
  if (n.written) changed(n.label, where);
  for (const Key& old : n.keys) {  // what was noted before must hold still: the ordered list replaces it
    PyObject* now = dict_lookup(n.object, old.name.get(), nullptr);
    if (!old.expect.holds(now)) changed(old.label, where);
    if (old.expect.kind == Expected::Kind::Absent) {
      Key key;
      key.name = Ref::share(old.name.get());
      key.label = old.label;
      key.where = old.where;
      all.push_back(std::move(key));  // absent keys follow the present ones
    }
  }
  for (const Key& old : n.keys) key_ids_.erase({id, {old.name.get(), old.after}});
  n.keys = std::move(all);
  n.ordered = true;
  by_hash_.erase(id);
  n.truth = PyDict_GET_SIZE(n.object) != 0;
  if (n.where.empty()) n.where = where;
  for (size_t i = 0; i < n.keys.size(); ++i) key_ids_[{id, {n.keys[i].name.get(), nullptr}}] = i;
  return n.keys;
}

bool Facts::has_member(PyObject* set, PyObject* item, const std::string& label, const std::string& where) {
  const int32_t index = member_index(set, item, false);
  Id id = find(set, Node::Kind::Set);
  if (id < 0) id = add(set, Node::Kind::Set, label, where);
  if (node(id).ordered || find_key(id, item, nullptr)) return index >= 0;
  Key& key = add_key(id, item, nullptr, words(item) + " in " + label, where);
  if (index < 0) return false;  // and is Absent
  key.expect = Expected::of(set_places(set)[static_cast<size_t>(index)].key);
  key.hint = index;
  return true;
}

const std::vector<Key>& Facts::members(PyObject* set, const std::string& label, const std::string& where) {
  Id id = find(set, Node::Kind::Set);
  if (id < 0) id = add(set, Node::Kind::Set, label, where);
  Node& n = node(id);
  if (std::exchange(n.ordered, true)) return n.keys;
  for (const Key& old : n.keys) key_ids_.erase({id, {old.name.get(), old.after}});
  n.keys.clear();
  const auto places = set_places(set);
  for (size_t i = 0; i < places.size(); ++i) {
    if (!holds_item(places[i])) continue;
    Key& key = add_key(id, places[i].key, nullptr, words(places[i].key) + " in " + label, where);
    key.expect = Expected::of(places[i].key);
    key.hint = static_cast<int32_t>(i);
    held_.insert(places[i].key);
  }
  return n.keys;
}

PyObject* Facts::read_type(PyTypeObject* type, PyObject* name, PyTypeObject* after, const std::string& where) {
  Id id = find((PyObject*)type, Node::Kind::Type);
  PyObject* value = type_lookup(type, name, after);
  if (id < 0) id = add((PyObject*)type, Node::Kind::Type, type->tp_name, where);
  std::string label = find_key(id, name, after) ? "" : std::string(type->tp_name) + "." + PyUnicode_AsUTF8(name);
  return note(id, name, after, value, std::move(label), where);
}

static void give_tag(PyTypeObject* type) {
  static PyObject* const any_name = PyUnicode_InternFromString("__mro__");
  type_lookup(type, any_name, nullptr);
}

void Facts::type_order(PyTypeObject* type, const std::string& where) {
  Id id = find((PyObject*)type, Node::Kind::Type);
  if (id < 0) id = add((PyObject*)type, Node::Kind::Type, type->tp_name, where);
  Node& n = node(id);
  if (std::exchange(n.ordered, true)) return;
  give_tag(type);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i)
    n.order.push_back(Expected::of(PyTuple_GET_ITEM(type->tp_mro, i)));
}

void Facts::type_names(PyTypeObject* type, const std::string& where) {
  Id id = find((PyObject*)type, Node::Kind::Type);
  if (id < 0) id = add((PyObject*)type, Node::Kind::Type, type->tp_name, where);
  if (node(id).parts[0]) return;
  static PyObject* const any_name = PyUnicode_InternFromString("__dir__");
  type_lookup(type, any_name, nullptr);  // gives it a version tag
  const Ref keys = Ref::steal(PyDict_Keys(type_dict(type)));
  node(id).parts[0] = Ref::steal(PyList_AsTuple(keys.get()));
}

Facts::Id Facts::list(PyObject* l, const std::string& label) {
  Id id = find(l, Node::Kind::List);
  return id >= 0 ? id : add(l, Node::Kind::List, label, "");
}

Key& Facts::add_item(Id id, Py_ssize_t index, const std::string& where) {
  Node& n = node(id);
  key_ids_[{id, {index_name(index), nullptr}}] = n.keys.size();
  Key item;
  item.hint = static_cast<int32_t>(index);
  item.label = n.label + "[" + std::to_string(index) + "]";
  item.where = where;
  n.keys.push_back(std::move(item));
  return n.keys.back();
}

PyObject* Facts::read_item(Id id, Py_ssize_t index, const std::string& where) {
  PyObject* value = PyList_GET_ITEM(node(id).object, index);
  PyObject* name = index_name(index);
  Key* key = find_key(id, name, nullptr);
  pin_read(key, id, nullptr, index);
  Node& n = node(id);
  if (n.grown_from >= 0 && index >= n.grown_from) changed(n.label, where);
  if (is_own(n.object, name)) return value;
  if (key && key->expect.kind == Expected::Kind::Present) {
    key->expect = Expected::of(value);
    held_.insert(value);
    return value;
  }
  if (key) {
    if (!key->expect.holds(value)) changed(key->label, where);
    return value;
  }
  add_item(id, index, where).expect = Expected::of(value);
  held_.insert(value);
  return value;
}

PyObject* Facts::read_cell(PyObject* cell, const std::string& label, const std::string& where) {
  return read_place(cell, Node::Kind::Cell, PyCell_GET(cell), label, where);
}

PyObject* Facts::read_slot(PyObject** slot, const std::string& label, const std::string& where) {
  return read_place(reinterpret_cast<PyObject*>(slot), Node::Kind::Slot, *slot, label, where);
}

void Facts::word(void* at, const std::string& label, const std::string& where) {
  auto* place = static_cast<PyObject**>(at);
  Id id = find(static_cast<PyObject*>(at), Node::Kind::Word);
  if (id < 0) {
    id = add(static_cast<PyObject*>(at), Node::Kind::Word, label, where);
    node(id).dict_slot = place;
    node(id).dict = *place;
  } else if (node(id).dict != *place) {
    changed(label, where);
  }
}

// A word tells of each change of the order, also of one that was undone.
void Facts::order(PyObject* ordered_dict, const std::string& label, const std::string& where) {
  if (const Id known = find(ordered_dict, Node::Kind::Order); known >= 0)
    return verify(node(known)) ? void() : changed(label, where);
  const Id id = add(ordered_dict, Node::Kind::Order, label, where);
  auto* ordered = reinterpret_cast<OrderedDictObject*>(ordered_dict);
  node(id).dict_slot = reinterpret_cast<PyObject**>(&ordered->state);
  node(id).dict = *node(id).dict_slot;
  for (const OrderedDictNode* at = ordered->first; at; at = at->next) node(id).order.push_back(Expected::of(at->key));
}

void Facts::setting(const Setting& one, const std::string& where) {
  auto* object = reinterpret_cast<PyObject*>(const_cast<Setting*>(&one));  // stands for it
  if (find(object, Node::Kind::Setting) >= 0) return;
  Node& n = node(add(object, Node::Kind::Setting, one.name, where));
  n.setting = &one;
  n.value = one.now();
}

PyObject* Facts::read_context(PyObject* variable, const std::string& label, const std::string& where) {
  return read_place(variable, Node::Kind::Context, context_value(variable), label, where);
}

PyObject* Facts::read_place(PyObject* place, Node::Kind kind, PyObject* value, const std::string& label,
                            const std::string& where) {
  Id id = find(place, kind);
  if (id >= 0) pin_read(&node(id).keys[0], id, nullptr, -1);
  if (is_own(place, nullptr)) return value;
  if (id < 0) {
    id = add(place, kind, label, where);
    add_key(id, nullptr, nullptr, label, where).expect = Expected::of(value);
    if (value) held_.insert(value);
  } else if (!node(id).keys[0].expect.holds(value)) {
    changed(label, where);
  }
  return value;
}

int Facts::traverse(visitproc visit, void* arg) const {
  for (const Node& n : nodes_) {
    for (const Ref* ref : {&n.weak, &n.hold, &n.parts[0], &n.parts[1], &n.parts[2], &n.type_weak}) Py_VISIT(ref->get());
    for (const Key& key : n.keys)
      for (const Ref* ref : {&key.name, &key.expect.hold, &key.first}) Py_VISIT(ref->get());
    for (const Expected& base : n.order) Py_VISIT(base.hold.get());
  }
  for (const Number& number : numbers_) {
    Py_VISIT(number.name.get());
    Py_VISIT(number.first.get());
  }
  return 0;
}

std::vector<const void*> Facts::looked_into() const {
  std::vector<const void*> all;
  for (const Node& n : nodes_)
    if (n.kind == Node::Kind::Object || n.kind == Node::Kind::Dict || n.kind == Node::Kind::List)
      all.push_back(n.object);
  return all;
}

std::string Facts::finish() {
  if (!changed_.empty()) return changed_;
  if (abandoned_) return "";
  for (Node& n : nodes_)
    for (Key& key : n.keys) {
      support::count_work();
      const bool open = key.expect.kind == Expected::Kind::Node && find(key.expect.object, Node::Kind::Dict) < 0 &&
                        find(key.expect.object, Node::Kind::List) < 0;
      if (!open || !key.expect.holds(value_now(n, key))) continue;
      key.expect.kind = Expected::Kind::Strong;
      key.expect.hold = Ref::share(key.expect.object);
    }
  words_.clear();
  word_nodes_.clear();
  for (Node& n : nodes_) {
    bool is_heap = n.kind == Node::Kind::Object && (n.type->tp_flags & Py_TPFLAGS_HEAPTYPE);
    if (is_heap && find((PyObject*)n.type, Node::Kind::Type) < 0) n.type_weak = weak_to((PyObject*)n.type);
  }
  for (uint32_t i = 0; i < nodes_.size(); ++i) arm(i);
  for (Node& n : nodes_)
    if (n.written && !settle(n)) return changed_;
  support::count_work(words_.size());
  for (size_t i = 0; i < words_.size(); ++i)
    if (Node& n = nodes_[word_nodes_[i]]; !n.written && *words_[i].at != words_[i].value && !recover(i))
      return failure(n);
  for (const Node& n : nodes_) {
    if (n.kind != Node::Kind::Type || ((PyTypeObject*)n.object)->tp_version_tag) continue;
    give_tag((PyTypeObject*)n.object);  // a base whose attribute was set took it away
    if (!((PyTypeObject*)n.object)->tp_version_tag) return n.label + " (no version tag)";
  }
  settle_numbers();
  ids_.clear();
  key_ids_.clear();
  held_.clear();
  own_.clear();
  by_hash_.clear();
  return "";
}

}  // namespace fastjit::observe
#endif
