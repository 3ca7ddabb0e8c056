// Places that the recorded call itself stores to: what it reads there afterwards is its own, and what it read there
// before must not be held against the value that it left.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>
#include <optional>
#include <span>

#include "observe/facts/facts.h"
#include "observe/known_functions.h"
#include "support/work.h"

namespace fastjit::observe {
namespace {

std::optional<Replaced> place_of(const Node& n, const Key& key) {
  using Kind = SideEffect::Kind;
  switch (n.kind) {
    case Node::Kind::Dict:
      if (!PyUnicode_CheckExact(key.name.get())) return std::nullopt;
      return Replaced{nullptr, Kind::SetItem, n.object, Ref::share(key.name.get()), 0, {}};
    case Node::Kind::List:
      return Replaced{nullptr, Kind::SetIndex, n.object, {}, key.hint, {}};
    case Node::Kind::Cell:
      return Replaced{nullptr, Kind::SetCell, n.object, {}, 0, {}};
    case Node::Kind::Slot:
      return Replaced{nullptr, Kind::SetSlot, n.object, {}, 0, {}};
    default:
      return std::nullopt;
  }
}

using Way = std::vector<Py_ssize_t>;
using Visit = std::function<void(PyObject*, const Way&)>;

void visit_items(PyObject* value, Way& way, const Visit& visit) {
  if (is_constant(value)) return;
  if (!PyTuple_CheckExact(value)) return visit(value, way);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) {
    way.push_back(i);
    visit_items(PyTuple_GET_ITEM(value, i), way, visit);
    way.pop_back();
  }
}

// The object that a fact holds weakly, or those in a tuple that it holds, with the way to each.
void visit_held(const Expected& expect, const Visit& visit) {
  Way way;
  if (expect.kind == Expected::Kind::Weak) visit(expect.object, way);
  if (expect.kind == Expected::Kind::Strong && PyTuple_CheckExact(expect.object))
    visit_items(expect.object, way, visit);
}

// For Expected::Kind::Form. Null: something in it is not `is_free`.
Ref form_of(PyObject* value, const std::function<bool(PyObject*)>& is_free) {
  if (is_constant(value)) return Ref::share(value);
  if (!PyTuple_CheckExact(value)) return is_free(value) ? Ref::share((PyObject*)Py_TYPE(value)) : Ref();
  Ref form = Ref::steal(PyTuple_New(PyTuple_GET_SIZE(value)));
  for (Py_ssize_t i = 0; form && i < PyTuple_GET_SIZE(value); ++i) {
    Ref item = form_of(PyTuple_GET_ITEM(value, i), is_free);
    if (!item) return {};
    PyTuple_SET_ITEM(form.get(), i, Py_NewRef(item.get()));
  }
  return form;
}

// What the call found in this place and what it left there have in common, where they are different tensors, or tuples
// of such.
std::optional<Expected> form_left(const Node& n, const Key& key, const std::function<bool(PyObject*)>& is_free) {
  const Expected& e = key.expect;
  const bool is_held = e.kind == Expected::Kind::Strong && PyTuple_CheckExact(e.object);
  const bool is_known = e.kind == Expected::Kind::Weak && PyWeakref_GET_OBJECT(e.hold.get()) == e.object;
  PyObject* now = is_held || is_known ? value_now(n, key) : nullptr;
  if (!now || e.holds(now)) return std::nullopt;
  Ref form = form_of(e.object, is_free);
  if (!form) return std::nullopt;
  PyObject* object = form.get();
  const auto kind = PyType_Check(object) ? Expected::Kind::Type : Expected::Kind::Form;
  Expected left{kind, object, std::move(form), ""};
  return left.holds(now) ? std::optional(std::move(left)) : std::nullopt;
}

}  // namespace

void expect_type_of(Key& key, PyObject* number) {
  key.expect.kind = Expected::Kind::Type;
  key.expect.object = (PyObject*)Py_TYPE(number);
  key.first = Ref::share(number);
}

void Facts::pin(Key* key) {
  if (key && key->expect.is_open()) key->expect = Expected::of(key->first.get());
}

void Facts::pin_place(PyObject* place, Node::Kind kind) {
  if (const Id id = find(place, kind); id >= 0) pin(&node(id).keys[0]);
}

static PyObject* factory_of(PyObject* dict) {
  if (PyDict_CheckExact(dict)) return Py_None;
  const Ref factory = Ref::steal(PyObject_GetAttrString(dict, "default_factory"));
  if (!factory) PyErr_Clear();
  return factory.get();  // the dictionary has it
}

static bool is_builtin_dict(PyObject* o) { return PyDict_CheckExact(o) || is_defaultdict(o); }

// A new one with nothing in it, which does as the other one does.
static bool is_like(PyObject* was, PyObject* now) {
  return Py_TYPE(was) == Py_TYPE(now) && PyDict_GET_SIZE(now) == 0 && factory_of(was) == factory_of(now);
}

