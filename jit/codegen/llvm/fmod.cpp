// fmod without a library. With |a| >= |b|, b is scaled up by a power of two to within 51 bits of a, the truncated
// quotient (an integer of at most 2^52, at most one too large) is taken off with an exact fma, and so on until |a| <
// |b|. F32 runs in F64, where it has no denormals and needs at most six rounds.
#include "codegen/llvm/rules.h"

namespace fastjit::codegen {
namespace {

using llvm::Type;
using llvm::Value;

class Fmod {
 public:
  Fmod(Rules& r, Type* type) : b_(r.b), type_(type), bits_(shaped(r.b.getInt64Ty(), type)) {}

  Value* run(Value* a, Value* divisor) {
    Value *x = abs(a), *y = abs(divisor), *infinity = llvm::ConstantFP::getInfinity(type_), *zero = real(0);
    Value* regular = b_.CreateAnd(b_.CreateFCmpOLT(x, infinity),
                                  b_.CreateAnd(b_.CreateFCmpOGT(y, zero), b_.CreateFCmpOLT(y, infinity)));
    Value* rest = loop(b_.CreateSelect(regular, x, zero), b_.CreateSelect(regular, y, real(1)));
    rest = b_.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, rest, a);
    // What is left: fmod(finite, inf) is the dividend, everything else has no value.
    Value* whole = b_.CreateAnd(b_.CreateFCmpOLT(x, infinity), b_.CreateFCmpOEQ(y, infinity));
    Value* other = b_.CreateSelect(whole, a, llvm::ConstantFP::getNaN(type_));
    return b_.CreateSelect(regular, rest, other);
  }

 private:
  Value* abs(Value* v) { return b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, v); }
  Value* real(double v) { return llvm::ConstantFP::get(type_, v); }
  Value* integer(int64_t v) { return llvm::ConstantInt::get(bits_, static_cast<uint64_t>(v), true); }

  // Exponent field of a positive number, denormals as if they were normal numbers of smaller exponent.
  Value* exponent(Value* v) {
    Value* tiny = b_.CreateFCmpOLT(v, real(0x1p-1022));
    Value* scaled = b_.CreateSelect(tiny, b_.CreateFMul(v, real(0x1p54)), v);
    Value* field = b_.CreateLShr(b_.CreateBitCast(scaled, bits_), integer(52));
    return b_.CreateSelect(tiny, b_.CreateSub(field, integer(54)), field);
  }
  Value* power(Value* n) { return b_.CreateBitCast(b_.CreateShl(b_.CreateAdd(n, integer(1023)), integer(52)), type_); }

  Value* loop(Value* x, Value* y) {
    llvm::Function* fn = b_.GetInsertBlock()->getParent();
    auto& context = b_.getContext();
    llvm::BasicBlock* before = b_.GetInsertBlock();
    auto* head = llvm::BasicBlock::Create(context, "fmod", fn);
    auto* body = llvm::BasicBlock::Create(context, "fmod.round", fn);
    auto* done = llvm::BasicBlock::Create(context, "fmod.done", fn);
    Value* y_exponent = exponent(y);
    b_.CreateBr(head);
    b_.SetInsertPoint(head);
    auto* rest = b_.CreatePHI(type_, 2);
    rest->addIncoming(x, before);
    Value* active = b_.CreateFCmpOGE(rest, y);
    b_.CreateCondBr(type_->isVectorTy() ? b_.CreateOrReduce(active) : active, body, done);
    b_.SetInsertPoint(body);
    rest->addIncoming(b_.CreateSelect(active, round(rest, y, y_exponent), rest), body);
    b_.CreateBr(head);
    b_.SetInsertPoint(done);
    return rest;
  }

  Value* round(Value* rest, Value* y, Value* y_exponent) {
    Value* gap = b_.CreateSub(b_.CreateSub(exponent(rest), y_exponent), integer(51));
    gap = b_.CreateSelect(b_.CreateICmpSGT(gap, integer(0)), gap, integer(0));
    Value* half = b_.CreateLShr(gap, integer(1));  // two factors: 2^gap itself may be too large for one number
    Value* scaled = b_.CreateFMul(b_.CreateFMul(y, power(half)), power(b_.CreateSub(gap, half)));
    Value* quotient = b_.CreateUnaryIntrinsic(llvm::Intrinsic::trunc, b_.CreateFDiv(rest, scaled));
    Value* next = b_.CreateIntrinsic(llvm::Intrinsic::fma, {type_}, {b_.CreateFNeg(quotient), scaled, rest});
    return b_.CreateSelect(b_.CreateFCmpOLT(next, real(0)), b_.CreateFAdd(next, scaled), next);
  }

  llvm::IRBuilder<>& b_;
  Type *type_, *bits_;
};

}  // namespace

Value* emit_fmod(Rules& r, Value* a, Value* b) {
  if (a->getType()->getScalarType()->isDoubleTy()) return Fmod(r, a->getType()).run(a, b);
  Type* wide = shaped(r.b.getDoubleTy(), a->getType());
  Value* rest = Fmod(r, wide).run(r.b.CreateFPExt(a, wide), r.b.CreateFPExt(b, wide));
  return r.b.CreateFPTrunc(rest, a->getType());  // exact: the result has no more bits than the operands
}

}  // namespace fastjit::codegen
