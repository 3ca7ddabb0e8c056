#pragma once
// An owned reference.
#include <Python.h>

#include <utility>

namespace fastjit::observe {

/// Owns one reference.
class Ref {
 public:
  Ref() = default;
  static Ref steal(PyObject* o) { return Ref(o); }
  static Ref share(PyObject* o) { return Ref(Py_XNewRef(o)); }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  explicit Ref(PyObject* o) : object_(o) {}
  PyObject* object_ = nullptr;
};

}  // namespace fastjit::observe
