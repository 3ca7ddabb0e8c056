#pragma once
// Elementary functions as inline LLVM IR: polynomials and selects, no symbol of any library. A lane's result depends on
// that lane's operand only. Bounds and measured errors: docs/numerics.md.
#include <llvm/IR/IRBuilder.h>

#include "backend/target.h"
#include "ir/op.h"
#include "plan/kernel_plan.h"

namespace fastjit::codegen {

struct MathContext {
  llvm::IRBuilder<>& builder;
  plan::Numerics numerics;
  backend::Isa isa;
};

/// True for every op of op.def's "elementary functions".
bool math_has(ir::Op op);

/// a, b: float or double, scalars or fixed vectors; the result has their type. b is read by Pow, Atan2 and Hypot only.
/// The builder must stand at the end of a block without terminator. Sin, Cos and Tan end that block (a block for huge
/// arguments is entered when a lane needs it) and leave the builder at the end of a new one.
llvm::Value* emit_math(MathContext& context, ir::Op op, llvm::Value* a, llvm::Value* b = nullptr);

/// e^a with a relative error below 2^-18. Where that saves nothing (doubles, AVX2) it is Exp.
llvm::Value* emit_rough_exp(llvm::IRBuilder<>& builder, llvm::Value* a, backend::Isa isa);

}  // namespace fastjit::codegen
