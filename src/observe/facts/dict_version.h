#pragma once
// How a fact learns that a dictionary has changed. 3.11 to 3.13 keep a version tag in the dictionary; 3.14 has none,
// but tells who watches it, and there each dictionary that facts look into has a count of its changes here.
#include <Python.h>

#include <memory>

#include "observe/events/layout.h"

namespace fastjit::observe {

#if PY_VERSION_HEX < 0x030E0000

class DictVersion {
 public:
  DictVersion() = default;
  explicit DictVersion(PyObject* dict) : word_(&version_tag(dict)), tells_all_(!shares_values(dict)) {}
  /// A word that has another value after each change, one that it never had before. Null: nothing tells.
  const void* word() const { return word_; }
  /// False where an object's stores pass its dictionary by (3.13): the places of the values tell of them then.
  bool tells_all() const { return tells_all_; }
  /// False where the word tells of this dictionary no more: it may be a new one at the same address.
  bool is_of(PyObject*) const { return true; }

 private:
  const void* word_ = nullptr;
  bool tells_all_ = true;
};

#else

class DictVersion {
 public:
  DictVersion() = default;
  explicit DictVersion(PyObject* dict);
  const void* word() const;
  bool tells_all() const { return true; }
  bool is_of(PyObject* dict) const;

 private:
  std::shared_ptr<struct WatchedDict> watched_;  // that of every fact about the dictionary
};

#endif

}  // namespace fastjit::observe
