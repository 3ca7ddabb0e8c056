// erf, erfc and erfinv.
#include "codegen/math/coefficients.h"
#include "codegen/math/parts.h"

namespace fastjit::codegen::math {
namespace {

constexpr double kInf = __builtin_inf();

/// erfc(y), y >= 0: exp(-y^2) times a polynomial in (y - 4) / (y + 4) over 1 +
/// 2y (Shepherd and Laframboise, 1981).
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

}  // namespace

V erf(V x) {
  if (!x.f64())
    return odd_by_table(x, x.avx512 ? Table{flat(kErf16F32), 16, 0.26, 4, 2} : Table{flat(kErf8F32), 8, 0.53, 3.97, 1});
  V small = fma(x, poly(x * x, kErfF64), x);
  return select(abs(x) > 1.0, copysign(1.0 - erfc_positive(abs(x)), x), small);
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
