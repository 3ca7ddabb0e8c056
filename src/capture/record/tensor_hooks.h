#pragma once
// Hooks on tensors: Python's stand in a dictionary, which stays, empty, when the last one is removed.
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

namespace fastjit::capture {

inline bool is_empty_dict(PyObject* hooks) { return hooks && PyDict_Check(hooks) && PyDict_GET_SIZE(hooks) == 0; }

/// A hook hears of the gradient of `leaf` before it is there. Takes no lock: call it with the GIL.
inline bool has_tensor_hooks(const at::Tensor& leaf) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(leaf);
  if (!meta || meta->hooks_.empty()) return false;
  const PyObject* object = leaf.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
  const bool are_removed =
      meta->hooks_.size() == 1 && object && is_empty_dict(reinterpret_cast<const THPVariable*>(object)->backward_hooks);
  return !are_removed;
}

/// A hook hears of it as soon as it is there.
inline bool has_later_hooks(const at::Tensor& leaf) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(leaf);
  if (!meta || !meta->post_acc_grad_hooks_) return false;
  const PyObject* object = leaf.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
  return !object || !is_empty_dict(reinterpret_cast<const THPVariable*>(object)->post_accumulate_grad_hooks);
}

}  // namespace fastjit::capture
