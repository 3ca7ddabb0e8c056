#pragma once
// From a kernel plan to an LLVM module with one function of type backend::KernelFn.
#include <llvm/IR/Module.h>

#include <string_view>

#include "backend/target.h"
#include "plan/kernel_plan.h"

namespace fastjit::codegen {

/// Puts the function for a verified plan, called `entry`, into an empty module. Deterministic: equal arguments give
/// equal modules.
void emit_kernel(llvm::Module& module, const plan::KernelPlan& plan, backend::Isa isa, std::string_view entry);

}  // namespace fastjit::codegen
