#include "python/bind_script.h"

#include <cstdint>
#include <utility>

#include "dispatch/call/spec.h"

namespace fastjit {
namespace {

// From the first byte of the tensor to the one behind its last.
std::pair<uintptr_t, uintptr_t> extent(const at::Tensor& tensor) {
  const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
  return {begin, begin + static_cast<uintptr_t>(last + 1) * tensor.element_size()};
}

bool shares_memory(pybind11::handle a, pybind11::handle b) {
  const at::Tensor &left = dispatch::unpack(a.ptr()), &right = dispatch::unpack(b.ptr());
  if (!left.numel() || !right.numel()) return false;
  const auto [begin, end] = extent(left);
  const auto [other_begin, other_end] = extent(right);
  return begin < other_end && other_begin < end;
}

}  // namespace

void bind_script(pybind11::module_& module) {
  module.def("shares_memory", &shares_memory, pybind11::arg("a"), pybind11::arg("b"),
             "Whether the memory that two plain strided tensors lie in overlaps.");
}

}  // namespace fastjit
