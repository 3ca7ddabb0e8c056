// What facts expect, and their check on every later call.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <structmember.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <unordered_map>

#include "observe/facts/facts.h"
#include "observe/known_functions.h"
#include "observe/sets.h"
#include "support/work.h"

namespace fastjit::observe {
namespace {

// By address: who looks one up keeps the object. Under the GIL.
std::unordered_map<PyObject*, Py_hash_t>& python_hashes() {
  static auto* const hashes = new std::unordered_map<PyObject*, Py_hash_t>;
  return *hashes;
}

Py_hash_t hash_of(PyObject* name) noexcept {
  if (PyUnicode_CheckExact(name) && ((PyASCIIObject*)name)->hash != -1) return ((PyASCIIObject*)name)->hash;
  if (hashes_in_python(name))
    if (const auto known = python_hashes().find(name); known != python_hashes().end()) return known->second;
  return PyObject_Hash(name);  // of a plain value, or by address: see Tracer::hashable
}

bool alive(PyObject* weak, PyObject* object) noexcept { return ((PyWeakReference*)weak)->wr_object == object; }

}  // namespace

bool hashes_in_python(PyObject* o) noexcept {
  static const PyTypeObject* const type = type_named("enum", "Enum");
  return type && Py_TYPE(o)->tp_hash == type->tp_hash;
}

void remember_hash(PyObject* o, Py_hash_t hash) { python_hashes().insert_or_assign(o, hash); }

bool is_defaultdict(PyObject* o) noexcept {
  static const PyTypeObject* const type = type_named("collections", "defaultdict");
  return Py_TYPE(o) == type;
}

bool same_bits(PyObject* a, PyObject* b) noexcept {
  if (a == b) return true;
  if (Py_TYPE(a) != Py_TYPE(b)) return false;
  if (PyFloat_CheckExact(a)) return !std::memcmp(&((PyFloatObject*)a)->ob_fval, &((PyFloatObject*)b)->ob_fval, 8);
  if (PyComplex_CheckExact(a)) return !std::memcmp(&((PyComplexObject*)a)->cval, &((PyComplexObject*)b)->cval, 16);
  if (PyLong_CheckExact(a)) return same_number(a, b);
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

Py_hash_t hash_of_bits(PyObject* o) noexcept {
  if (PyUnicode_CheckExact(o) || PyLong_CheckExact(o) || PyBytes_CheckExact(o)) return PyObject_Hash(o);
  if (PyFloat_CheckExact(o)) return static_cast<Py_hash_t>(std::bit_cast<uint64_t>(PyFloat_AS_DOUBLE(o)));
  const bool by_value = PyComplex_CheckExact(o) || PyTuple_CheckExact(o);
  return reinterpret_cast<Py_hash_t>(by_value ? reinterpret_cast<PyObject*>(Py_TYPE(o)) : o);
}

Ref weak_to(PyObject* o) {
  if (!PyType_SUPPORTS_WEAKREFS(Py_TYPE(o))) return {};
  PyObject* ref = PyWeakref_NewRef(o, nullptr);
  if (!ref) PyErr_Clear();
  return Ref::steal(ref);
}

bool is_entry(PyObject* dict, int32_t hint, PyObject* name) noexcept {
  const DictKeys* keys = keys_of(reinterpret_cast<PyDictObject*>(dict));
  return keys->kind != 0 && hint >= 0 && hint < keys->nentries && entries_of(keys)[hint].key == name;
}

PyObject* dict_lookup(PyObject* dict, PyObject* name, int32_t* hint) noexcept {
  auto* d = reinterpret_cast<PyDictObject*>(dict);
  const DictKeys* keys = keys_of(d);
  if (hint && keys->kind != 0 && *hint >= 0 && *hint < keys->nentries) {
    const DictEntry& entry = entries_of(keys)[*hint];
    PyObject* value = d->ma_values ? values_of(d)[*hint] : entry.value;
    if (entry.key == name && value) return value;
  }
  PyObject* value = _PyDict_GetItem_KnownHash(dict, name, hash_of(name));
  if (!value) {
    PyErr_Clear();
    return nullptr;
  }
  if (hint && *hint == kFindHint && keys->kind != 0) {
    constexpr Py_ssize_t kMostSearched = 128;  // a look by hash costs a few ns more each time, and no search
    const Py_ssize_t most = keys->nentries > kMostSearched ? 0 : keys->nentries;
    Py_ssize_t i = 0;
    while (i < most && entries_of(keys)[i].key != name) ++i;
    support::count_work(static_cast<size_t>(i));
    *hint = i < most ? static_cast<int32_t>(i) : -1;
  }
  return value;
}

PyObject** slot_of(PyObject* o, PyObject* attr) {
  if (!Py_IS_TYPE(attr, &PyMemberDescr_Type)) return nullptr;
  const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(attr)->d_member;
  return member->type == T_OBJECT_EX ? reinterpret_cast<PyObject**>(reinterpret_cast<char*>(o) + member->offset)
                                     : nullptr;
}

PyObject* type_lookup(PyTypeObject* type, PyObject* name, PyTypeObject* after) noexcept {
  PyObject* found = _PyType_Lookup(type, name);  // also gives the type a version tag
  if (!after) return found;
  PyObject* mro = type->tp_mro;
  Py_ssize_t i = 0, n = PyTuple_GET_SIZE(mro);
  while (i < n && PyTuple_GET_ITEM(mro, i) != (PyObject*)after) ++i;
  for (++i; i < n; ++i) {
    PyObject* dict = type_dict((PyTypeObject*)PyTuple_GET_ITEM(mro, i));
    if (PyObject* value = dict_lookup(dict, name, nullptr)) return value;
  }
  return nullptr;
}

PyObject* context_value(PyObject* variable) noexcept {
  PyObject* value = nullptr;
  if (PyContextVar_Get(variable, nullptr, &value) < 0) PyErr_Clear();
  Py_XDECREF(value);  // its context or the variable keeps it
  return value;
}

int32_t member_index(PyObject* set, PyObject* item, bool by_address, int32_t hint) noexcept {
  const auto* s = reinterpret_cast<PySetObject*>(set);
  const auto is_it = [&](Py_ssize_t place) {
    PyObject* key = s->table[place].key;
    return key && s->table[place].hash != -1 && (by_address ? key == item : same_bits(key, item));  // -1: deleted
  };
  if (hint >= 0 && hint <= s->mask && is_it(hint)) return hint;
  // Where the set itself would look first; if it is elsewhere, all places are searched.
  const auto first = static_cast<size_t>(by_address ? hint : hash_of(item)) & static_cast<size_t>(s->mask);
  for (size_t i = first; i <= static_cast<size_t>(s->mask) && i < first + 16; ++i)
    if (is_it(static_cast<Py_ssize_t>(i))) return static_cast<int32_t>(i);
  for (Py_ssize_t i = 0; i <= s->mask; ++i)
    if (is_it(i)) return static_cast<int32_t>(i);
  return -1;
}

PyObject* value_now(const Node& node, const Key& key) noexcept {
  switch (node.kind) {
    case Node::Kind::Dict: {
      int32_t hint = key.hint;
      return PyDict_Check(node.object) ? dict_lookup(node.object, key.name.get(), &hint) : nullptr;
    }
    case Node::Kind::List:
      return PyList_Check(node.object) && key.hint < PyList_GET_SIZE(node.object)
                 ? PyList_GET_ITEM(node.object, key.hint)
                 : nullptr;
    case Node::Kind::Set: {
      using Kind = observe::Expected::Kind;
      const bool by_value = key.expect.kind == Kind::Equal || key.expect.kind == Kind::Absent;
      PyObject* item = key.expect.kind == Kind::Absent ? key.name.get() : key.expect.object;
      const int32_t index = PySet_Check(node.object) ? member_index(node.object, item, !by_value, key.hint) : -1;
      return index < 0 ? nullptr : ((PySetObject*)node.object)->table[index].key;
    }
    case Node::Kind::Type:
      return type_lookup((PyTypeObject*)node.object, key.name.get(), key.after);
    case Node::Kind::Cell:
    case Node::Kind::Slot:
    case Node::Kind::Context:
      return held_in(node);
    case Node::Kind::Function:
    case Node::Kind::Object:
    case Node::Kind::Word:
    case Node::Kind::Order:
    case Node::Kind::Array:
    case Node::Kind::Deque:
    case Node::Kind::Setting:
      break;
  }
  return nullptr;
}

// Which tuple it is nobody may ask, so another one of the same objects will do.
static bool has_items_of(PyObject* recorded, PyObject* current) noexcept {
  if (!current || !PyTuple_CheckExact(recorded) || !PyTuple_CheckExact(current)) return false;
  return std::ranges::equal(std::span(&PyTuple_GET_ITEM(recorded, 0), static_cast<size_t>(Py_SIZE(recorded))),
                            std::span(&PyTuple_GET_ITEM(current, 0), static_cast<size_t>(Py_SIZE(current))));
}

static bool has_form(PyObject* form, PyObject* current) noexcept {
  if (!current || PyType_Check(form)) return current && (PyObject*)Py_TYPE(current) == form;
  if (!PyTuple_CheckExact(form)) return same_bits(form, current);
  const Py_ssize_t size = PyTuple_GET_SIZE(form);
  if (!PyTuple_CheckExact(current) || PyTuple_GET_SIZE(current) != size) return false;
  for (Py_ssize_t i = 0; i < size; ++i)
    if (!has_form(PyTuple_GET_ITEM(form, i), PyTuple_GET_ITEM(current, i))) return false;
  return true;
}

Expected Expected::of(PyObject* value) {
  Expected e;
  e.object = value;
  if (!value) return e;
  if (is_constant(value)) {
    e.kind = Kind::Equal;
    e.hold = Ref::share(value);
    return e;
  }
  e.was = Py_TYPE(value)->tp_name;
  if (PyDict_Check(value) || PyList_Check(value)) {
    e.kind = Kind::Node;  // finish() holds it instead where no node looks inside
    return e;
  }
  e.hold = weak_to(value);
  e.kind = e.hold ? Kind::Weak : Kind::Strong;
  if (!e.hold) e.hold = Ref::share(value);
  return e;
}

bool Expected::holds(PyObject* current) const noexcept {
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
      return current == object || has_items_of(object, current);
    case Kind::Node:
      return current == object && (PyDict_Check(current) || PyList_Check(current));
    case Kind::Type:
      return current && (PyObject*)Py_TYPE(current) == object;
    case Kind::Form:
      return has_form(object, current);
  }
  return false;
}

bool Expected::is_open() const noexcept { return kind == Kind::Type || kind == Kind::Form; }

void Expected::follow(PyObject* current) noexcept {
  if ((kind != Kind::Equal && kind != Kind::Strong) || current == object) return;
  hold = Ref::share(current);
  object = current;
}

void Facts::arm_dict(Node& n, const AddWord& add_word) {
  n.version = DictVersion(n.object);
  for (const Key& key : n.keys)  // a place may hold another object at the same address, which no tag tells
    if (!n.version.tells_all() && key.expect.kind == Expected::Kind::Weak)
      add_word(&((PyWeakReference*)key.expect.hold.get())->wr_object, key.expect.object);
  if (n.alone) add_word(&n.object->ob_refcnt, reinterpret_cast<const void*>(1));
  n.tag_word = words_.size();
  add_word(n.version.word() ? n.version.word() : &kNever, (void*)kNoTag);
  if constexpr (kInlineValues)
    for (size_t more = n.version.tells_all() ? 1 : value_words(n); more > 1; --more) add_word(&kNever, (void*)kNoTag);
}

void Facts::arm(uint32_t index) {
  Node& n = nodes_[index];
  const AddWord add_word = [&](const void* at, const void* value) {
    words_.push_back({static_cast<const Bits*>(at), reinterpret_cast<uint64_t>(value)});
    word_nodes_.push_back(index);
  };
  const auto watch_referents = [&] {  // what is held weakly may die and leave its address to another
    for (const Key& key : n.keys)
      if (key.expect.kind == Expected::Kind::Weak)
        add_word(&((PyWeakReference*)key.expect.hold.get())->wr_object, key.expect.object);
  };
  if (n.weak) add_word(&((PyWeakReference*)n.weak.get())->wr_object, n.object);
  switch (n.kind) {
    case Node::Kind::Function: {
      auto* f = reinterpret_cast<PyFunctionObject*>(n.object);
      add_word(&f->func_code, n.parts[0].get());
      add_word(&f->func_defaults, n.parts[1].get());
      add_word(&f->func_kwdefaults, n.parts[2].get());
      return;
    }
    case Node::Kind::Word:
    case Node::Kind::Order:
      return add_word(n.dict_slot, n.dict);
    case Node::Kind::Object:
      add_word(&n.object->ob_type, n.type);
      if (n.type_weak) add_word(&((PyWeakReference*)n.type_weak.get())->wr_object, n.type);
      if (n.dict_slot) add_word(n.dict_slot, n.dict);
      return;
    case Node::Kind::Cell:
    case Node::Kind::Slot: {
      const Expected& e = n.keys[0].expect;  // a weakly held value may die and leave its address to another
      if (e.is_open()) return add_word(&kNever, reinterpret_cast<const void*>(kNoTag));
      if (e.kind == Expected::Kind::Weak) add_word(&((PyWeakReference*)e.hold.get())->wr_object, e.object);
      const void* place = n.object;
      return add_word(n.kind == Node::Kind::Cell ? &((PyCellObject*)n.object)->ob_ref : place, e.object);
    }
    case Node::Kind::Deque:
      watch_referents();
      [[fallthrough]];
    case Node::Kind::Array:
    case Node::Kind::Setting:
    case Node::Kind::Context:  // no word tells of these: every check looks
      n.tag_word = words_.size();
      return add_word(&kNever, reinterpret_cast<const void*>(kNoTag));
    case Node::Kind::List:
    case Node::Kind::Set: {
      watch_referents();
      if (n.alone) add_word(&n.object->ob_refcnt, reinterpret_cast<const void*>(1));
      n.tag_word = words_.size();
      const bool sized = n.kind == Node::Kind::List || n.ordered;
      const size_t count = n.keys.size() + (sized ? 2 : 1);  // as rearm_items() fills them
      for (size_t i = 0; i < count; ++i) add_word(&kNever, reinterpret_cast<const void*>(kNoTag));
      return;
    }
    case Node::Kind::Dict:
    case Node::Kind::Type:  // no tag yet: the first check looks
      if (n.kind == Node::Kind::Dict) return arm_dict(n, add_word);
      n.tag_word = words_.size();
      // The tag has 32 bits and is followed by padding, which never changes.
      return add_word(&((PyTypeObject*)n.object)->tp_version_tag, (void*)kNoTag);
  }
}

// The set gives these members, in this order.
static bool holds_members(const Node& n) noexcept {
  if (!PySet_Check(n.object)) return false;
  auto key = n.keys.begin();
  for (const setentry& place : set_places(n.object)) {
    if (!holds_item(place)) continue;
    if (key == n.keys.end() || !key->expect.holds(place.key)) return false;
    ++key;
  }
  return key == n.keys.end();
}

bool holds_names(const Node& n) noexcept {
  PyObject *dict = type_dict((PyTypeObject*)n.object), *names = n.parts[0].get(), *name, *value;
  if (!names) return true;
  Py_ssize_t at = 0, i = 0;
  while (PyDict_Next(dict, &at, &name, &value)) {
    if (i == PyTuple_GET_SIZE(names) || !same_bits(PyTuple_GET_ITEM(names, i), name)) return false;
    ++i;
  }
  return i == PyTuple_GET_SIZE(names);
}

bool Facts::verify(const Node& n) noexcept {
  support::count_work(1 + n.keys.size());
  size_t first = 0;
  switch (n.kind) {
    case Node::Kind::Function:
    case Node::Kind::Object:
    case Node::Kind::Word:
      return false;
    case Node::Kind::Order: {
      if (!Py_IS_TYPE(n.object, &PyODict_Type)) return false;
      const OrderedDictNode* at = reinterpret_cast<OrderedDictObject*>(n.object)->first;
      for (const Expected& key : n.order) {
        if (!at || !key.holds(at->key)) return false;
        at = at->next;
      }
      return !at;
    }
    case Node::Kind::Array:
      return holds_elements(n);
    case Node::Kind::Deque:
      return holds_deque(n);
    case Node::Kind::Setting:
      return n.setting->now() == n.value;
    case Node::Kind::Cell:
    case Node::Kind::Slot:
    case Node::Kind::Context:
      return n.keys[0].expect.holds(held_in(n));
    case Node::Kind::Set:
      if (n.ordered) return holds_members(n);
      return std::ranges::all_of(n.keys, [&](const Key& key) { return key.expect.holds(value_now(n, key)); });
    case Node::Kind::List: {
      if (!PyList_Check(n.object)) return false;
      const Py_ssize_t size = PyList_GET_SIZE(n.object);
      if ((n.length >= 0 && n.length != size) || (n.truth >= 0 && n.truth != (size != 0))) return false;
      return std::ranges::all_of(n.keys, [&](const Key& key) { return key.expect.holds(value_now(n, key)); });
    }
    case Node::Kind::Type: {
      auto* type = reinterpret_cast<PyTypeObject*>(n.object);
      for (const Key& key : n.keys)
        if (!key.expect.holds(type_lookup(type, key.name.get(), key.after))) return false;
      if (!holds_names(n)) return false;
      if (!n.ordered) return true;
      if (PyTuple_GET_SIZE(type->tp_mro) != static_cast<Py_ssize_t>(n.order.size())) return false;
      for (size_t i = 0; i < n.order.size(); ++i)
        if (!n.order[i].holds(PyTuple_GET_ITEM(type->tp_mro, (Py_ssize_t)i))) return false;
      return true;
    }
    case Node::Kind::Dict:
      break;
  }
  // Its address may belong to something else by now.
  if (!PyDict_Check(n.object) || !n.version.is_of(n.object)) return false;
  if (n.truth >= 0 && n.truth != (PyDict_GET_SIZE(n.object) != 0)) return false;
  if (n.length >= 0 && n.length != PyDict_GET_SIZE(n.object)) return false;
  if (n.ordered) {
    Py_ssize_t at = 0;
    PyObject *name, *value;
    while (PyDict_Next(n.object, &at, &name, &value)) {
      if (first == n.keys.size() || n.keys[first].expect.kind == Expected::Kind::Absent) return false;
      const Key& key = n.keys[first++];
      if (!same_bits(key.name.get(), name) || !key.expect.holds(value)) return false;
    }
  }
  for (size_t i = first; i < n.keys.size(); ++i)
    if (!n.keys[i].expect.holds(value_now(n, n.keys[i]))) return false;
  return true;
}

// The list or set moved, or holds equal values in other objects: those are held from now on, so that their addresses
// tell.
void Facts::rearm_items(Node& n) noexcept {
  const bool is_list = n.kind == Node::Kind::List;
  auto* list = reinterpret_cast<PyListObject*>(n.object);
  auto* set = reinterpret_cast<PySetObject*>(n.object);
  size_t word = n.tag_word;
  const auto watch = [&](const void* place) {
    const auto* at = static_cast<const Bits*>(place);
    words_[word++] = {at, *at};
  };
  if (is_list) watch(&((PyVarObject*)list)->ob_size);
  if (!is_list && n.ordered) watch(&set->used);
  is_list ? watch(&list->ob_item) : watch(&set->table);
  for (Key& key : n.keys) {
    // No word tells of a new member, nor of another object's class: every check looks.
    if (key.expect.kind == observe::Expected::Kind::Absent || key.expect.is_open()) {
      words_[word++] = {&kNever, kNoTag};
      continue;
    }
    if (!is_list)
      key.hint = member_index(n.object, key.expect.object, key.expect.kind != observe::Expected::Kind::Equal, key.hint);
    PyObject* const* place = is_list ? &list->ob_item[key.hint] : &set->table[key.hint].key;
    key.expect.follow(*place);
    watch(place);
  }
}

bool Facts::recover(size_t index) noexcept {
  Node& n = nodes_[word_nodes_[index]];
  // An equal value in another object: its address says nothing later.
  const bool is_place = n.kind == Node::Kind::Cell || n.kind == Node::Kind::Slot || n.kind == Node::Kind::Context ||
                        n.kind == Node::Kind::Setting;
  if (is_place) return verify(n);
  if (n.kind == Node::Kind::Array || n.kind == Node::Kind::Deque) return index >= n.tag_word && verify(n);
  if (n.kind == Node::Kind::Order) {
    if (!verify(n)) return false;
    words_[index].value = *words_[index].at;
    return true;
  }
  if (n.kind == Node::Kind::List || n.kind == Node::Kind::Set) {
    if (index < n.tag_word || !verify(n)) return false;
    rearm_items(n);
    return true;
  }
  if (index < n.tag_word || !verify(n)) return false;
  if constexpr (kInlineValues)
    if (!n.version.tells_all()) return rearm_values(n), true;
  const bool tells =
      n.kind == Node::Kind::Type ? ((PyTypeObject*)n.object)->tp_version_tag != 0 : n.version.word() != nullptr;
  words_[index].value = tells ? *words_[index].at : kNoTag;
  return true;
}

bool Facts::check() noexcept {
  const Word* words = words_.data();  // recover() changes what they expect, and adds none
  for (size_t i = 0, n = words_.size(); i < n; ++i)
    if (*words[i].at != words[i].value && !recover(i)) return false;
  return true;
}

std::string Facts::first_failure() {
  for (size_t i = 0; i < words_.size(); ++i)
    if (*words_[i].at != words_[i].value && !recover(i)) return failure(nodes_[word_nodes_[i]]);
  return "";
}

}  // namespace fastjit::observe
#endif
