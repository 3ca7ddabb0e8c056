#pragma once
// Places of numbers, found by where they are.
#include <unordered_map>
#include <vector>

#include "observe/observe.h"

namespace fastjit::observe {

/// Each place once. Containers are addresses, and one that is gone may be taken for another: what is said here may
/// decide how a number is recorded, and never what a program relies on.
class PlacesOfNumbers {
 public:
  static constexpr size_t kMost = 4096;
  /// Two entries for one place: if they disagree in the value, or if one of them says so, another call may find any
  /// number there, or in that element of the tuple; of two types the earlier entry counts. No more than kMost are kept.
  void add(NumberPlace place);
  void add(std::vector<NumberPlace> places);
  const NumberPlace* find(const void* container, PyObject* key, Py_ssize_t index) const;
  /// Whether `now`, what is in the place, differs from call to call.
  bool varies(const void* container, PyObject* key, Py_ssize_t index, PyObject* now) const;
  /// The form of `now`, a tuple in which numbers differ from call to call; null where it is none.
  Ref form(const void* container, PyObject* key, Py_ssize_t index, PyObject* now) const;
  bool empty() const { return all_.empty(); }
  bool full() const { return all_.size() >= kMost; }
  /// Gives all away.
  std::vector<NumberPlace> take();

 private:
  std::unordered_multimap<const void*, NumberPlace> all_;  // by container
};

}  // namespace fastjit::observe
