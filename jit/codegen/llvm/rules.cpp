// Arithmetic, comparisons, bits and selection.
#include "codegen/llvm/rules.h"

#include <llvm/IR/Intrinsics.h>

#include <stdexcept>

#include "codegen/math/math.h"

namespace fastjit::codegen {

using ir::DClass;
using ir::DType;
using ir::Op;
using llvm::Type;
using llvm::Value;
using llvm::Intrinsic::ID;

llvm::Type* register_type(llvm::LLVMContext& context, DType type) {
  switch (type) {
    case DType::F32:
      return Type::getFloatTy(context);
    case DType::F64:
      return Type::getDoubleTy(context);
    case DType::Bool:
      return Type::getInt1Ty(context);
    default:
      return Type::getIntNTy(context, static_cast<unsigned>(8 * ir::size_of(type)));
  }
}

llvm::Type* memory_type(llvm::LLVMContext& context, DType type) {
  return type == DType::Bool ? Type::getInt8Ty(context) : register_type(context, type);
}

llvm::Type* lanes_of(Type* element, int lanes) {
  return lanes == 1 ? element : llvm::FixedVectorType::get(element, static_cast<unsigned>(lanes));
}

llvm::Type* shaped(Type* element, Type* like) {
  if (auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(like))
    return llvm::FixedVectorType::get(element, vector->getNumElements());
  return element;
}

namespace {

Value* integer(Value* like, int64_t value) {
  return llvm::ConstantInt::get(like->getType(), static_cast<uint64_t>(value), true);
}
Value* real(Value* like, double value) { return llvm::ConstantFP::get(like->getType(), value); }
Value* unary(Rules& r, ID id, Value* a) { return r.b.CreateUnaryIntrinsic(id, a); }
Value* binary(Rules& r, ID id, Value* a, Value* b) { return r.b.CreateBinaryIntrinsic(id, a, b); }

bool is_unsigned(DType type) { return !ir::is_signed(type); }

// The number every lane of an integer constant has; verify() lets nothing else be a divisor.
int64_t divisor_of(Value* b) {
  auto* constant = llvm::cast<llvm::Constant>(b);
  if (b->getType()->isVectorTy()) constant = constant->getSplatValue();
  return llvm::cast<llvm::ConstantInt>(constant)->getSExtValue();
}

// Divisors are nonzero constants. -1 is apart: LLVM's sdiv leaves INT_MIN / -1 undefined, eager wraps.
Value* integer_division(Rules& r, Op op, DType type, Value* a, Value* b) {
  auto& ib = r.b;
  if (is_unsigned(type)) return op == Op::Div || op == Op::FloorDiv ? ib.CreateUDiv(a, b) : ib.CreateURem(a, b);
  const int64_t divisor = divisor_of(b);
  if (divisor == -1) return op == Op::Div || op == Op::FloorDiv ? ib.CreateNeg(a) : integer(a, 0);
  if (op == Op::Div) return ib.CreateSDiv(a, b);
  Value* remainder = ib.CreateSRem(a, b);
  if (op == Op::Fmod) return remainder;
  Value* nonzero = ib.CreateICmpNE(remainder, integer(a, 0));
  Value* sign = divisor < 0 ? ib.CreateICmpSGT(remainder, integer(a, 0)) : ib.CreateICmpSLT(remainder, integer(a, 0));
  Value* adjust = ib.CreateAnd(nonzero, sign);
  if (op == Op::Remainder) return ib.CreateSelect(adjust, ib.CreateAdd(remainder, b), remainder);
  Value* quotient = ib.CreateSDiv(a, b);
  return ib.CreateSelect(adjust, ib.CreateSub(quotient, integer(a, 1)), quotient);
}

// Python's % and // on floats, by eager's formulas (c10::div_floor_floating), on an exact fmod.
Value* float_division(Rules& r, Op op, Value* a, Value* b) {
  auto& ib = r.b;
  Value* mod = emit_fmod(r, a, b);
  if (op == Op::Fmod) return mod;
  Value* zero = real(a, 0);
  Value* signs_differ = ib.CreateXor(ib.CreateFCmpOLT(b, zero), ib.CreateFCmpOLT(mod, zero));
  Value* adjust = ib.CreateAnd(ib.CreateFCmpUNE(mod, zero), signs_differ);
  if (op == Op::Remainder) return ib.CreateSelect(adjust, ib.CreateFAdd(mod, b), mod);
  Value* div = ib.CreateFDiv(ib.CreateFSub(a, mod), b);
  div = ib.CreateSelect(adjust, ib.CreateFSub(div, real(a, 1)), div);
  Value* floor = unary(r, llvm::Intrinsic::floor, div);
  Value* up = ib.CreateFCmpOGT(ib.CreateFSub(div, floor), real(a, 0.5));
  floor = ib.CreateSelect(up, ib.CreateFAdd(floor, real(a, 1)), floor);
  Value* quotient = ib.CreateFDiv(a, b);
  Value* signed_zero = binary(r, llvm::Intrinsic::copysign, zero, quotient);
  Value* result = ib.CreateSelect(ib.CreateFCmpUNE(div, zero), floor, signed_zero);
  return ib.CreateSelect(ib.CreateFCmpOEQ(b, zero), quotient, result);
}

// select(a < b, a, b) is minps: it gives b on ties and on NaN. As eager's vectors do, Min and Max give b on ties (of
// signed zeros) and any NaN, FMin and FMax give a on ties and the other operand for a NaN.
Value* float_minmax(Rules& r, Op op, Value* a, Value* b) {
  auto& ib = r.b;
  const bool keep_nan = op == Op::Min || op == Op::Max, low = op == Op::Min || op == Op::FMin;
  Value *first = keep_nan ? a : b, *second = keep_nan ? b : a;
  Value* better = low ? ib.CreateFCmpOLT(first, second) : ib.CreateFCmpOGT(first, second);
  Value* best = ib.CreateSelect(better, first, second);
  return ib.CreateSelect(ib.CreateFCmpUNO(a, a), keep_nan ? a : b, best);
}

Value* integer_minmax(Rules& r, Op op, DType type, Value* a, Value* b) {
  const bool low = op == Op::Min || op == Op::FMin;
  if (type == DType::Bool) return low ? r.b.CreateAnd(a, b) : r.b.CreateOr(a, b);
  if (is_unsigned(type)) return binary(r, low ? llvm::Intrinsic::umin : llvm::Intrinsic::umax, a, b);
  return binary(r, low ? llvm::Intrinsic::smin : llvm::Intrinsic::smax, a, b);
}

Value* shift(Rules& r, Op op, DType type, Value* a, Value* b) {
  auto& ib = r.b;
  const int bits = 8 * ir::size_of(type);
  Value* inside = ib.CreateICmpULT(b, integer(b, bits));
  if (op == Op::Shr && !is_unsigned(type)) return ib.CreateAShr(a, ib.CreateSelect(inside, b, integer(b, bits - 1)));
  Value* count = ib.CreateSelect(inside, b, integer(b, 0));
  Value* shifted = op == Op::Shl ? ib.CreateShl(a, count) : ib.CreateLShr(a, count);
  return ib.CreateSelect(inside, shifted, integer(a, 0));
}

Value* sign_bit(Rules& r, DType type, Value* a) {
  if (is_unsigned(type)) return llvm::ConstantInt::getFalse(shaped(r.b.getInt1Ty(), a->getType()));
  if (ir::is_float(type))
    a = r.b.CreateBitCast(a, shaped(r.b.getIntNTy(static_cast<unsigned>(8 * ir::size_of(type))), a->getType()));
  return r.b.CreateICmpSLT(a, integer(a, 0));
}

Value* compare(Rules& r, Op op, DType type, Value* a, Value* b) {
  using P = llvm::CmpInst::Predicate;
  struct Row {
    Op op;
    P real, sign, plain;
  };
  static constexpr Row kRows[] = {
      {Op::Eq, P::FCMP_OEQ, P::ICMP_EQ, P::ICMP_EQ},   {Op::Ne, P::FCMP_UNE, P::ICMP_NE, P::ICMP_NE},
      {Op::Lt, P::FCMP_OLT, P::ICMP_SLT, P::ICMP_ULT}, {Op::Le, P::FCMP_OLE, P::ICMP_SLE, P::ICMP_ULE},
      {Op::Gt, P::FCMP_OGT, P::ICMP_SGT, P::ICMP_UGT}, {Op::Ge, P::FCMP_OGE, P::ICMP_SGE, P::ICMP_UGE},
  };
  for (const Row& row : kRows)
    if (row.op == op)
      return r.b.CreateCmp(ir::is_float(type) ? row.real : is_unsigned(type) ? row.plain : row.sign, a, b);
  throw std::runtime_error("codegen: no comparison " + std::string(ir::text(op)));
}

Value* float_op(Rules& r, Op op, llvm::ArrayRef<Value*> v) {
  auto& ib = r.b;
  switch (op) {
    case Op::Add:
      return ib.CreateFAdd(v[0], v[1]);
    case Op::Sub:
      return ib.CreateFSub(v[0], v[1]);
    case Op::Mul:
      return ib.CreateFMul(v[0], v[1]);
    case Op::Div:
      return ib.CreateFDiv(v[0], v[1]);
    case Op::FloorDiv:
    case Op::Remainder:
    case Op::Fmod:
      return float_division(r, op, v[0], v[1]);
    case Op::Neg:
      return ib.CreateFNeg(v[0]);
    case Op::Abs:
      return unary(r, llvm::Intrinsic::fabs, v[0]);
    case Op::Min:
    case Op::Max:
    case Op::FMin:
    case Op::FMax:
      return float_minmax(r, op, v[0], v[1]);
    case Op::Sqrt:
      return unary(r, llvm::Intrinsic::sqrt, v[0]);
    case Op::Rsqrt:
      return ib.CreateFDiv(real(v[0], 1), unary(r, llvm::Intrinsic::sqrt, v[0]));
    case Op::Floor:
      return unary(r, llvm::Intrinsic::floor, v[0]);
    case Op::Ceil:
      return unary(r, llvm::Intrinsic::ceil, v[0]);
    case Op::Trunc:
      return unary(r, llvm::Intrinsic::trunc, v[0]);
    case Op::Round:
      return unary(r, llvm::Intrinsic::roundeven, v[0]);
    case Op::Copysign:
      return binary(r, llvm::Intrinsic::copysign, v[0], v[1]);
    case Op::Fma:
      return ib.CreateIntrinsic(llvm::Intrinsic::fma, {v[0]->getType()}, {v[0], v[1], v[2]});
    case Op::ExpRough:
      return emit_rough_exp(ib, v[0], r.isa);
    default:
      break;
  }
  if (!math_has(op)) throw std::runtime_error("codegen: no float rule for " + std::string(ir::text(op)));
  MathContext context{ib, r.numerics, r.isa};
  return emit_math(context, op, v[0], v.size() > 1 ? v[1] : nullptr);
}

// Bool arithmetic is eager's: + is or, * is and.
Value* integer_op(Rules& r, Op op, DType type, llvm::ArrayRef<Value*> v) {
  auto& ib = r.b;
  const bool boolean = type == DType::Bool;
  switch (op) {
    case Op::Add:
      return boolean ? ib.CreateOr(v[0], v[1]) : ib.CreateAdd(v[0], v[1]);
    case Op::Sub:
      return boolean ? ib.CreateXor(v[0], v[1]) : ib.CreateSub(v[0], v[1]);
    case Op::Mul:
      return boolean ? ib.CreateAnd(v[0], v[1]) : ib.CreateMul(v[0], v[1]);
    case Op::Div:
    case Op::FloorDiv:
    case Op::Remainder:
    case Op::Fmod:
      return integer_division(r, op, type, v[0], v[1]);
    case Op::Neg:
      return ib.CreateNeg(v[0]);
    case Op::Abs:
      return is_unsigned(type) ? v[0]
                               : ib.CreateIntrinsic(llvm::Intrinsic::abs, {v[0]->getType()}, {v[0], ib.getFalse()});
    case Op::Min:
    case Op::Max:
    case Op::FMin:
    case Op::FMax:
      return integer_minmax(r, op, type, v[0], v[1]);
    case Op::And:
      return ib.CreateAnd(v[0], v[1]);
    case Op::Or:
      return ib.CreateOr(v[0], v[1]);
    case Op::Xor:
      return ib.CreateXor(v[0], v[1]);
    case Op::Not:
      return ib.CreateNot(v[0]);
    case Op::Shl:
    case Op::Shr:
      return shift(r, op, type, v[0], v[1]);
    default:
      throw std::runtime_error("codegen: no integer rule for " + std::string(ir::text(op)));
  }
}

}  // namespace

Value* emit_op(Rules& r, Op op, DType type, llvm::ArrayRef<Value*> args) {
  if (op == Op::Where) return r.b.CreateSelect(args[0], args[1], args[2]);
  if (op == Op::SignBit) return sign_bit(r, type, args[0]);
  if (ir::info(op).rule == ir::TypeRule::Compare) return compare(r, op, type, args[0], args[1]);
  return ir::is_float(type) ? float_op(r, op, args) : integer_op(r, op, type, args);
}

Value* emit_compute(Rules& r, const plan::KernelPlan& plan, const plan::Instr& in, llvm::ArrayRef<Value*> args) {
  const DType type = plan.code[in.args[in.op == Op::Where ? 2 : 0]].dtype;
  if (in.op == Op::Convert) return emit_convert(r, args[0], type, in.dtype);
  return in.shared ? emit_shared(r, in.op, type, args) : emit_op(r, in.op, type, args);
}

llvm::Constant* constant_of(llvm::LLVMContext& context, const plan::Instr& in) {
  Type* type = register_type(context, in.dtype);
  if (ir::is_float(in.dtype)) return llvm::ConstantFP::get(type, std::bit_cast<double>(in.imm));
  return llvm::ConstantInt::get(context, llvm::APInt(type->getIntegerBitWidth(), in.imm, false, true));
}

void set_numerics(llvm::IRBuilder<>& b, plan::Numerics numerics) {
  if (numerics != plan::Numerics::Fast) return;
  llvm::FastMathFlags flags;
  flags.setAllowContract();
  b.setFastMathFlags(flags);
}

Value* from_memory(llvm::IRBuilder<>& b, Value* raw, DType type) {
  return type == DType::Bool ? b.CreateICmpNE(raw, llvm::Constant::getNullValue(raw->getType())) : raw;
}

Value* to_memory(llvm::IRBuilder<>& b, Value* value, DType type) {
  return type == DType::Bool ? b.CreateZExt(value, shaped(b.getInt8Ty(), value->getType())) : value;
}

Value* word_of(llvm::IRBuilder<>& b, Value* pointer, int64_t index, Type* type) {
  return b.CreateLoad(type, b.CreateConstGEP1_64(b.getInt8Ty(), pointer, static_cast<uint64_t>(8 * index)));
}

}  // namespace fastjit::codegen
