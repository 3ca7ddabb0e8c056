// Conversions between element types, as torch's .to() makes them on x86.
#include <llvm/IR/PatternMatch.h>

#include <cmath>

#include "codegen/rules_llvm.h"

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

// BF16 by integers: vcvtneps2bf16 flushes denormals, which eager does not.
Value* float_to_half(Rules& r, Value* value, DType to) {
  auto& b = r.b;
  Type* i16 = shaped(b.getInt16Ty(), value->getType());
  if (to == DType::F16) return b.CreateBitCast(b.CreateFPTrunc(value, shaped(b.getHalfTy(), value->getType())), i16);
  Type* i32 = shaped(b.getInt32Ty(), value->getType());
  auto constant = [&](uint64_t n) { return llvm::ConstantInt::get(i32, n); };
  Value* bits = b.CreateBitCast(value, i32);
  Value* odd = b.CreateAnd(b.CreateLShr(bits, constant(16)), constant(1));
  Value* rounded = b.CreateAdd(b.CreateAdd(bits, constant(0x7fff)), odd);
  Value* safe = b.CreateSelect(b.CreateFCmpUNO(value, value), constant(0x7fc00000), rounded);
  return b.CreateTrunc(b.CreateLShr(safe, constant(16)), i16);
}

// cvttss2si and its kin: what does not fit gives the most negative number. A constant would fold to poison, so it is
// converted here.
Value* float_to_int(Rules& r, Value* value, Type* target) {
  Type* element = target->getScalarType();
  auto* constant = llvm::dyn_cast<llvm::Constant>(value);
  if (constant && constant->getType()->isVectorTy()) constant = constant->getSplatValue();
  if (auto* number = llvm::dyn_cast_or_null<llvm::ConstantFP>(constant)) {
    const unsigned width = element->getIntegerBitWidth();
    const double x = number->getValueAPF().convertToDouble(), limit = std::ldexp(1.0, static_cast<int>(width) - 1);
    const int64_t lowest = width == 64 ? INT64_MIN : INT32_MIN;
    const double whole = std::trunc(x);
    return llvm::ConstantInt::get(
        target, static_cast<uint64_t>(whole >= -limit && whole < limit ? static_cast<int64_t>(whole) : lowest), true);
  }
  return r.b.CreateFPToSI(value, target);
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
