#pragma once
// capture_debug(fn, *args, captured=[], adopt=False) -> dict: one call recorded and printed, for tests of the recorder
// alone.
#include <pybind11/pybind11.h>

namespace fastjit::capture {

void bind_capture_debug(pybind11::module_& module);

}  // namespace fastjit::capture
