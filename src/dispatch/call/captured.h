#pragma once
#include <Python.h>

#include <string>
#include <vector>

#include "dispatch/call/spec.h"
#include "observe/observe.h"

namespace fastjit::dispatch {

/// The tensor of its .grad, undefined where it has none.
const at::Tensor& grad_of(PyObject* owner) noexcept;

/// Whether something waits for the gradient of this leaf: a hook on it or, as DistributedDataParallel has it, on the
/// node that accumulates it.
bool has_gradient_hooks(PyObject* leaf) noexcept;

/// The object of its .grad, None where it has none; borrowed. Warns of nothing, as Tensor.grad does of what is no leaf.
PyObject* gradient_of(PyObject* owner);

/// The tensors that a variant found in Python objects, with what they looked like. The layers of a model are alike: a
/// call reads one spec for all of them, and 32 bytes for each tensor.
class CapturedTensors {
 public:
  /// `object` is borrowed: a fact keeps its identity, so it is alive while the facts hold.
  void add(PyObject* object, std::string name);
  /// The gradient that `owner`, which a fact keeps, has in each call: another tensor that looks like `grad`, or none
  /// where that is None.
  void add_grad_of(PyObject* owner, PyObject* grad, std::string name);
  /// What each call finds in a place to which facts lead: another tensor that looks the same.
  void add_in(observe::Replaced place, std::string name);
  void clear() { *this = CapturedTensors(); }

  /// Whether each still looks as it did. Asked for on every call; runs no Python code.
  bool hold() const noexcept;
  bool matches(size_t i) const noexcept;

  size_t size() const { return places_.size(); }
  /// Borrowed; None for a gradient that is not there, null for a place in which nothing is.
  PyObject* object(size_t i) const {
    const Place& place = places_[i];
    return place.found == Found::Same ? place.object : object_there(place);
  }
  const TensorSpec& spec(size_t i) const { return specs_[places_[i].spec]; }
  const std::string& name(size_t i) const { return names_[i]; }

 private:
  enum class Found : uint8_t { Same, Grad, InPlace };  // the others are looked up each time; Grad: that of `object`
  // What the object pointed to when it was added: looked at without waiting for the object, and used where it still is
  // so.
  struct Place {
    PyObject* object;
    c10::TensorImpl* impl;
    const torch::autograd::AutogradMeta* meta;
    uint32_t spec;  // index into specs_
    Found found = Found::Same;
    uint32_t in : 24 = 0;  // index into in_
  };
  static_assert(sizeof(Place) == 32);
  void add(Place place, TensorSpec spec, std::string name);
  PyObject* object_there(const Place& place) const;
  bool holds_what_is_there(const Place& place) const noexcept;
  std::vector<Place> places_;
  std::vector<TensorSpec> specs_;  // different ones
  std::vector<observe::Replaced> in_;
  std::vector<std::string> names_;
};

}  // namespace fastjit::dispatch
