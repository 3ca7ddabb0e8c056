#pragma once
// Kernels that Python code gave operators of aten (torch.library.Library("aten", "IMPL").impl("atan", ...)): such an
// operator no longer computes what its row in the lowering table says.
#include <Python.h>

#include <cstdint>
#include <string_view>

namespace fastjit::capture {

/// Takes the set in which torch.library keeps every kernel that Python registered, as "aten/atan/CPU"; kept for ever.
void register_library(PyObject* kernels);

/// Another number whenever such kernels came or went. Looks at the set's size only, so that one that comes in the same
/// moment as another goes is not noticed. A few ns; GIL held.
uint32_t library_state() noexcept;

/// Whether Python gave "aten::atan" (or an overload of it) a kernel that a call with tensors of the CPU, or of a CUDA
/// device, can reach.
bool has_library_kernel(std::string_view operator_name, bool on_cuda);

/// Whether it gave any operator of aten such a kernel.
bool has_library_kernels(bool on_cuda) noexcept;

}  // namespace fastjit::capture
