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

void CapturedTensors::add(Place place, TensorSpec spec, std::string name) {
  const auto known = std::ranges::find(specs_, spec);
  place.spec = static_cast<uint32_t>(known - specs_.begin());
  places_.push_back(place);
  if (known == specs_.end()) specs_.push_back(std::move(spec));
  names_.push_back(std::move(name));
}

void CapturedTensors::add(PyObject* object, std::string name) {
  c10::TensorImpl* impl = unpack(object).unsafeGetTensorImpl();
  add({object, impl, autograd_meta(impl), 0}, TensorSpec::of(object), std::move(name));
}

void CapturedTensors::add_grad_of(PyObject* owner, PyObject* grad, std::string name) {
  add({owner, nullptr, nullptr, 0, Found::Grad}, grad == Py_None ? TensorSpec() : TensorSpec::of(grad),
      std::move(name));
}

void CapturedTensors::add_in(observe::Replaced place, std::string name) {
  const TensorSpec spec = TensorSpec::of(place.tensor);
  add({nullptr, nullptr, nullptr, 0, Found::InPlace, static_cast<uint32_t>(in_.size())}, spec, std::move(name));
  place.tensor = nullptr;  // that of the recorded call
  in_.push_back(std::move(place));
}

PyObject* CapturedTensors::object_there(const Place& place) const {
  return place.found == Found::Grad ? gradient_of(place.object) : tensor_in(in_[place.in]);
}

// Apart, for the loop over the others.
[[gnu::noinline]] bool CapturedTensors::holds_what_is_there(const Place& place) const noexcept {
  const TensorSpec& spec = specs_[place.spec];
  return place.found == Found::Grad ? is_like(spec, grad_of(place.object)) : is_in(spec, in_[place.in]);
}

// From the last one on: the run that follows begins with the first, so that of thousands each half is still in the
// cache when it is looked at again (5 % of a call with 2,000 parameters).
bool CapturedTensors::hold() const noexcept {
  for (const Place& place : std::views::reverse(places_)) {
    const auto& [object, impl, meta, which, found, in] = place;
    const TensorSpec& spec = specs_[which];
    if (found != Found::Same) [[unlikely]] {
      if (!holds_what_is_there(place)) return false;
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
  if (places_[i].found == Found::Grad) return is_like(spec(i), grad_of(places_[i].object));
  return object(i) && spec(i).matches(object(i));
}

}  // namespace fastjit::dispatch
