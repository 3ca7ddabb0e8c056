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
/// call compares all tensors of one spec with it in one go.
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
  /// Where its first element was when hold() last said yes, which looks at what says it; null: nothing is known.
  /// Under the GIL, before any Python code runs.
  char* first_element(size_t i) const { return first_elements_[i]; }
  bool matches(size_t i) const noexcept;

  /// Whether a call looks some of them up, which may make an object for a gradient, and so start the garbage collector.
  bool has_lookups() const { return !lookups_.empty(); }
  size_t size() const { return all_.size(); }
  /// Borrowed; None for a gradient that is not there, null for a place in which nothing is.
  PyObject* object(size_t i) const { return all_[i].object ? all_[i].object : object_there(lookups_[all_[i].lookup]); }
  const TensorSpec& spec(size_t i) const { return alike_[all_[i].spec].spec; }
  const std::string& name(size_t i) const { return names_[i]; }

 private:
  struct Captured {
    PyObject* object;     // null: `lookup` says where it is
    uint32_t spec;        // index into alike_
    uint32_t lookup = 0;  // index into lookups_
  };
  // What each call looks up: the gradient of `owner`, or (owner null) what is in a place.
  struct Lookup {
    PyObject* owner;
    observe::Replaced in;
    uint32_t spec = 0;  // index into alike_
  };
  // What the object pointed to when it was added: looked at without waiting for the object, and used where it still is
  // so.
  struct Same {
    PyObject* object;
    c10::TensorImpl* impl;
    const torch::autograd::AutogradMeta* meta;
    uint32_t index;  // among all
  };
  struct Alike {
    TensorSpec spec;
    int64_t element;  // bytes
    std::vector<Same> tensors;
  };
  uint32_t add(TensorSpec spec);  // its index
  void add(Captured one, std::string name);
  void add(Lookup lookup, TensorSpec spec, std::string name);
  static PyObject* object_there(const Lookup& lookup);
  bool holds(const Lookup& lookup) const noexcept;
  template <size_t kRank>
  bool all_hold(const Alike& alike) const noexcept;
  std::vector<Captured> all_;
  std::vector<Alike> alike_;  // of different specs
  std::vector<Lookup> lookups_;
  std::vector<std::string> names_;
  mutable std::vector<char*> first_elements_;
};

}  // namespace fastjit::dispatch
