#pragma once
// Which operations of a kernel have one body that all their uses call.
#include "plan/kernel_plan.h"

namespace fastjit::plan {

/// Whether the machine code of the operation is long enough for a function of its own: elementary functions, and
/// remainders of floats.
bool has_long_code(ir::Op op, ir::DType type);

/// Marks what would make the kernel's code too long, were each use in it inlined (Instr::shared). Values stay the same.
void share_functions(KernelPlan& plan);

/// Vectors in flight of a kernel that calls functions; 0 where none is called.
uint8_t unroll_of_calls(const KernelPlan& plan);

}  // namespace fastjit::plan
