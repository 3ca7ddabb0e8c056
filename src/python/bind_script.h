#pragma once
#include <pybind11/pybind11.h>

namespace fastjit {

/// `shares_memory()`: what a loop over elements must know before it becomes an operator on all of them.
void bind_script(pybind11::module_& module);

}  // namespace fastjit
