#pragma once
// Kernels for small plans (see plan/kernel_plan.h).
#include "codegen/llvm/rules.h"

namespace fastjit::codegen {

void emit_small(llvm::Module& module, const plan::KernelPlan& plan, backend::Isa isa, std::string_view entry);

}  // namespace fastjit::codegen
