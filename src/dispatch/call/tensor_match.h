#pragma once
// Whether a tensor still looks as a spec says. Every call asks for each of its tensors, those of a model's layers too.
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include "dispatch/call/spec.h"

namespace fastjit::dispatch {

// TensorImpl::autograd_meta() is a call into another library, a fifth of the whole comparison. An explicit
// instantiation may name a private member ([temp.spec.general]/6); a torch without this one does not compile.
using AutogradMetaOf = std::unique_ptr<c10::AutogradMetaInterface> c10::TensorImpl::*;
AutogradMetaOf autograd_meta_of();
template <AutogradMetaOf Member>
struct AutogradMetaAccess {
  friend AutogradMetaOf autograd_meta_of() { return Member; }
};
template struct AutogradMetaAccess<&c10::TensorImpl::autograd_meta_>;

inline const torch::autograd::AutogradMeta* autograd_meta(const c10::TensorImpl* impl) noexcept {
  return static_cast<const torch::autograd::AutogradMeta*>((impl->*autograd_meta_of()).get());
}

// StorageImpl::mutable_data() makes memory of its own for one that has none yet, or raises, where this is set.
using AsksFirst = bool c10::StorageImpl::*;
AsksFirst asks_first();
template <AsksFirst Member>
struct AsksFirstAccess {
  friend AsksFirst asks_first() { return Member; }
};
template struct AsksFirstAccess<&c10::StorageImpl::has_mutable_data_ptr_check_>;

/// Where the first element of a tensor of the given bytes an element is; null where only mutable_data() knows.
inline char* first_element(const c10::TensorImpl* impl, int64_t element) noexcept {
  c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (!storage || storage->*asks_first()) [[unlikely]]
    return nullptr;
  return static_cast<char*>(storage->mutable_data()) + impl->storage_offset() * element;
}

inline bool TensorSpec::is_class_of(PyObject* object) const noexcept {
  return reinterpret_cast<PyObject*>(Py_TYPE(object)) == (parameter ? ParameterClass : THPVariableClass);
}

template <size_t kRank>
inline bool TensorSpec::matches(c10::TensorImpl* impl) const noexcept {
  if (impl->key_set().raw_repr() != key_set || impl->dtype() != c10::scalarTypeToTypeMeta(dtype)) return false;
  const c10::impl::SizesAndStrides& now = impl->sizes_and_strides();  // tensors with ways of their own have other keys
  const size_t rank = kRank == kAnyRank ? sizes.size() : kRank;
  if (now.size() != rank) return false;
  const int64_t *size = now.sizes_data(), *stride = now.strides_data();
  if (free_sizes | free_strides) [[unlikely]]
    return matches_but_free(size, stride);
  // Of a few numbers: a call of memcmp costs more, and so does a loop where there is one or two.
  const auto differs = [&](size_t d) { return (size[d] ^ sizes[d]) | (stride[d] ^ strides[d]); };
  if (rank == 1) return !differs(0);
  if (rank == 2) return !(differs(0) | differs(1));
  int64_t difference = 0;
  for (size_t d = 0; d < rank; ++d) difference |= differs(d);
  return !difference;
}

inline bool TensorSpec::matches(const torch::autograd::AutogradMeta* meta, const at::Tensor& tensor) const noexcept {
  if (meta == nullptr) return !requires_grad;
  // A view comes to require grad with its base, and may have its base's tangent, which is behind a lock.
  if (meta->is_view_ || meta->fw_grad_) [[unlikely]]
    return matches_slowly(tensor);
  return (meta->requires_grad_ || meta->grad_fn_) == requires_grad;
}

inline bool TensorSpec::matches(PyObject* object) const noexcept {
  if (!is_class_of(object)) return false;
  const at::Tensor& tensor = THPVariable_Unpack(object);
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return matches(impl) && matches(autograd_meta(impl), tensor);
}

}  // namespace fastjit::dispatch
