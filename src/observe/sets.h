#pragma once
// The items of a set, read in place: no Python code runs and nothing is allocated.
#include <Python.h>

#include <span>

namespace fastjit::observe {

/// Every place of a set or frozenset, an empty one has a null key and a discarded one a key with the hash -1. Valid
/// until the set changes.
inline std::span<const setentry> set_places(PyObject* set) {
  const auto* object = reinterpret_cast<const PySetObject*>(set);
  return {object->table, static_cast<size_t>(object->mask) + 1};
}

/// True where `place` holds an item.
inline bool holds_item(const setentry& place) { return place.key && place.hash != -1; }

}  // namespace fastjit::observe
