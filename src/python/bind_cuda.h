#pragma once
#include <pybind11/pybind11.h>

namespace fastjit {

/// CUDA source of a captured function's kernels, NVRTC, and what tests need to run that source on the host.
void bind_cuda(pybind11::module_& module);

}  // namespace fastjit
