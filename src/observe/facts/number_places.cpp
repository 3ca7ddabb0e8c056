// Numbers of which only the type is a fact: calls find them in their places.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>
#include <optional>
#include <utility>

#include "observe/facts/facts.h"
#include "observe/facts/number_forms.h"
#include "support/work.h"

namespace fastjit::observe {
namespace {

using Kind = Expected::Kind;

bool has_numbers(const Node& n) {
  return n.kind == Node::Kind::Dict || n.kind == Node::Kind::List || n.kind == Node::Kind::Cell ||
         n.kind == Node::Kind::Slot;
}

NumberPlace place_of_key(const Node& n, const Key& key) {
  return {n.object, Ref::share(key.name.get()), n.kind == Node::Kind::List ? key.hint : -1};
}

// The number that the call found there, as far as it is known: of a counter only until finish(). Or the tuple with
// numbers in it, or its form. Borrowed.
PyObject* first_number(const Key& key) {
  const bool is_there = key.expect.kind == Kind::Equal || key.expect.kind == Kind::Form;
  PyObject* first = is_there ? key.expect.object : key.expect.kind == Kind::Type ? key.first.get() : nullptr;
  return is_number(first) || holds_numbers(first) ? first : nullptr;
}

bool is_of_form(PyObject* value, PyObject* form) {
  if (!form) return is_number(value);
  return holds_numbers(value) && Expected{Kind::Form, form, {}, ""}.holds(value);
}

// A fact that says more of the place than that something is there.
bool says_more(const Key* key) { return key && key->expect.kind != Kind::Present; }

// `now` is a number, or a tuple with numbers in it, that differs from what the fact says in its value only: what both
// have in common.
std::optional<Expected> common_with(const Expected& e, PyObject* now) {
  if (!now || e.holds(now) || (e.kind != Kind::Equal && e.kind != Kind::Form)) return std::nullopt;
  if (is_number(e.object)) {
    PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(now));
    return Py_TYPE(e.object) == Py_TYPE(now) ? std::optional(Expected{Kind::Type, type, {}, ""}) : std::nullopt;
  }
  Ref form = common_form(e.object, now);
  PyObject* const object = form.get();
  return form ? std::optional(Expected{Kind::Form, object, std::move(form), ""}) : std::nullopt;
}

}  // namespace

Key* Facts::key_of(const Number& number) {
  PyObject* name = number.index >= 0 ? index_name(number.index) : number.name.get();
  return find_key(number.node, name, nullptr);
}

size_t Facts::next_place(size_t which) const {
  const Number& first = numbers_[which];
  const auto is_beside = [&](const Number& one) {
    return one.node == first.node && one.name.get() == first.name.get() && one.index == first.index;
  };
  for (++which; first.element >= 0 && which < numbers_.size() && is_beside(numbers_[which]);) ++which;
  return which;
}

PyObject* Facts::tuple_of(size_t which) {
  const Key* key = numbers_[which].element >= 0 ? key_of(numbers_[which]) : nullptr;
  return key ? key->first.get() : nullptr;
}

// Which number the place is that has a fact already, or the first one in it.
size_t Facts::opened(const Key& known, Id id, PyObject* name, Py_ssize_t index) const {
  if (!known.expect.is_open()) return kNone;
  for (size_t i = 0; i < numbers_.size(); ++i, support::count_work())
    if (numbers_[i].node == id && numbers_[i].name.get() == name && numbers_[i].index == index) return i;
  return kNone;
}

// The place is read. What the call has stored there by now is not what it found; but a sum is of that.
void Facts::pin_read(Key* key, Id id, PyObject* name, Py_ssize_t index) {
  if (!key || !key->expect.is_open()) return;
  PyObject* item = index >= 0 ? index_name(index) : name;
  if (!is_own(node(id).object, item) || opened(*key, id, name, index) == kNone) pin(key);
}

// Of the place only the type is a fact from now on, or the form. `number`: where it is.
size_t Facts::open(Key& key, PyObject* value, PyObject* form, Number number) {
  const size_t which = numbers_.size();
  if (!form) {
    expect_type_of(key, value);
    number.first = Ref::share(value);
    numbers_.push_back(std::move(number));
    return which;
  }
  key.expect = {Kind::Form, form, Ref::share(form), ""};
  key.first = Ref::share(value);
  for (const Py_ssize_t element : open_elements(form))
    numbers_.push_back({number.node, Ref::share(number.name.get()), number.index,
                        Ref::share(PyTuple_GET_ITEM(value, element)), element});
  return which;
}

size_t Facts::open_key(Id id, PyObject* name, PyObject* form, const std::string& label, const std::string& where) {
  if (is_own(node(id).object, name)) return kNone;
  Key* known = find_key(id, name, nullptr);
  if (says_more(known)) return opened(*known, id, name, -1);
  int32_t hint = kFindHint;
  PyObject* value = dict_lookup(node(id).object, name, &hint);
  if (!is_of_form(value, form)) return kNone;
  Key& key = known ? *known : add_key(id, name, nullptr, label, where);
  key.hint = hint;
  return open(key, value, form, {id, Ref::share(name)});
}

