#pragma once
// Pointwise ops as LLVM values. Operands are scalars, or vectors of one length; each lane is computed from its own
// operands only, so that a value does not depend on where in a vector (or in which loop) it is computed.
#include <llvm/IR/IRBuilder.h>

#include "backend/target.h"
#include "ir/dtype.h"
#include "ir/graph.h"
#include "ir/op.h"
#include "plan/kernel_plan.h"

namespace fastjit::codegen {

/// An empty function with the arguments of backend::KernelFn.
llvm::Function* kernel_function(llvm::Module& module, std::string_view entry);

struct Rules {
  llvm::IRBuilder<>& b;
  plan::Numerics numerics;
  backend::Isa isa;
};

/// Type of a value in a register (F16 and BF16: their bits as i16; Bool: i1) and in memory (Bool: i8).
llvm::Type* register_type(llvm::LLVMContext& context, ir::DType type);
llvm::Type* memory_type(llvm::LLVMContext& context, ir::DType type);
/// `element`, or a vector of `lanes` of it.
llvm::Type* lanes_of(llvm::Type* element, int lanes);
/// The type that has `like`'s lane count and the element type `element`.
llvm::Type* shaped(llvm::Type* element, llvm::Type* like);

/// A pointwise op. `type` is the dtype of the operands (of the last one for Where); `args` holds the op's arity.
llvm::Value* emit_op(Rules& rules, ir::Op op, ir::DType type, llvm::ArrayRef<llvm::Value*> args);

/// The same value from a function of the module that all uses of the op on such a type call.
llvm::Value* emit_shared(Rules& rules, ir::Op op, ir::DType type, llvm::ArrayRef<llvm::Value*> args);

/// torch's .to(dtype) on the CPU.
llvm::Value* emit_convert(Rules& rules, llvm::Value* value, ir::DType from, ir::DType to);

/// C's fmod: exact, with the sign of `a`. No library call: reduces about 50 bits of quotient a round.
llvm::Value* emit_fmod(Rules& rules, llvm::Value* a, llvm::Value* b);

/// A Compute of the plan.
llvm::Value* emit_compute(Rules& rules, const plan::KernelPlan& plan, const plan::Instr& in,
                          llvm::ArrayRef<llvm::Value*> args);
/// A Const's number.
llvm::Constant* constant_of(llvm::LLVMContext& context, const plan::Instr& in);
/// Lets multiplications and additions be contracted where the numerics allow it.
void set_numerics(llvm::IRBuilder<>& b, plan::Numerics numerics);

/// What is held in registers of what memory has, and the other way.
llvm::Value* from_memory(llvm::IRBuilder<>& b, llvm::Value* raw, ir::DType type);
llvm::Value* to_memory(llvm::IRBuilder<>& b, llvm::Value* value, ir::DType type);

/// Word `index` of what a pointer leads to.
llvm::Value* word_of(llvm::IRBuilder<>& b, llvm::Value* pointer, int64_t index, llvm::Type* type);

/// A running reduction: one or two values of `lanes` lanes (sum and compensation, value and index).
struct ReduceState {
  llvm::SmallVector<llvm::Value*, 2> parts;
};
llvm::SmallVector<llvm::Type*, 2> reduce_types(llvm::LLVMContext& context, ir::ReduceKind kind, ir::DType type,
                                               int lanes);
ReduceState reduce_identity(Rules& rules, ir::ReduceKind kind, ir::DType type, int lanes);
/// A Dot's state with one product more a lane.
ReduceState reduce_product(Rules& rules, ir::DType type, const ReduceState& state, llvm::Value* x, llvm::Value* y);
/// The state of one element per lane, not of a Dot. `index` is used by ArgMax and ArgMin only.
ReduceState reduce_element(Rules& rules, ir::ReduceKind kind, ir::DType type, llvm::Value* value, llvm::Value* index);
ReduceState reduce_combine(Rules& rules, ir::ReduceKind kind, ir::DType type, const ReduceState& a,
                           const ReduceState& b);
/// Combines the lanes pairwise into one.
ReduceState reduce_lanes(Rules& rules, ir::ReduceKind kind, ir::DType type, ReduceState state);
llvm::Value* reduce_result(Rules& rules, ir::ReduceKind kind, ir::DType type, const ReduceState& state,
                           ir::DType result);

}  // namespace fastjit::codegen
