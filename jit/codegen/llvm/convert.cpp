// Conversions between element types, as torch's .to() makes them on x86.
#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/SmallPtrSet.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/IR/PatternMatch.h>

#include <cmath>

#include "codegen/llvm/rules.h"

namespace fastjit::codegen {
namespace {

using ir::DType;
using llvm::Type;
using llvm::Value;
using namespace llvm::PatternMatch;

Type* like(Rules& r, DType type, Value* value) {
  return shaped(register_type(r.b.getContext(), type), value->getType());
}

Value* half_to_float(Rules& r, Value* bits, DType from) {
  auto& b = r.b;
  Type* f32 = like(r, DType::F32, bits);
  if (from == DType::F16) return b.CreateFPExt(b.CreateBitCast(bits, shaped(b.getHalfTy(), bits->getType())), f32);
  Type* i32 = shaped(b.getInt32Ty(), bits->getType());
  // A value rounded just before needs no trip through 16 bits: its upper half is the float.
  llvm::Value* rounded = nullptr;
  if (match(bits, m_Trunc(m_LShr(m_Value(rounded), m_SpecificInt(16)))) && rounded->getType() == i32)
    return b.CreateBitCast(b.CreateAnd(rounded, llvm::ConstantInt::get(i32, 0xffff0000u)), f32);
  Value* wide = b.CreateZExt(bits, i32);
  return b.CreateBitCast(b.CreateShl(wide, llvm::ConstantInt::get(wide->getType(), 16)), f32);
}

/// True if a NaN in `value` surely has 16 zeros at the end: it comes from a bfloat16 or is the hardware's own. `seen`
/// bounds the search and lets a value that is used twice be looked at once.
bool nan_ends_in_zeros(Value* value, llvm::SmallPtrSetImpl<Value*>& seen) {
  using namespace llvm;
  if (!seen.insert(value).second) return true;
  if (seen.size() > 200) return false;
  if (auto* constant = dyn_cast<Constant>(value)) {
    if (constant->getType()->isVectorTy()) constant = constant->getSplatValue();
    auto* number = dyn_cast_or_null<ConstantFP>(constant);
    return number && !number->isNaN();
  }
  auto* in = dyn_cast<Instruction>(value);
  if (!in) return false;
  auto all = [&](auto&& operands) {
    return all_of(operands, [&](Value* operand) { return nan_ends_in_zeros(operand, seen); });
  };
  switch (in->getOpcode()) {
    case Instruction::BitCast: {  // from integers: shifted up, or cut off
      const APInt* number = nullptr;
      if (match(in->getOperand(0), m_Shl(m_Value(), m_APInt(number)))) return number->uge(16);
      return match(in->getOperand(0), m_And(m_Value(), m_APInt(number))) && number->countr_zero() >= 16;
    }
    case Instruction::SIToFP:
    case Instruction::UIToFP:
      return true;
    case Instruction::FAdd:
    case Instruction::FSub:
    case Instruction::FMul:
    case Instruction::FDiv:
    case Instruction::FNeg:
      return all(in->operands());
    case Instruction::Select:
      return all(drop_begin(in->operands()));
    default:
      break;
  }
  auto* call = dyn_cast<IntrinsicInst>(in);
  if (!call) return false;
  switch (call->getIntrinsicID()) {
    case Intrinsic::fma:
    case Intrinsic::fabs:
    case Intrinsic::sqrt:
      return all(call->args());
    case Intrinsic::copysign:
      return nan_ends_in_zeros(call->getArgOperand(0), seen);
    case Intrinsic::x86_avx512_permvar_sf_512:
    case Intrinsic::x86_avx2_permps:
      return isa<Constant>(call->getArgOperand(0));  // a table of numbers
    case Intrinsic::x86_avx512_mask_scalef_ps_512:
      return nan_ends_in_zeros(call->getArgOperand(0), seen) && nan_ends_in_zeros(call->getArgOperand(1), seen);
    default:
      return false;
  }
}

/// One instruction that makes every NaN the hardware's own, where there is one.
Value* plain_nan(Rules& r, Value* value) {
  auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(value->getType());
  if (r.isa != backend::Isa::Avx512 || !vector || vector->getNumElements() != 16) return nullptr;
  auto& b = r.b;
  constexpr int kQuietAndSignalling = 0x33, kCurrentRounding = 4;
  Value* table = llvm::ConstantInt::get(shaped(b.getInt32Ty(), vector), kQuietAndSignalling);
  return b.CreateIntrinsic(llvm::Intrinsic::x86_avx512_mask_fixupimm_ps_512,
                           {value, value, table, b.getInt32(0), b.getInt16(0xffff), b.getInt32(kCurrentRounding)});
}

// BF16 by integers: vcvtneps2bf16 flushes denormals, which eager does not.
Value* float_to_bf16(Rules& r, Value* value) {
  auto& b = r.b;
  // NaNs that do not end in zeros could become infinity or 0.
  llvm::SmallPtrSet<Value*, 32> seen;
  Value* nan = nullptr;
  if (!nan_ends_in_zeros(value, seen)) {
    if (Value* plain = plain_nan(r, value))
      value = plain;
    else
      nan = b.CreateFCmpUNO(value, value);
  }
  Type* i32 = shaped(b.getInt32Ty(), value->getType());
  auto constant = [&](uint64_t n) { return llvm::ConstantInt::get(i32, n); };
  Value* bits = b.CreateBitCast(value, i32);
  Value* rounded = nullptr;
  if (r.isa == backend::Isa::Avx512) {  // a test and a blend instead of a shift, a mask and an addition
    Value* odd = b.CreateICmpNE(b.CreateAnd(bits, constant(0x10000)), constant(0));
    rounded = b.CreateAdd(bits, b.CreateSelect(odd, constant(0x8000), constant(0x7fff)));
  } else {
    Value* odd = b.CreateAnd(b.CreateLShr(bits, constant(16)), constant(1));
    rounded = b.CreateAdd(b.CreateAdd(bits, constant(0x7fff)), odd);
  }
  if (nan) rounded = b.CreateSelect(nan, constant(0x7fc00000), rounded);
  return b.CreateTrunc(b.CreateLShr(rounded, constant(16)), shaped(b.getInt16Ty(), value->getType()));
}

// A float alone. LLVM's own truncation of one that was a double rounds once, in a function of a library (LLVM 22).
Value* float_to_f16(Rules& r, Value* value) {
  auto& b = r.b;
  constexpr uint32_t kNearestEven = 0;
  auto* four = llvm::FixedVectorType::get(b.getFloatTy(), 4);
  Value* vector = b.CreateInsertElement(llvm::Constant::getNullValue(four), value, uint64_t{0});
  Value* halves = b.CreateIntrinsic(llvm::Intrinsic::x86_vcvtps2ph_128, {}, {vector, b.getInt32(kNearestEven)});
  return b.CreateExtractElement(halves, uint64_t{0});
}

Value* float_to_half(Rules& r, Value* value, DType to) {
  if (to == DType::BF16) return float_to_bf16(r, value);
  if (!value->getType()->isVectorTy()) return float_to_f16(r, value);
  auto& b = r.b;
  Value* half = b.CreateFPTrunc(value, shaped(b.getHalfTy(), value->getType()));
  return b.CreateBitCast(half, shaped(b.getInt16Ty(), value->getType()));
}

// cvttss2si and its kin: what does not fit gives the most negative number. For LLVM that is poison, which folds to
// anything (a conversion there and back to trunc(x)): it never sees one.
Value* float_to_int(Rules& r, Value* value, Type* target) {
  auto& b = r.b;
  const unsigned width = target->getScalarType()->getIntegerBitWidth();
  Value* limit = llvm::ConstantFP::get(value->getType(), std::ldexp(1.0, static_cast<int>(width) - 1));
  Value* fits = b.CreateFCmpOLT(b.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, value), limit);
  Value* whole = b.CreateFPToSI(b.CreateSelect(fits, value, llvm::Constant::getNullValue(value->getType())), target);
  return b.CreateSelect(fits, whole, llvm::ConstantInt::get(target, llvm::APInt::getSignedMinValue(width)));
}

// gcc compiles the narrow static_casts through a 32-bit conversion; c10::convert sends uint8_t through int64_t.
Value* from_float(Rules& r, Value* value, DType to) {
  auto& b = r.b;
  const DType via = to == DType::I64 || to == DType::U8 ? DType::I64 : DType::I32;
  Value* wide = float_to_int(r, value, like(r, via, value));
  return b.CreateTrunc(wide, like(r, to, value));
}

Value* not_zero(Rules& r, Value* value, DType from) {
  auto& b = r.b;
  if (ir::is_float(from)) return b.CreateFCmpUNE(value, llvm::ConstantFP::get(value->getType(), 0.0));
  if (ir::is_half(from)) value = b.CreateAnd(value, llvm::ConstantInt::get(value->getType(), 0x7fff));
  return b.CreateICmpNE(value, llvm::ConstantInt::get(value->getType(), 0));
}

}  // namespace

Value* emit_convert(Rules& r, Value* value, DType from, DType to) {
  auto& b = r.b;
  if (from == to) return value;
  if (to == DType::Bool) return not_zero(r, value, from);
  if (ir::is_half(from)) return emit_convert(r, half_to_float(r, value, from), DType::F32, to);
  // torch rounds to a half through float, also from double and from integers.
  if (ir::is_half(to)) return float_to_half(r, emit_convert(r, value, from, DType::F32), to);
  Type* target = like(r, to, value);
  if (ir::is_float(from)) {
    if (ir::is_float(to)) return b.CreateFPCast(value, target);
    return from_float(r, value, to);
  }
  if (ir::is_float(to)) return ir::is_signed(from) ? b.CreateSIToFP(value, target) : b.CreateUIToFP(value, target);
  return b.CreateIntCast(value, target, ir::is_signed(from));
}

}  // namespace fastjit::codegen
