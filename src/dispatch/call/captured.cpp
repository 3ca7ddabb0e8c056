#include "dispatch/call/captured.h"

#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <ranges>

#include "capture/record/tensor_hooks.h"
#include "dispatch/call/replay.h"
#include "dispatch/call/tensor_match.h"

namespace fastjit::dispatch {

namespace {

// No exception is left: names are looked up.
PyObject* tensor_in(const observe::Replaced& it) noexcept {
  PyObject* found = value_in(it.kind, it.target, it.key.get(), it.place);
  for (const Py_ssize_t i : it.way)
    found = found && PyTuple_CheckExact(found) && i < PyTuple_GET_SIZE(found) ? PyTuple_GET_ITEM(found, i) : nullptr;
  return found;
}

bool is_like(const TensorSpec& spec, const at::Tensor& grad) noexcept {
  if (!grad.defined()) return spec.dtype == at::ScalarType::Undefined;
  c10::TensorImpl* impl = grad.unsafeGetTensorImpl();
  return spec.dtype != at::ScalarType::Undefined && spec.matches(impl) && spec.matches(autograd_meta(impl), grad);
}

bool is_in(const TensorSpec& spec, const observe::Replaced& place) noexcept {
  PyObject* tensor = tensor_in(place);
  return tensor && spec.matches(tensor);
}

}  // namespace

const at::Tensor& grad_of(PyObject* owner) noexcept {
  static const at::Tensor none;
  const auto* meta = autograd_meta(unpack(owner).unsafeGetTensorImpl());
  return meta ? meta->grad_ : none;
}

bool has_gradient_hooks(PyObject* leaf) noexcept {
  const auto* meta = autograd_meta(unpack(leaf).unsafeGetTensorImpl());
  if (!meta) return false;
  if (capture::has_tensor_hooks(unpack(leaf)) || capture::has_later_hooks(unpack(leaf))) return true;
  const auto node = meta->grad_accumulator_.lock();
  return node && (!node->pre_hooks().empty() || !node->post_hooks().empty());
}

PyObject* gradient_of(PyObject* owner) {
  PyObject* grad = THPVariable_Wrap(grad_of(owner));
  Py_DECREF(grad);  // the tensor keeps its object
  return grad;
}

uint32_t CapturedTensors::add(TensorSpec spec) {
  const auto known = std::ranges::find(alike_, spec, &Alike::spec);
  const auto index = static_cast<uint32_t>(known - alike_.begin());
  if (known == alike_.end()) {
    const bool is_tensor = spec.dtype != at::ScalarType::Undefined;
    const int64_t element = is_tensor ? static_cast<int64_t>(c10::elementSize(spec.dtype)) : 0;
    alike_.push_back({std::move(spec), element, {}});
  }
  return index;
}

void CapturedTensors::add(Captured one, std::string name) {
  all_.push_back(one);
  names_.push_back(std::move(name));
  first_elements_.push_back(nullptr);
}

void CapturedTensors::add(PyObject* object, std::string name) {
  c10::TensorImpl* impl = unpack(object).unsafeGetTensorImpl();
  const uint32_t spec = add(TensorSpec::of(object));
  alike_[spec].tensors.push_back({object, impl, autograd_meta(impl), static_cast<uint32_t>(all_.size())});
  add({object, spec}, std::move(name));
}

void CapturedTensors::add(Lookup lookup, TensorSpec spec, std::string name) {
  lookup.spec = add(std::move(spec));
  add({nullptr, lookup.spec, static_cast<uint32_t>(lookups_.size())}, std::move(name));
  lookups_.push_back(std::move(lookup));
}

void CapturedTensors::add_grad_of(PyObject* owner, PyObject* grad, std::string name) {
  add({owner, {}}, grad == Py_None ? TensorSpec() : TensorSpec::of(grad), std::move(name));
}

void CapturedTensors::add_in(observe::Replaced place, std::string name) {
  TensorSpec spec = TensorSpec::of(std::exchange(place.tensor, nullptr));  // that of the recorded call
  add({nullptr, std::move(place)}, std::move(spec), std::move(name));
}

PyObject* CapturedTensors::object_there(const Lookup& lookup) {
  return lookup.owner ? gradient_of(lookup.owner) : tensor_in(lookup.in);
}

bool CapturedTensors::holds(const Lookup& lookup) const noexcept {
  const TensorSpec& spec = alike_[lookup.spec].spec;
  return lookup.owner ? is_like(spec, grad_of(lookup.owner)) : is_in(spec, lookup.in);
}

// From the last one on: the run that follows begins with the first, so that of thousands each half is still in the
// cache when it is looked at again (5 % of a call with 2,000 parameters).
template <size_t kRank>
bool CapturedTensors::all_hold(const Alike& alike) const noexcept {
  const TensorSpec& spec = alike.spec;
  for (const auto& [object, impl, meta, index] : std::views::reverse(alike.tensors)) {
    const at::Tensor& tensor = THPVariable_Unpack(object);
    if (spec.is_class_of(object) && tensor.unsafeGetTensorImpl() == impl && autograd_meta(impl) == meta) [[likely]] {
      if (!spec.matches<kRank>(impl) || !spec.matches(meta, tensor)) return false;
      first_elements_[index] = dispatch::first_element(impl, alike.element);
    } else if (!spec.matches(object)) {
      return false;
    } else {
      first_elements_[index] = nullptr;
    }
  }
  return true;
}

bool CapturedTensors::hold() const noexcept {
  const auto all_of = [this](const Alike& alike) {
    const size_t rank = alike.spec.sizes.size();
    return rank == 1 ? all_hold<1>(alike) : rank == 2 ? all_hold<2>(alike) : all_hold<kAnyRank>(alike);
  };
  return std::ranges::all_of(lookups_, [this](const Lookup& lookup) { return holds(lookup); }) &&
         std::ranges::all_of(std::views::reverse(alike_), all_of);
}

bool CapturedTensors::matches(size_t i) const noexcept {
  if (!all_[i].object) return holds(lookups_[all_[i].lookup]);
  return spec(i).matches(all_[i].object);
}

}  // namespace fastjit::dispatch