static bool began_empty(const Node& n) {
  if (n.length >= 0 || n.truth > 0 || !n.overwritten.empty()) return n.length == 0;
  return n.written ? n.grown_from == 0 : PyDict_GET_SIZE(n.object) == 0;
}

void Facts::replace(Key& key, bool looked_into) {
  key.written = true;
  using Kind = observe::Expected::Kind;
  const bool was_read = key.expect.kind != Kind::Absent && key.expect.kind != Kind::Present;
  if (!looked_into || !was_read || key.expect.kind == Kind::Strong) return;  // a held object stays: settle() compares
  if (key.expect.kind == Kind::Node && (PyList_CheckExact(key.expect.object) || is_builtin_dict(key.expect.object))) {
    key.first = Ref::share(key.expect.object);  // for follow_lists() and put_back_empty()
    return;
  }
  abandon(key);
}

void Facts::abandon(const Key& key) {
  note_state(key.label, key.where, false);
  abandoned_ = true;
}

static bool has_same_items(PyObject* list, PyObject* other) {
  const std::span mine(PySequence_Fast_ITEMS(list), static_cast<size_t>(PyList_GET_SIZE(list)));
  return std::ranges::equal(mine, std::span(PySequence_Fast_ITEMS(other), static_cast<size_t>(PyList_GET_SIZE(other))));
}

std::vector<Facts::Emptied> Facts::put_back_empty(const std::function<Py_ssize_t(PyObject*)>& value_holders) {
  std::vector<Emptied> out;
  for (Node& n : nodes_) {
    for (Key& key : n.keys) {
      if (!key.written || key.expect.kind != Expected::Kind::Node || !key.first || PyList_Check(key.first.get()))
        continue;
      PyObject *was = key.first.get(), *now = value_now(n, key);
      if (now == was) continue;
      const Id known = find(was, Node::Kind::Dict);
      const bool is_as_good = known >= 0 && n.kind == Node::Kind::Dict && began_empty(node(known)) && now &&
                              is_like(was, now) && Py_REFCNT(was) == 1 + value_holders(was) &&
                              Py_REFCNT(now) == 1 + value_holders(now) && find(now, Node::Kind::Dict) < 0;
      if (!is_as_good) {
        abandon(key);
        continue;
      }
      out.push_back({n.object, Ref::share(was), Ref::share(now)});
      PyDict_Clear(was);
      PyDict_SetItem(n.object, key.name.get(), was);
      node(known).written = key.written = false;
      node(known).alone = true;
      node(known).length = 0;
      node(known).grown_from = -1;
      for (Key& item : node(known).keys) item.written = false;
    }
  }
  return out;
}

void Facts::follow_lists(Py_ssize_t value_holders) {
  for (Node& n : nodes_) {
    for (Key& key : n.keys) {
      if (!key.written || key.expect.kind != Expected::Kind::Node || !key.first) continue;
      if (!PyList_Check(key.first.get())) continue;
      PyObject *was = key.first.get(), *now = value_now(n, key);
      if (now == was) continue;
      const Id known = find(was, Node::Kind::List);
      const bool is_as_good = known >= 0 && n.kind == Node::Kind::Dict && !node(known).written && now &&
                              PyList_CheckExact(now) && Py_REFCNT(was) == 1 && Py_REFCNT(now) == 1 + value_holders &&
                              find(now, Node::Kind::List) < 0 && has_same_items(was, now);
      if (!is_as_good) {
        abandon(key);
        continue;
      }
      ids_[{now, Node::Kind::List}] = known;
      node(known).object = key.expect.object = now;
      node(known).alone = true;
    }
  }
}

void Facts::write_key(Id id, PyObject* name, bool looked_into, const std::string& label, const std::string& where) {
  Node& n = node(id);
  n.written = true;
  const bool is_there = dict_lookup(n.object, name, nullptr);
  if (n.grown_from < 0 && !is_there) n.grown_from = PyDict_GET_SIZE(n.object);
  if (is_there && !is_own(n.object, name) && !find_key(id, name, nullptr))
    n.overwritten.push_back({Ref::share(name), label, where});
  own_.insert({n.object, name});
  KeysByHash& known = by_hash_[id];
  for (; known.size < n.keys.size(); ++known.size)
    known.keys.emplace(hash_of_bits(n.keys[known.size].name.get()), known.size);
  const auto [first, last] = known.keys.equal_range(hash_of_bits(name));
  for (auto it = first; it != last; ++it, support::count_work())
    if (Key& key = n.keys[it->second]; same_bits(key.name.get(), name)) replace(key, looked_into);
}

void Facts::write_item(Id id, Py_ssize_t index, bool looked_into, const std::string& where) {
  Key* key = find_key(id, index_name(index), nullptr);
  Node& n = node(id);
  if (!key) {  // there is such an item
    key = &add_item(id, index, where);
    key->expect.kind = Expected::Kind::Present;
  }
  n.written = true;
  replace(*key, looked_into);
  own_.insert({n.object, index_name(index)});
}

