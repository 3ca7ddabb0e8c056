#include "dispatch/captured.h"

#include <algorithm>

#include "dispatch/tensor_match.h"

namespace fastjit::dispatch {

void CapturedTensors::add(PyObject* object, std::string name) {
  TensorSpec spec = TensorSpec::of(object);
  const auto known = std::ranges::find(specs_, spec);
  c10::TensorImpl* impl = unpack(object).unsafeGetTensorImpl();
  places_.push_back({object, impl, autograd_meta(impl), static_cast<size_t>(known - specs_.begin())});
  if (known == specs_.end()) specs_.push_back(std::move(spec));
  names_.push_back(std::move(name));
}

bool CapturedTensors::hold() const noexcept {
  for (const auto& [object, impl, meta, which] : places_) {
    const TensorSpec& spec = specs_[which];
    const at::Tensor& tensor = THPVariable_Unpack(object);
    if (spec.is_class_of(object) && tensor.unsafeGetTensorImpl() == impl && autograd_meta(impl) == meta) [[likely]] {
      if (!spec.matches(impl) || !spec.matches(meta, tensor)) return false;
    } else if (!spec.matches(object)) {
      return false;
    }
  }
  return true;
}

bool CapturedTensors::matches(size_t i) const noexcept { return spec(i).matches(object(i)); }

}  // namespace fastjit::dispatch
