#pragma once
// For calls that the observer does not watch (pure=True): a profile function that sees which C functions are called.
#include <Python.h>

#include <string>

#include "observe/ref.h"

namespace fastjit::observe {

/// While it lives, notices calls of C functions through which this thread uses a tensor, a generator or the outside
/// world without an operator that shows it. Needs a thread without a profile function; others hear nothing meanwhile.
class DoorWatch {
 public:
  /// While `passes` gives true, nothing is noticed.
  explicit DoorWatch(bool (*passes)());
  ~DoorWatch();
  DoorWatch(const DoorWatch&) = delete;
  DoorWatch& operator=(const DoorWatch&) = delete;
  /// "use of a tensor outside operators by Tensor.apply_ at model.py:14"; empty if there was none.
  const std::string& found() const { return found_; }

 private:
  static int on_event(PyObject* self, PyFrameObject* frame, int what, PyObject* arg) noexcept;
  bool (*passes_)();
  Ref capsule_;
  std::string found_;
};

}  // namespace fastjit::observe