void Facts::write_place(PyObject* place, Node::Kind kind, bool looked_into) {
  own_.insert({place, nullptr});
  const Id id = find(place, kind);
  if (id < 0) return;
  node(id).written = true;
  replace(node(id).keys[0], looked_into);
}

void Facts::grow(Id id) {
  Node& n = node(id);
  n.written = true;
  if (n.grown_from < 0) n.grown_from = PyList_GET_SIZE(n.object);
}

bool Facts::count_key(Id id, PyObject* name, const std::string& label, const std::string& where) {
  // What the call has stored in the place of a number that it follows, it follows too.
  if (const Key* known = find_key(id, name, nullptr))
    return known->expect.kind == Expected::Kind::Type && opened(*known, id, name, -1) == kNone;
  PyObject* value = dict_lookup(node(id).object, name, nullptr);
  if (is_own(node(id).object, name) || !is_number(value)) return false;
  expect_type_of(add_key(id, name, nullptr, label, where), value);
  return true;
}

bool Facts::count_place(PyObject* place, Node::Kind kind, const std::string& label, const std::string& where) {
  Id id = find(place, kind);
  if (id >= 0)
    return node(id).keys[0].expect.kind == Expected::Kind::Type && opened(node(id).keys[0], id, nullptr, -1) == kNone;
  PyObject* value = kind == Node::Kind::Cell ? PyCell_GET(place) : *reinterpret_cast<PyObject**>(place);
  if (is_own(place, nullptr) || !is_number(value)) return false;
  id = add(place, kind, label, where);
  expect_type_of(add_key(id, nullptr, nullptr, label, where), value);
  return true;
}

// One place for each: what is found at two of them is known to be one object.
std::vector<Replaced> Facts::replaced_tensors(const std::function<bool(PyObject*)>& is_free) {
  std::vector<Replaced> out;
  struct Candidate {
    Node& node;
    Key& key;
    Expected left;
  };
  std::vector<Candidate> candidates;
  std::unordered_map<PyObject*, int> places;
  for (Node& n : nodes_) {
    for (Key& key : n.keys) {
      if (!n.written || !key.written) continue;
      std::optional<Expected> left = form_left(n, key, is_free);
      if (!left) continue;
      visit_held(key.expect, [&](PyObject* tensor, const Way&) { places.emplace(tensor, 0); });
      candidates.push_back({n, key, std::move(*left)});
    }
  }
  if (abandoned_ || candidates.empty()) return out;
  for (const Node& n : nodes_)
    for (const Key& key : n.keys)
      visit_held(key.expect, [&](PyObject* tensor, const Way&) {
        if (const auto known = places.find(tensor); known != places.end()) ++known->second;
      });
  for (Candidate& candidate : candidates) {
    bool is_alone = place_of(candidate.node, candidate.key).has_value();
    visit_held(candidate.key.expect, [&](PyObject* tensor, const Way&) {  // no fact may be about its own attributes
      is_alone = is_alone && places[tensor] == 1 && find(tensor, Node::Kind::Object) < 0;
    });
    if (!is_alone) continue;
    visit_held(candidate.key.expect, [&](PyObject* tensor, const Way& way) {
      out.push_back(*place_of(candidate.node, candidate.key));
      out.back().tensor = tensor;
      out.back().way = way;
    });
    candidate.key.expect = std::move(candidate.left);
  }
  return out;
}

void Facts::note_state(const std::string& label, const std::string& where, bool constant) {
  if (!state_.empty() && (constant || !state_is_constant_)) return;  // the first that is no constant
  state_ = label + " at " + where;
  state_is_constant_ = constant;
}

// Facts of a node that the call stored to: those about other places must hold, as everywhere; the rest were true when
// the call began. False: the call changed something without a store that is known.
bool Facts::settle(Node& n) {
  support::count_work(n.keys.size());
  const Py_ssize_t added = n.lent ? PyList_GET_SIZE(n.object) - n.length : 0;
  if (added < 0) return changed(n.label, n.where), false;
  for (Key& key : n.keys) {
    PyObject* now = value_now(n, key);
    if (key.expect.holds(now)) continue;
    if (!key.written) return changed(key.label, key.where), false;
    note_state(key.label, key.where, !now || is_constant(now));
  }
  const bool grew = n.grown_from >= 0 || added > 0;
  if (grew && (n.length >= 0 || (n.kind == Node::Kind::Dict && n.ordered))) {
    note_state(n.label, n.where, false);  // another length each time
  } else if (grew && n.truth == 0) {
    note_state(n.label, n.where, true);  // empty once
  }
  for (Key& key : n.keys) key.first = {};
  return true;
}

}  // namespace fastjit::observe
#endif
