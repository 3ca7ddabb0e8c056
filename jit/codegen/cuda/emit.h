#pragma once
// CUDA C++ of one kernel plan, for people and for NVRTC. Accumulators are those of the CPU: F32 sums and products in
// double (of a vector, its sum in float), F64 sums compensated.
//
// The kernel takes one struct by value. All its fields have 8 bytes, in this order: a pointer per operand; a size per
// dim; a divisor (plan::divisor) for which plan::is_divided; a stride (in elements) per operand and dim of
// StrideClass::Any, operand-major; the run-time scalars; with scratch slots their memory (null: shared memory) and the
// bytes of one slot of one block.
#include <cstdint>
#include <string>

#include "plan/kernel_plan.h"

namespace fastjit::codegen {

/// The whole source: equal plans give equal text.
std::string cuda_source(const plan::KernelPlan& plan);

}  // namespace fastjit::codegen
