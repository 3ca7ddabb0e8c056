// Deques: their items are compared one by one.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include "observe/facts/facts.h"
#include "observe/known_functions.h"

namespace fastjit::observe {

namespace {

// Borrowed: the deque holds it.
PyObject* item_of(PyObject* deque, Py_ssize_t index) noexcept {
  return Ref::steal(PySequence_GetItem(deque, index)).get();
}

}  // namespace

bool is_deque(PyObject* o) noexcept {
  static const PyTypeObject* const type = type_named("collections", "deque");
  return Py_TYPE(o) == type;
}

const std::vector<Key>& Facts::deque(PyObject* o, const std::string& label, const std::string& where) {
  if (const Id known = find(o, Node::Kind::Deque); known >= 0) {
    if (!holds_deque(node(known))) changed(node(known).label, where);
    return node(known).keys;
  }
  Node& n = node(add(o, Node::Kind::Deque, "the items of " + label, where));
  for (Py_ssize_t i = 0; i < PySequence_Size(o); ++i) {
    PyObject* item = item_of(o, i);
    Key key;
    key.expect = Expected::of(item);
    key.label = label + "[" + std::to_string(i) + "]";
    key.where = where;
    held_.insert(item);
    n.keys.push_back(std::move(key));
  }
  return n.keys;
}

bool holds_deque(const Node& n) noexcept {
  const auto count = static_cast<Py_ssize_t>(n.keys.size());
  if (!is_deque(n.object) || PySequence_Size(n.object) != count) return false;
  for (Py_ssize_t i = 0; i < count; ++i)
    if (!n.keys[static_cast<size_t>(i)].expect.holds(item_of(n.object, i))) return false;
  return true;
}

}  // namespace fastjit::observe
#endif
