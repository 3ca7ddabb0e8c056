#pragma once
#include <pybind11/pybind11.h>

namespace fastjit::dispatch {

/// What python/fastjit/_export/ makes a library of: the program of a call, planned for kernels wherever there are some.
void bind_export(pybind11::module_& module);

}  // namespace fastjit::dispatch
