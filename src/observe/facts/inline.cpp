// Facts about the attributes of objects that hold the values themselves (3.13): a store to such an attribute moves no
// version tag of the dictionary that shares the values, so its words are the places of the values.
#include "observe/observe.h"

#if FASTJIT_OBSERVES && PY_VERSION_HEX >= 0x030D0000 && PY_VERSION_HEX < 0x030E0000
#include <algorithm>

#include "observe/facts/facts.h"

namespace fastjit::observe {
namespace {

/// The index of a name among shared keys; -1: not there, -2: there as another, equal object.
Py_ssize_t entry_index(const DictKeys* keys, PyObject* name) noexcept {
  for (Py_ssize_t i = 0; i < keys->nentries; ++i)
    if (entries_of(keys)[i].key == name) return i;
  if (!PyUnicode_Check(name)) return -1;
  for (Py_ssize_t i = 0; i < keys->nentries; ++i)
    if (PyObject* key = entries_of(keys)[i].key; key && PyUnicode_Compare(key, name) == 0) return -2;
  return -1;
}

bool asks_for_size(const Node& n) { return n.length >= 0 || n.truth >= 0 || n.ordered; }

bool asks_for_absent(const Node& n) {
  return std::ranges::any_of(n.keys, [](const Key& key) { return key.expect.kind == Expected::Kind::Absent; });
}

}  // namespace

PyObject** shared_place(PyObject* dict, PyObject* name) noexcept {
  auto* d = reinterpret_cast<PyDictObject*>(dict);
  const Py_ssize_t at = shares_values(dict) ? entry_index(keys_of(d), name) : -1;
  return at < 0 ? nullptr : &values_of(d)[at];
}

size_t Facts::value_words(const Node& n) noexcept { return 1 + asks_for_size(n) + asks_for_absent(n) + n.keys.size(); }

// One word says that the values are still shared, then come their number, the number of names that objects of the class
// have, and a word for each key.
void Facts::rearm_values(Node& n) noexcept {
  auto* dict = reinterpret_cast<PyDictObject*>(n.object);
  const DictKeys* keys = keys_of(dict);
  size_t word = n.tag_word;
  const auto watch = [&](const void* place) {
    const auto* at = static_cast<const Bits*>(place);
    words_[word++] = {at, *at};
  };
  const auto look = [&] { words_[word++] = {&kNever, kNoTag}; };  // at every check
  const auto rest = [&] { words_[word++] = {&kNever, kNever}; };
  if (!shares_values(n.object)) {  // it has values of its own by now and for ever, and its tag tells of them
    watch(n.version.word());
    while (word < n.tag_word + value_words(n)) rest();
    return;
  }
  watch(&dict->ma_values);
  if (asks_for_size(n)) n.ordered ? look() : watch(shared_values(dict));
  if (asks_for_absent(n)) watch(&keys->nentries);
  for (Key& key : n.keys) {
    const Py_ssize_t at = entry_index(keys, key.name.get());
    if (at == -1) {
      rest();
      continue;
    }
    if (at < 0 || key.expect.is_open()) {
      look();
      continue;
    }
    PyObject** place = &values_of(dict)[at];
    key.expect.follow(*place);
    watch(place);
  }
}

}  // namespace fastjit::observe
#endif
