// Numbers of which only the type is a fact: calls find them in their places.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>

#include "observe/facts/facts.h"
#include "support/work.h"

namespace fastjit::observe {
namespace {

bool holds_numbers(const Node& n) {
  return n.kind == Node::Kind::Dict || n.kind == Node::Kind::List || n.kind == Node::Kind::Cell ||
         n.kind == Node::Kind::Slot;
}

NumberPlace place_of_key(const Node& n, const Key& key) {
  return {n.object, Ref::share(key.name.get()), n.kind == Node::Kind::List ? key.hint : -1};
}

// The number that the call found there, as far as it is known: of a counter only until finish(). Borrowed.
PyObject* first_number(const Key& key) {
  const bool is_type = key.expect.kind == Expected::Kind::Type;
  PyObject* number = key.expect.kind == Expected::Kind::Equal ? key.expect.object : is_type ? key.first.get() : nullptr;
  return is_number(number) ? number : nullptr;
}

// A fact that says more of the place than that something is there.
bool says_more(const Key* key) { return key && key->expect.kind != Expected::Kind::Present; }

}  // namespace

Key* Facts::key_of(const Number& number) {
  PyObject* name = number.index >= 0 ? index_name(number.index) : number.name.get();
  return find_key(number.node, name, nullptr);
}

// Which number the place is that has a fact already.
size_t Facts::opened(const Key& known, Id id, PyObject* name, Py_ssize_t index) const {
  if (known.expect.kind != Expected::Kind::Type) return kNone;
  for (size_t i = 0; i < numbers_.size(); ++i, support::count_work())
    if (numbers_[i].node == id && numbers_[i].name.get() == name && numbers_[i].index == index) return i;
  return kNone;
}

// The place is read. What the call has stored there by now is not what it found; but a sum is of that.
void Facts::pin_read(Key* key, Id id, PyObject* name, Py_ssize_t index) {
  if (!key || key->expect.kind != Expected::Kind::Type) return;
  PyObject* item = index >= 0 ? index_name(index) : name;
  if (!is_own(node(id).object, item) || opened(*key, id, name, index) == kNone) pin(key);
}

size_t Facts::open_key(Id id, PyObject* name, const std::string& label, const std::string& where) {
  if (is_own(node(id).object, name)) return kNone;
  Key* known = find_key(id, name, nullptr);
  if (says_more(known)) return opened(*known, id, name, -1);
  int32_t hint = kFindHint;
  PyObject* value = dict_lookup(node(id).object, name, &hint);
  if (!is_number(value)) return kNone;
  Key& key = known ? *known : add_key(id, name, nullptr, label, where);
  expect_type_of(key, value);
  key.hint = hint;
  numbers_.push_back({id, Ref::share(name), -1, Ref::share(value)});
  return numbers_.size() - 1;
}

size_t Facts::open_item(Id id, Py_ssize_t index, const std::string& where) {
  PyObject *name = index_name(index), *value = PyList_GET_ITEM(node(id).object, index);
  if (is_own(node(id).object, name)) return kNone;
  Key* known = find_key(id, name, nullptr);
  if (says_more(known)) return opened(*known, id, nullptr, index);
  if (!is_number(value) || node(id).grown_from >= 0) return kNone;
  Key& item = known ? *known : add_item(id, index, where);
  expect_type_of(item, value);
  numbers_.push_back({id, {}, index, Ref::share(value)});
  return numbers_.size() - 1;
}

size_t Facts::open_place(PyObject* place, Node::Kind kind, const std::string& label, const std::string& where) {
  if (is_own(place, nullptr)) return kNone;
  Id id = find(place, kind);
  if (id >= 0) return opened(node(id).keys[0], id, nullptr, -1);
  PyObject* value = kind == Node::Kind::Cell ? PyCell_GET(place) : *reinterpret_cast<PyObject**>(place);
  if (!is_number(value)) return kNone;
  id = add(place, kind, label, where);
  expect_type_of(add_key(id, nullptr, nullptr, label, where), value);
  numbers_.push_back({id, {}, -1, Ref::share(value)});
  return numbers_.size() - 1;
}

bool Facts::is_pinned(size_t which) {
  const Key* key = key_of(numbers_[which]);
  return !key || key->expect.kind != Expected::Kind::Type;
}

std::vector<NumberPlace> Facts::known_numbers() const {
  constexpr size_t kMost = 4096;
  std::vector<NumberPlace> out;
  for (const Number& number : numbers_)
    out.push_back({nodes_[static_cast<size_t>(number.node)].object, Ref::share(number.name.get()), number.index});
  for (const Node& n : nodes_) {
    if (!holds_numbers(n)) continue;
    for (const Key& key : n.keys) {
      support::count_work();
      PyObject* number = first_number(key);
      if (!number) continue;
      if (key.name && !is_constant(key.name.get())) continue;  // it would keep an object alive
      if (out.size() >= kMost) return out;
      out.push_back(place_of_key(n, key));
      out.back().was = Ref::share(number);
    }
  }
  return out;
}

void Facts::settle_numbers() {
  for (Number& number : numbers_) {
    const Key* key = key_of(number);
    number.open = key && key->expect.kind == Expected::Kind::Type;
    if (number.open) number.key = static_cast<size_t>(key - node(number.node).keys.data());
  }
}

size_t Facts::number_count() const noexcept {
  return static_cast<size_t>(std::ranges::count_if(numbers_, &Number::open));
}

bool Facts::numbers(PyObject** out) const noexcept {
  for (const Number& number : numbers_) {
    if (!number.open) continue;
    const Node& n = nodes_[static_cast<size_t>(number.node)];
    *out = value_now(n, n.keys[number.key]);
    if (!*out || !fits_program(*out)) return false;
    ++out;
  }
  return true;
}

std::string Facts::fix_number(size_t which) {
  size_t at = 0;
  for (; !numbers_[at].open || which > 0; ++at) which -= numbers_[at].open;
  Number& number = numbers_[at];
  number.open = false;
  Key& key = node(number.node).keys[number.key];
  key.expect = Expected::of(number.first.get());
  if (!key.expect.holds(value_now(node(number.node), key))) note_state(key.label, key.where, true);
  return state_;
}

// Whether nothing but numbers differs from what the node's facts say; adds those.
bool Facts::varies(Node& n, std::vector<NumberPlace>& out) {
  if (!holds_numbers(n) || (n.kind == Node::Kind::Dict && !PyDict_Check(n.object))) return false;
  std::vector<std::pair<Key*, PyObject*>> before;
  for (Key& key : n.keys) {
    if (key.expect.kind != Expected::Kind::Equal || !is_number(key.expect.object)) continue;
    PyObject* now = value_now(n, key);
    if (!now || Py_TYPE(now) != Py_TYPE(key.expect.object) || same_bits(now, key.expect.object)) continue;
    out.push_back(place_of_key(n, key));
    before.emplace_back(&key, key.expect.object);
    key.expect.kind = Expected::Kind::Type;
    key.expect.object = reinterpret_cast<PyObject*>(Py_TYPE(now));
  }
  const bool holds = !before.empty() && verify(n);
  for (const auto& [key, number] : before) {
    key->expect.kind = Expected::Kind::Equal;
    key->expect.object = number;
  }
  return holds;
}

void Facts::varying(std::vector<NumberPlace>& out) {
  for (const Number& number : numbers_)
    if (const Node& n = nodes_[static_cast<size_t>(number.node)]; number.open)
      out.push_back(place_of_key(n, n.keys[number.key]));
  // As check() does: what an earlier fact leads to is there only where that one holds.
  const Node* last = nullptr;
  for (size_t i = 0; i < words_.size(); ++i) {
    if (*words_[i].at == words_[i].value || recover(i)) continue;
    Node& n = nodes_[word_nodes_[i]];
    const bool is_inside = n.tag_word == SIZE_MAX || i >= n.tag_word;
    if (&n != last && (!is_inside || !varies(n, out))) return;
    last = &n;
  }
}

}  // namespace fastjit::observe
#endif
