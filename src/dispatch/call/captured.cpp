#include "dispatch/call/captured.h"

#include <algorithm>

#include "dispatch/call/tensor_match.h"

namespace fastjit::dispatch {

namespace {

const at::Tensor& grad_of(PyObject* owner) noexcept {
  static const at::Tensor none;
  const auto* meta = autograd_meta(unpack(owner).unsafeGetTensorImpl());
  return meta ? meta->grad_ : none;
}

bool is_like(const TensorSpec& spec, const at::Tensor& grad) noexcept {
  if (!grad.defined()) return spec.dtype == at::ScalarType::Undefined;
  c10::TensorImpl* impl = grad.unsafeGetTensorImpl();
  return spec.dtype != at::ScalarType::Undefined && spec.matches(impl) && spec.matches(autograd_meta(impl), grad);
}

}  // namespace

PyObject* gradient_of(PyObject* owner) {
  PyObject* grad = THPVariable_Wrap(grad_of(owner));
  Py_DECREF(grad);  // the tensor keeps its object
  return grad;
}

void CapturedTensors::add(Place place, TensorSpec spec, std::string name) {
  const auto known = std::ranges::find(specs_, spec);
  place.spec = static_cast<size_t>(known - specs_.begin());
  places_.push_back(place);
  if (known == specs_.end()) specs_.push_back(std::move(spec));
  names_.push_back(std::move(name));
}

void CapturedTensors::add(PyObject* object, std::string name) {
  c10::TensorImpl* impl = unpack(object).unsafeGetTensorImpl();
  add({object, impl, autograd_meta(impl), 0}, TensorSpec::of(object), std::move(name));
}

void CapturedTensors::add_grad_of(PyObject* owner, std::string name) {
  PyObject* grad = gradient_of(owner);
  add({owner, nullptr, nullptr, 0, true}, grad == Py_None ? TensorSpec() : TensorSpec::of(grad), std::move(name));
}

PyObject* CapturedTensors::object(size_t i) const {
  return places_[i].is_grad ? gradient_of(places_[i].object) : places_[i].object;
}

bool CapturedTensors::hold() const noexcept {
  for (const auto& [object, impl, meta, which, is_grad] : places_) {
    const TensorSpec& spec = specs_[which];
    if (is_grad) [[unlikely]] {
      if (!is_like(spec, grad_of(object))) return false;
      continue;
    }
    const at::Tensor& tensor = THPVariable_Unpack(object);
    if (spec.is_class_of(object) && tensor.unsafeGetTensorImpl() == impl && autograd_meta(impl) == meta) [[likely]] {
      if (!spec.matches(impl) || !spec.matches(meta, tensor)) return false;
    } else if (!spec.matches(object)) {
      return false;
    }
  }
  return true;
}

bool CapturedTensors::matches(size_t i) const noexcept {
  return places_[i].is_grad ? is_like(spec(i), grad_of(places_[i].object)) : spec(i).matches(object(i));
}

}  // namespace fastjit::dispatch
