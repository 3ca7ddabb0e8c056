#pragma once
#include <pybind11/pybind11.h>

namespace fastjit {

/// `lowered_ops()`, and `lower_and_evaluate()` for tests of the lowering table.
void bind_lowering(pybind11::module_& module);

}  // namespace fastjit
