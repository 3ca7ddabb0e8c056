#pragma once
// fastjit.stance(...) and FASTJIT_DISABLE: what calls may do. A stance is a block of Python code. It counts in the
// thread or task that entered it and in tasks that were started there (it is in a context variable), until the block
// ends.
#include <pybind11/pybind11.h>

#include <cstdint>

namespace fastjit::dispatch {

enum class Stance : uint8_t { Default, Eager, ErrorOnCompile };

/// Of the innermost block around the code that runs now. With FASTJIT_DISABLE: always Eager. Needs the GIL.
Stance stance();

void bind_stance(pybind11::module_& module);

}  // namespace fastjit::dispatch
