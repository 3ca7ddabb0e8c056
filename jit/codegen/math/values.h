#pragma once
// Operators over llvm::Value, so that an elementary function reads as its
// formula. Constants take the type of the other operand and fill its lanes.
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Intrinsics.h>

#include <span>

namespace fastjit::codegen::math {

struct V {
  llvm::IRBuilder<>* b = nullptr;
  llvm::Value* v = nullptr;
  bool avx512 = false;  // the level that code is generated for has AVX-512

  llvm::Type* type() const { return v->getType(); }
  bool f64() const { return type()->getScalarType()->isDoubleTy(); }
  V of(llvm::Value* value) const { return {b, value, avx512}; }
  V operator()(double c) const { return of(llvm::ConstantFP::get(type(), c)); }
  V integer(int64_t c) const { return of(llvm::ConstantInt::getSigned(type(), c)); }
  llvm::Type* with(llvm::Type* element) const {
    auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(type());
    return vector ? llvm::FixedVectorType::get(element, vector->getNumElements()) : element;
  }
  V bits() const {
    return of(b->CreateBitCast(v, with(f64() ? b->getInt64Ty() : static_cast<llvm::Type*>(b->getInt32Ty()))));
  }
  V real() const {
    const bool wide = type()->getScalarSizeInBits() == 64;
    return of(b->CreateBitCast(v, with(wide ? b->getDoubleTy() : b->getFloatTy())));
  }
  V widen() const { return of(b->CreateFPExt(v, with(b->getDoubleTy()))); }
  V narrow() const { return of(b->CreateFPTrunc(v, with(b->getFloatTy()))); }
};

inline V operator+(V a, V b) { return a.of(a.b->CreateFAdd(a.v, b.v)); }
inline V operator-(V a, V b) { return a.of(a.b->CreateFSub(a.v, b.v)); }
inline V operator*(V a, V b) { return a.of(a.b->CreateFMul(a.v, b.v)); }
inline V operator/(V a, V b) { return a.of(a.b->CreateFDiv(a.v, b.v)); }
inline V operator+(V a, double b) { return a + a(b); }
inline V operator-(V a, double b) { return a - a(b); }
inline V operator*(V a, double b) { return a * a(b); }
inline V operator/(double a, V b) { return b(a) / b; }
inline V operator-(double a, V b) { return b(a) - b; }
inline V operator-(V a) { return a.of(a.b->CreateFNeg(a.v)); }

inline V fma(V a, V b, V c) { return a.of(a.b->CreateIntrinsic(llvm::Intrinsic::fma, {a.type()}, {a.v, b.v, c.v})); }
inline V fma(V a, V b, double c) { return fma(a, b, a(c)); }
inline V fma(V a, double b, V c) { return fma(a, a(b), c); }
inline V fma(V a, double b, double c) { return fma(a, a(b), a(c)); }
inline V abs(V a) { return a.of(a.b->CreateUnaryIntrinsic(llvm::Intrinsic::fabs, a.v)); }
inline V sqrt(V a) { return a.of(a.b->CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, a.v)); }
inline V rint(V a) { return a.of(a.b->CreateUnaryIntrinsic(llvm::Intrinsic::roundeven, a.v)); }
inline V copysign(V a, V sign) { return a.of(a.b->CreateBinaryIntrinsic(llvm::Intrinsic::copysign, a.v, sign.v)); }
inline V floor(V a) { return a.of(a.b->CreateUnaryIntrinsic(llvm::Intrinsic::floor, a.v)); }

// Comparisons are false when an operand is NaN, except ne.
inline V operator<(V a, V b) { return a.of(a.b->CreateFCmpOLT(a.v, b.v)); }
inline V operator>(V a, V b) { return a.of(a.b->CreateFCmpOGT(a.v, b.v)); }
inline V operator<(V a, double b) { return a < a(b); }
inline V operator>(V a, double b) { return a > a(b); }
inline V eq(V a, V b) { return a.of(a.b->CreateFCmpOEQ(a.v, b.v)); }
inline V eq(V a, double b) { return eq(a, a(b)); }
inline V ne(V a, V b) { return a.of(a.b->CreateFCmpUNE(a.v, b.v)); }
inline V is_nan(V a) { return a.of(a.b->CreateFCmpUNO(a.v, a.v)); }
inline V operator&&(V a, V b) { return a.of(a.b->CreateAnd(a.v, b.v)); }
inline V operator||(V a, V b) { return a.of(a.b->CreateOr(a.v, b.v)); }
inline V operator!(V a) { return a.of(a.b->CreateNot(a.v)); }
inline V select(V mask, V yes, V no) { return mask.of(mask.b->CreateSelect(mask.v, yes.v, no.v)); }
inline V select(V mask, V yes, double no) { return select(mask, yes, yes(no)); }
inline V select(V mask, double yes, V no) { return select(mask, no(yes), no); }

// A NaN in x stays.
inline V at_most(V x, double high) { return select(x > high, high, x); }
inline V at_least(V x, double low) { return select(x < low, low, x); }

inline V iadd(V a, V b) { return a.of(a.b->CreateAdd(a.v, b.v)); }
inline V isub(V a, V b) { return a.of(a.b->CreateSub(a.v, b.v)); }
inline V iadd(V a, int64_t b) { return iadd(a, a.integer(b)); }
inline V iand(V a, int64_t b) { return a.of(a.b->CreateAnd(a.v, a.integer(b).v)); }
inline V ior(V a, V b) { return a.of(a.b->CreateOr(a.v, b.v)); }
inline V ixor(V a, V b) { return a.of(a.b->CreateXor(a.v, b.v)); }
inline V shl(V a, int n) { return a.of(a.b->CreateShl(a.v, a.integer(n).v)); }
inline V lshr(V a, int n) { return a.of(a.b->CreateLShr(a.v, a.integer(n).v)); }
inline V nonzero(V a) { return a.of(a.b->CreateICmpNE(a.v, a.integer(0).v)); }

/// A value as an unevaluated sum.
struct Pair {
  V hi, lo;
};
inline Pair two_sum(V a, V b) {
  V s = a + b, t = s - a;
  return {s, (a - (s - t)) + (b - t)};
}
/// Needs |a| >= |b| or a = 0.
inline Pair fast_two_sum(V a, V b) {
  V s = a + b;
  return {s, b - (s - a)};
}
inline Pair two_product(V a, V b) {
  V p = a * b;
  return {p, fma(a, b, -p)};
}

/// c[0] + c[1] x + ...
inline V poly(V x, std::span<const double> c) {
  V p = x(c.back());
  for (size_t i = c.size() - 1; i-- > 0;) p = fma(p, x, c[i]);
  return p;
}

/// Facts of the element type of a value.
struct Format {
  int mantissa;  // stored bits
  int64_t bias;
  double magic;  // 1.5 * 2^mantissa: adding it rounds to an integer, which then
                 // stands in the low bits
  explicit Format(V x)
      : mantissa(x.f64() ? 52 : 23), bias(x.f64() ? 1023 : 127), magic(x.f64() ? 0x1.8p52 : 0x1.8p23) {}
};

}  // namespace fastjit::codegen::math
