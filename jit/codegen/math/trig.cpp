// sin, cos, tan and the inverse functions. Arguments are reduced by multiples of pi/2: with three fused steps (Cody and
// Waite), or, in a block entered only when a lane needs it, by a table of 2/pi mod 4 times powers of two (Payne and
// Hanek).
#include "codegen/math/coefficients.h"
#include "codegen/math/parts.h"

#include <llvm/IR/Constants.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/IR/Module.h>

namespace fastjit::codegen::math {
namespace {

constexpr double kInf = __builtin_inf();
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
constexpr double kHalfPi = kHalfPiF64[0], kHalfPiLow = kHalfPiF64[1];

struct Angle {
  V quadrant;  // integer, low two bits count
  V r, rest;   // in [-pi/4, pi/4], a little more
};

/// Table[row][column] for each lane's row.
V lookup(V rows, const char* name, std::span<const double> flat, size_t columns, size_t column) {
  llvm::IRBuilder<>& b = *rows.b;
  llvm::Module* module = b.GetInsertBlock()->getModule();
  llvm::GlobalVariable* table = module->getNamedGlobal(name);
  if (!table) {
    llvm::Constant* data =
        llvm::ConstantDataArray::get(b.getContext(), llvm::ArrayRef<double>(flat.data(), flat.size()));
    table = new llvm::GlobalVariable(*module, data->getType(), true, llvm::GlobalValue::PrivateLinkage, data, name);
    table->setAlignment(llvm::Align(64));
  }
  V index =
      iadd(rows.of(b.CreateMul(rows.v, rows.integer(static_cast<int64_t>(columns)).v)), static_cast<int64_t>(column));
  llvm::Value* address = b.CreateGEP(b.getDoubleTy(), table, index.v);
  if (!rows.type()->isVectorTy()) return rows.of(b.CreateAlignedLoad(b.getDoubleTy(), address, llvm::Align(8)));
  return rows.of(b.CreateMaskedGather(rows.with(b.getDoubleTy()), address, llvm::Align(8)));
}

Angle reduce_small(V x) {
  const bool wide = x.f64();
  const Format format(x);
  const double* parts = wide ? kHalfPiF64 : kHalfPiF32;
  V t = fma(x, kTwoOverPi, format.magic);
  V k = t - format.magic;
  V high = fma(k, -parts[0], x);
  if (!wide) {
    V r = fma(k, -parts[1], high);
    return {t.bits(), fma(k, -parts[2], r), x(0.0)};
  }
  Pair second = two_product(k, x(-parts[1]));
  Pair r = two_sum(high, second.hi);
  V rest = fma(k, -parts[2], r.lo + second.lo);
  Pair sum = fast_two_sum(r.hi, rest);
  return {t.bits(), select(eq(x, 0.0), x, sum.hi), sum.lo};  // the sums lose the sign of -0
}

/// Floats of at least 2^13: x = M 2^(E-150); M times the first part (29 bits) is exact in a double.
Angle reduce_huge_f32(V x, V huge) {
  llvm::IRBuilder<>& b = *x.b;
  V i = x.bits();
  V field = iand(lshr(i, 23), 0xff);
  V row = select(huge, iadd(field, -140), field.integer(0));
  V mantissa = iadd(iand(i, 0x7fffff), 0x800000);
  V m = x.of(b.CreateSIToFP(mantissa.v, x.with(b.getDoubleTy())));
  constexpr std::span flat(&kTwoOverPiF32[0][0], sizeof(kTwoOverPiF32) / sizeof(double));
  V y = m * lookup(row, "two_over_pi_f32", flat, 2, 0);
  V low = lookup(row, "two_over_pi_f32", flat, 2, 1);
  V k = rint(fma(m, low, y));
  V f = fma(m, low, y - k);
  V quadrant = x.of(b.CreateTrunc((k + 0x1.8p52).bits().v, i.type()));
  V r = (f * kHalfPi).narrow();
  V negative = x < 0.0;
  return {select(negative, isub(i.integer(0), quadrant), quadrant), select(negative, -r, r), x(0.0)};
}

/// Doubles of at least 2^30: x = X 2^(8j-24) with X an integer; three running sums hold the fraction.
Angle reduce_huge_f64(V x, V huge) {
  V a = abs(x);
  V row = lshr(iadd(iand(lshr(a.bits(), 52), 0x7ff), -1053), 3);
  row = select(huge, row, row.integer(0));
  V scale = shl(isub(row.integer(1047), shl(row, 3)), 52).real();
  V m = a * scale;
  constexpr std::span flat(&kTwoOverPiF64[0][0], sizeof(kTwoOverPiF64) / sizeof(double));
  V s = x(0.0), s1 = x(0.0), s2 = x(0.0);
  auto add = [&](V term) {
    Pair first = two_sum(s, term), second = two_sum(s1, first.lo);
    s = first.hi, s1 = second.hi, s2 = s2 + second.lo;
  };
  for (size_t part = 0; part < 4; ++part) {
    Pair product = two_product(m, lookup(row, "two_over_pi_f64", flat, 4, part));
    for (V term : {product.hi, product.lo}) add(part < 2 ? fma(rint(term * 0.25), -4.0, term) : term);
  }
  V k = rint(s);
  Pair first = two_sum(s - k, s1), second = two_sum(first.lo, s2);
  Pair f = fast_two_sum(first.hi, second.hi);
  f.lo = f.lo + second.lo;
  Pair r = two_product(f.hi, x(kHalfPi));
  r.lo = r.lo + fma(f.hi, kHalfPiLow, f.lo * kHalfPi);
  V quadrant = (k + 0x1.8p52).bits();
  V negative = x < 0.0;
  return {select(negative, isub(quadrant.integer(0), quadrant), quadrant), select(negative, -r.hi, r.hi),
          select(negative, -r.lo, r.lo)};
}

/// Emits the block for huge arguments; ends the current block.
Angle reduce(V x) {
  const bool wide = x.f64();
  llvm::IRBuilder<>& b = *x.b;
  Angle small = reduce_small(x);
  V y = abs(x);
  V huge = y > (wide ? 0x1p30 : 0x1p14) && y < kInf;
  llvm::Value* any = huge.type()->isVectorTy() ? b.CreateOrReduce(huge.v) : huge.v;
  llvm::BasicBlock* before = b.GetInsertBlock();
  llvm::Function* function = before->getParent();
  auto* slow = llvm::BasicBlock::Create(b.getContext(), "huge", function);
  auto* after = llvm::BasicBlock::Create(b.getContext(), "reduced", function);
  slow->moveAfter(before);
  after->moveAfter(slow);
  b.CreateCondBr(any, slow, after, llvm::MDBuilder(b.getContext()).createUnlikelyBranchWeights());
  b.SetInsertPoint(slow);
  Angle large = wide ? reduce_huge_f64(x, huge) : reduce_huge_f32(x, huge);
  V picked[] = {select(huge, large.quadrant, small.quadrant), select(huge, large.r, small.r),
                select(huge, large.rest, small.rest)};
  b.CreateBr(after);
  b.SetInsertPoint(after);
  V given[] = {small.quadrant, small.r, small.rest};
  for (int i = 0; i < 3; ++i) {
    llvm::PHINode* phi = b.CreatePHI(given[i].type(), 2);
    phi->addIncoming(given[i].v, before);
    phi->addIncoming(picked[i].v, slow);
    given[i] = x.of(phi);
  }
  return {given[0], given[1], given[2]};
}

/// sin and cos of r + rest.
struct Kernel {
  V sin, cos;
};
Kernel kernel(Angle a) {
  V z = a.r * a.r;
  if (!z.f64()) {
    V s = fma(fma(z, poly(z, kSinF32), z(0.0)), a.r, a.r);
    V one_less = fma(z, -0.5, 1.0);
    V c = fma(z * z, poly(z, kCosF32), fma(z, -0.5, 1.0 - one_less)) + one_less;
    return {s, c};
  }
  V zero = z(0.0);
  V s_tail = fma(z * a.r, poly(z, kSinF64), fma(z, a.rest * -0.5, a.rest));
  V s = select(eq(a.r, zero), a.r, a.r + s_tail);
  V half = z * 0.5;
  V c = 1.0 - half;
  V c_tail = ((1.0 - c) - half) + fma(z * z, poly(z, kCosF64), -(a.r * a.rest));
  return {s, c + c_tail};
}

}  // namespace

V sin_cos(V x, bool cosine) {
  Angle a = reduce(x);
  Kernel k = kernel(a);
  V quadrant = cosine ? iadd(a.quadrant, 1) : a.quadrant;
  V value = select(nonzero(iand(quadrant, 1)), k.cos, k.sin);
  const int top = x.f64() ? 62 : 30;
  return ixor(value.bits(), shl(iand(quadrant, 2), top)).real();
}

V tan(V x) {
  Angle a = reduce(x);
  Kernel k = kernel(a);
  V odd = nonzero(iand(a.quadrant, 1));
  return select(odd, -k.cos, k.sin) / select(odd, k.sin, k.cos);
}

namespace {

/// base + atan(q), |q| <= tan(pi/8).
V atan_sum(V q, V base, V base_low) {
  V z = q * q;
  V tail = fma(fma(z, poly(z, kAtanF64), q(0.0)), q, base_low);
  Pair sum = fast_two_sum(base, q);
  return select(eq(base, 0.0), q + tail, sum.hi + (sum.lo + tail));
}

}  // namespace

V atan(V x) {
  V y = abs(x);
  V middle = y > 0x1.a827999fcef32p-2, far = y > 0x1.3504f333f9de6p+1;
  V q = select(far, -1.0, select(middle, y - 1.0, y)) / select(far, y, select(middle, y + 1.0, x(1.0)));
  V base = select(far, kHalfPi, select(middle, kHalfPi / 2, x(0.0)));
  V low = select(far, kHalfPiLow, select(middle, kHalfPiLow / 2, x(0.0)));
  return copysign(atan_sum(q, base, low), x);
}

V atan2(V y, V x) {
  V a = abs(y), b = abs(x);
  V top = select(a > b, a, b);
  V scale = select(top > 0x1p1000, 0x1p-100, select(top < 0x1p-900, 0x1p100, x(1.0)));
  V p = a * scale, d = b * scale;
  V equal = eq(a, b);  // also 0, 0 and inf, inf
  V middle = p > d * 0x1.a827999fcef32p-2, far = p * 0x1.a827999fcef32p-2 > d;
  V numerator = select(equal, 0.0, select(far, -d, select(middle, p - d, p)));
  V denominator = select(equal, 1.0, select(far, p, select(middle, p + d, d)));
  V zero = eq(a, 0.0);
  V base = select(zero, 0.0, select(far, kHalfPi, select(middle || equal, kHalfPi / 2, x(0.0))));
  V low = select(zero, 0.0, select(far, kHalfPiLow, select(middle || equal, kHalfPiLow / 2, x(0.0))));
  // x on the negative side (-0.0 too): pi minus the angle
  V left = x.of(x.b->CreateICmpSLT(x.bits().v, x.bits().integer(0).v));
  V q = numerator / denominator;
  V sign = select(left, -1.0, x(1.0));
  V outer = select(left, 2 * kHalfPi, x(0.0)), outer_low = select(left, 2 * kHalfPiLow, x(0.0));
  V angle = atan_sum(q * sign, fma(base, sign, outer), fma(low, sign, outer_low));
  V result = copysign(angle, y);
  return select(is_nan(x) || is_nan(y), x + y, result);
}

namespace {

/// asin(s) - s over s, with z = s^2 <= 1/4.
V asin_tail(V z) { return fma(z, poly(z, kAsinF64), z(0.0)); }

}  // namespace

V asin(V x) {
  V y = abs(x);
  V large = y > 0.5;
  V half = (1.0 - y) * 0.5;
  V z = select(large, half, y * y);
  V s = select(large, sqrt(half), y);
  V tail = asin_tail(z);
  V small = fma(y, tail, y);
  V s_low = fma(-s, s, half) / (s + s);
  V correction = fma(s, tail, select(s > 0.0, s_low, 0.0));
  Pair sum = fast_two_sum(x(kHalfPi), s * -2.0);
  V result = sum.hi + (sum.lo + fma(correction, -2.0, kHalfPiLow));
  return copysign(select(large, result, small), x);
}

V acos(V x) {
  V y = abs(x);
  V large = y > 0.5;
  V half = (1.0 - y) * 0.5;
  V z = select(large, half, y * y);
  V s = select(large, sqrt(half), x);
  V tail = asin_tail(z);
  V middle_tail = fma(-s, tail, x(kHalfPiLow));
  Pair middle = fast_two_sum(x(kHalfPi), -s);
  V s_low = fma(-s, s, half) / (s + s);
  V correction = fma(s, tail, select(s > 0.0, s_low, 0.0));
  V near = (s + correction) * 2.0;
  Pair opposite = fast_two_sum(x(2 * kHalfPi), s * -2.0);
  V far = opposite.hi + (opposite.lo + fma(correction, -2.0, 2 * kHalfPiLow));
  return select(large, select(x < 0.0, far, near), middle.hi + (middle.lo + middle_tail));
}

}  // namespace fastjit::codegen::math
