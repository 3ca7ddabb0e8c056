#pragma once
// From a kernel plan to an LLVM module with one function of type backend::KernelFn.
#include <llvm/IR/Module.h>

#include <memory>
#include <string_view>

#include "backend/target.h"
#include "plan/kernel_plan.h"

namespace fastjit::codegen {

/// The module for a verified plan. Deterministic: equal arguments give equal modules.
std::unique_ptr<llvm::Module> emit_kernel(llvm::LLVMContext& context, const plan::KernelPlan& plan, backend::Isa isa,
                                          std::string_view entry);

}  // namespace fastjit::codegen
