// erf, erfc and erfinv.
#include "codegen/math_coefficients.h"
#include "codegen/math_parts_llvm.h"

namespace fastjit::codegen::math {
namespace {

constexpr double kInf = __builtin_inf();

/// erfc(y), y >= 0: exp(-y^2) times a polynomial in (y - 4) / (y + 4) over 1 + 2y (Shepherd and Laframboise, 1981).
V erfc_positive(V y) {
  V x = at_most(y, 28);
  Pair square = two_product(x, x);
  V e = exp_sum(-square.hi, -square.lo, 64);
  V p = poly((x - 4.0) / (x + 4.0), kErfcxF64);
  V d = fma(x, 2.0, 1.0);
  V reciprocal = 1.0 / d;
  V ratio = p * reciprocal;
  V residue = fma(-ratio, fma(x, 2.0, 1.0 - d), fma(-ratio, d, p));  // of the division and of d
  return fma(e, ratio, e * (residue * reciprocal)) * 0x1p-64;
}

/// 1 - erfc(y) for floats y >= 1; log2 of erfc is a polynomial.
V erf_tail_f32(V y) {
  V x = at_most(y, 4);
  constexpr std::span c(kErfcLog2F32);
  V rest = fma(x * x, poly(x, c.subspan(2)), c[0]);
  const double magic = 0x1.8p23 + 127;
  V t = fma(x, c[1], rest) + magic;
  V f = fma(x, c[1], magic - t) + rest;  // the large term meets the integer without rounding
  V p = poly(f, kExp2F32) * f;           // 2^f - 1
  V s = shl(t.bits(), 23).real();
  return fma(-p, s, 1.0 - s);
}

}  // namespace

V erf(V x) {
  V y = abs(x);
  V z = x * x;
  V small = fma(x, x.f64() ? poly(z, kErfF64) : poly(z, kErfF32), x);
  V large = copysign(x.f64() ? 1.0 - erfc_positive(y) : erf_tail_f32(y), x);
  return select(y > 1.0, large, small);
}

V erfc(V x) {
  V y = abs(x);
  V c = erfc_positive(y);
  V near = 1.0 - fma(x, poly(x * x, kErfF64), x);
  return select(y < 0.5, near, select(x < 0.0, 2.0 - c, c));
}

V erfinv(V x) {
  V y = abs(x);
  V w = -log_base((1.0 - y) * (y + 1.0), Base::E);
  V s = sqrt(w);
  V far = select(s > 4.0, poly(s - 5.0, kErfinvFarF64), poly(s - 3.25, kErfinvMiddleF64));
  V ratio = select(w > 6.25, far, poly(w - 3.0, kErfinvCentralF64));
  ratio = select(y < 0.5, poly(x * x, kErfinvNearF64), ratio);
  return x * select(eq(y, 1.0), kInf, ratio);
}

}  // namespace fastjit::codegen::math
