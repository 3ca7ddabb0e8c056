#pragma once
#include <pybind11/pybind11.h>

namespace fastjit {

/// `lower_and_evaluate()`: one operator call through its row and the reference evaluator, for tests.
void bind_lowering(pybind11::module_& module);

}  // namespace fastjit
