// One body an elementary function: where a plan says so, its uses in a kernel call one function of their own instead of
// standing in the kernel each with its whole text.
#include <llvm/IR/Module.h>

#include "codegen/llvm/rules.h"

namespace fastjit::codegen {

using llvm::Function;
using llvm::Type;
using llvm::Value;

namespace {

/// The operation and the type of its values: "sin.f32x16".
std::string name_of(ir::Op op, ir::DType type, Type* value) {
  std::string name = std::string(ir::text(op)) + "." + std::string(ir::text(type));
  if (auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(value))
    name += "x" + std::to_string(vector->getNumElements());
  return name;
}

Function* make(Rules& r, const std::string& name, ir::Op op, ir::DType type, llvm::ArrayRef<Value*> args) {
  llvm::BasicBlock* here = r.b.GetInsertBlock();
  llvm::SmallVector<Type*, 3> types;
  for (Value* arg : args) types.push_back(arg->getType());
  auto* made = Function::Create(llvm::FunctionType::get(args[0]->getType(), types, false),
                                llvm::GlobalValue::InternalLinkage, name, here->getModule());
  made->setAttributes(here->getParent()->getAttributes());
  made->setCallingConv(llvm::CallingConv::Fast);
  made->addFnAttr(llvm::Attribute::NoInline);
  llvm::IRBuilder<> builder(llvm::BasicBlock::Create(made->getContext(), "entry", made));
  builder.setFastMathFlags(r.b.getFastMathFlags());
  Rules rules{builder, r.numerics, r.isa};
  llvm::SmallVector<Value*, 3> values;
  for (llvm::Argument& arg : made->args()) values.push_back(&arg);
  builder.CreateRet(emit_op(rules, op, type, values));
  return made;
}

}  // namespace

Value* emit_shared(Rules& r, ir::Op op, ir::DType type, llvm::ArrayRef<Value*> args) {
  const std::string name = name_of(op, type, args[0]->getType());
  Function* function = r.b.GetInsertBlock()->getModule()->getFunction(name);
  if (!function) function = make(r, name, op, type, args);
  llvm::CallInst* call = r.b.CreateCall(function, args);
  call->setCallingConv(function->getCallingConv());
  return call;
}

}  // namespace fastjit::codegen