size_t Facts::open_item(Id id, Py_ssize_t index, PyObject* form, const std::string& where) {
  PyObject *name = index_name(index), *value = PyList_GET_ITEM(node(id).object, index);
  if (is_own(node(id).object, name)) return kNone;
  Key* known = find_key(id, name, nullptr);
  if (says_more(known)) return opened(*known, id, nullptr, index);
  if (!is_of_form(value, form) || node(id).grown_from >= 0) return kNone;
  return open(known ? *known : add_item(id, index, where), value, form, {id, {}, index});
}

size_t Facts::open_place(PyObject* place, Node::Kind kind, PyObject* form, const std::string& label,
                         const std::string& where) {
  if (is_own(place, nullptr)) return kNone;
  Id id = find(place, kind);
  if (id >= 0) return opened(node(id).keys[0], id, nullptr, -1);
  PyObject* value = kind == Node::Kind::Cell ? PyCell_GET(place) : *reinterpret_cast<PyObject**>(place);
  if (!is_of_form(value, form)) return kNone;
  id = add(place, kind, label, where);
  return open(add_key(id, nullptr, nullptr, label, where), value, form, {id, {}});
}

bool Facts::is_open(const Key* key, const Number& number) {
  if (!key || number.element < 0) return key && key->expect.kind == Kind::Type;
  return key->expect.kind == Kind::Form && is_open_element(key->expect.object, number.element);
}

// Its value is the fact.
void Facts::close(Key& key, const Number& number) {
  if (number.element < 0) return static_cast<void>(key.expect = Expected::of(number.first.get()));
  if (!is_open(&key, number)) return;
  Ref form = with_element(key.expect.object, number.element, number.first.get());
  if (!form) return static_cast<void>(key.expect = {});  // which holds of no tuple
  const bool is_value = open_elements(form.get()).empty();
  PyObject* const object = form.get();
  key.expect = {is_value ? Kind::Equal : Kind::Form, object, std::move(form), ""};
}

void Facts::pin_number(size_t which) {
  Key* key = key_of(numbers_[which]);
  if (is_open(key, numbers_[which])) close(*key, numbers_[which]);
}

bool Facts::is_pinned(size_t which) { return !is_open(key_of(numbers_[which]), numbers_[which]); }

std::vector<NumberPlace> Facts::known_numbers() const {
  constexpr size_t kMost = 4096;
  std::vector<NumberPlace> out;
  for (const Number& number : numbers_)
    if (number.element < 0)
      out.push_back({nodes_[static_cast<size_t>(number.node)].object, Ref::share(number.name.get()), number.index});
  for (const Node& n : nodes_) {
    if (!has_numbers(n)) continue;
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
    number.open = is_open(key, number);
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
    PyObject* now = value_now(n, n.keys[number.key]);
    if (number.element >= 0)
      now = now && PyTuple_CheckExact(now) && PyTuple_GET_SIZE(now) > number.element
                ? PyTuple_GET_ITEM(now, number.element)
                : nullptr;
    if (!now || !fits_program(now)) return false;
    *out++ = now;
  }
  return true;
}

std::string Facts::fix_number(size_t which) {
  size_t at = 0;
  for (; !numbers_[at].open || which > 0; ++at) which -= numbers_[at].open;
  Number& number = numbers_[at];
  number.open = false;
  Key& key = node(number.node).keys[number.key];
  close(key, number);
  if (!key.expect.holds(value_now(node(number.node), key))) note_state(key.label, key.where, true);
  return state_;
}

// Whether nothing but numbers differs from what the node's facts say; adds those.
bool Facts::varies(Node& n, std::vector<NumberPlace>& out) {
  if (!has_numbers(n) || (n.kind == Node::Kind::Dict && !PyDict_Check(n.object))) return false;
  std::vector<std::pair<Key*, Expected>> before;
  for (Key& key : n.keys) {
    std::optional<Expected> common = common_with(key.expect, value_now(n, key));
    if (!common) continue;
    out.push_back(place_of_key(n, key));
    if (common->kind == Kind::Form) out.back().was = Ref::share(common->object);
    before.emplace_back(&key, std::exchange(key.expect, std::move(*common)));
  }
  const bool holds = !before.empty() && verify(n);
  for (auto& [key, expect] : before) key->expect = std::move(expect);
  return holds;
}

void Facts::varying(std::vector<NumberPlace>& out) {
  for (const Number& number : numbers_) {
    if (!number.open) continue;
    const Node& n = nodes_[static_cast<size_t>(number.node)];
    out.push_back(place_of_key(n, n.keys[number.key]));
    if (number.element >= 0) out.back().was = Ref::share(n.keys[number.key].expect.object);
  }
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
