#pragma once
// How a fact learns that a dictionary has changed. 3.11 to 3.13 keep a version tag in the dictionary.
#include <Python.h>

#include "observe/layout.h"

namespace fastjit::observe {

class DictVersion {
 public:
  DictVersion() = default;
  explicit DictVersion(PyObject* dict) : word_(&version_tag(dict)), tells_all_(!shares_values(dict)) {}
  /// A word that has another value after each change, one that it never had before.
  const void* word() const { return word_; }
  /// False where an object's stores pass its dictionary by (3.13): the places of the values tell of them then.
  bool tells_all() const { return tells_all_; }

 private:
  const void* word_ = nullptr;
  bool tells_all_ = true;
};

}  // namespace fastjit::observe
