// log and its family: x = 2^e m, f = m - 1, then a polynomial in f (float,
// after N. Juffa's choice of interval) or in s = f / (2 + f) (double, the
// series of atanh, as FreeBSD's k_log).
#include <limits>

#include "codegen/math/coefficients.h"
#include "codegen/math/parts.h"

namespace fastjit::codegen::math {
namespace {

constexpr double kInf = __builtin_inf();
constexpr double kNan = __builtin_nan("");
constexpr double kLn2 = 0x1.62e42fefa39efp-1;

struct Split {
  V e, m;   // x = 2^e m, m in [3/4, 3/2) for floats, [0.707, 1.414) for doubles
  V field;  // e in the exponent bits, as an integer
};

/// x positive, finite and normal.
Split split_normal(V x) {
  const Format format(x);
  V i = x.bits();
  const int64_t low = x.f64() ? 0x3fe6a09e00000000 : 0x3f400000;
  V field = iand(iadd(i, -low), -(int64_t{1} << format.mantissa));
  V m = isub(i, field).real();
  if (!x.f64()) {
    V e = x.of(x.b->CreateSIToFP(field.v, x.type())) * 0x1p-23;
    return {e, m, field};
  }
  // As a double 2^52 + (e + 2048): AVX2 converts no 64-bit integers.
  V biased = lshr(iadd(field, std::numeric_limits<int64_t>::min()), 52);
  return {ior(biased, biased.integer(0x4330000000000000)).real() - (0x1p52 + 2048), m, field};
}

/// x positive, finite, perhaps denormal.
Split split(V x) {
  const bool wide = x.f64();
  V denormal = x < (wide ? 0x1p-1022 : 0x1p-126);
  Split s = split_normal(select(denormal, x * (wide ? 0x1p54 : 0x1p24), x));
  s.e = select(denormal, s.e - (wide ? 54 : 24), s.e);
  return s;
}

/// log(1 + f) as hi + lo; f64.
Pair log_series(V f) {
  V half_square = f * f * 0.5;
  V s = f / (f + 2.0);
  V z = s * s;
  V r = z * poly(z, kLogF64);
  V hi = f - half_square;
  V lo = fma(s, half_square + r, (f - hi) - half_square);
  return {hi, lo};
}

/// The values for 0, negative numbers, infinity and NaN over `result`, the
/// logarithm of x.
V log_specials(V x, V result) {
  result = select(x < kInf, result, x);
  return select(x > 0.0, result, select(eq(x, 0.0), -kInf, select(is_nan(x), x, kNan)));
}

}  // namespace

V log(V x) {
  if (x.avx512) {  // 0, infinity and NaN come out right by themselves
    V m = mantissa_from_3_4(x), f = m - 1.0;
    return fma(exponent(x) - exponent(m), kLn2, fma(poly(f, kLogF32), f * f, f));
  }
  Split s = split(x);
  V f = s.m - 1.0;
  V tail = fma(poly(f, kLogF32), f * f, f);
  return log_specials(x, fma(s.e, kLn2, tail));
}

V log_base(V x, Base base) {
  static constexpr double kOne[] = {1, 0};
  const double* factor = base == Base::E ? kOne : base == Base::Two ? kLog2eF64 : kLog10eF64;
  const double* unit = base == Base::E ? kLn2F64 : base == Base::Two ? kOne : kLog10of2F64;
  Split s = split(x);
  Pair log = log_series(s.m - 1.0);
  if (base != Base::E) {
    Pair product = two_product(log.hi, x(factor[0]));
    V lo = fma(log.lo, factor[0], fma(log.hi, factor[1], product.lo));
    log = {product.hi, lo};
  }
  Pair sum = fast_two_sum(s.e * unit[0], log.hi);
  return log_specials(x, sum.hi + (sum.lo + fma(s.e, unit[1], log.lo)));
}

namespace {

/// Floats, AVX-512: as log1p, with the exponent and the scaling in
/// instructions.
V log1p_f32(V x) {
  V u = x + 1.0;
  V e = exponent(u) - exponent(mantissa_from_3_4(u));
  Pair f = two_sum(scale_by_power(x(1.0), -e) - 1.0, scale_by_power(x, -e));
  V tail = fma(poly(f.hi, kLogF32), f.hi * f.hi, f.lo * (1.0 - f.hi)) + f.hi;
  V result = copysign(fma(e, kLn2, tail), x);
  return select(eq(abs(e), kInf), e, result);
}

}  // namespace

// 1 + f = (1 + x) 2^-e, where f = x 2^-e + (2^-e - 1) is summed with its error;
// e is 0 for small x, so that f = x.
V log1p(V x) {
  const bool wide = x.f64();
  if (!wide && x.avx512) return log1p_f32(x);
  const Format format(x);
  V large = x > 0x1p60;
  V bounded = select(large, 1.0, x);
  Split s = split_normal(bounded + 1.0);
  V one = x(1.0);
  V scale = isub(one.bits(), s.field).real();
  Pair f = two_sum(scale - 1.0, bounded * scale);
  f.hi = select(large, split_normal(x).m - 1.0, f.hi);
  f.lo = select(large, 0.0, f.lo);
  V e = select(large, split_normal(x).e, s.e);
  V result;
  if (wide) {
    Pair log = log_series(f.hi);
    V rest = f.lo * fma(f.hi, f.hi - 1.0, 1.0);
    Pair sum = fast_two_sum(e * kLn2F64[0], log.hi);
    result = sum.hi + (sum.lo + (fma(e, kLn2F64[1], log.lo) + rest));
  } else {
    V tail = fma(poly(f.hi, kLogF32), f.hi * f.hi, f.lo * (1.0 - f.hi)) + f.hi;
    result = fma(e, kLn2, tail);
  }
  result = select(abs(x) < (wide ? 0x1p-60 : 0x1p-30), x, result);
  result = select(x < kInf, result, x);
  return select(x > -1.0, result, select(eq(x, -1.0), -kInf, select(is_nan(x), x, kNan)));
}

V asinh(V x) {
  V y = abs(x);
  V square = y * y;
  V inner = y + square / (sqrt(square + 1.0) + 1.0);
  V huge = y > 0x1p60;
  V result = log1p(select(huge, y, inner));
  return copysign(select(huge, result + kLn2, result), x);
}

V acosh(V x) {
  V t = x - 1.0;
  V huge = x > 0x1p60;
  V result = log1p(select(huge, x, t + sqrt(fma(t, t, t + t))));
  return select(x < 1.0, kNan, select(huge, result + kLn2, result));
}

V atanh(V x) {
  V y = abs(x);
  V d = 1.0 - y;
  return copysign(log1p((y + y) / d) * 0.5, x);
}

V hypot(V x, V y) {
  V a = abs(x), b = abs(y);
  V large = select(a < b, b, a);
  V up = large < 0x1p-500, down = large > 0x1p+500;
  V scale = select(up, 0x1p600, select(down, 0x1p-600, x(1.0)));
  V back = select(up, 0x1p-600, select(down, 0x1p600, x(1.0)));
  V c = a * scale, d = b * scale;
  Pair cc = two_product(c, c), dd = two_product(d, d);
  Pair sum = two_sum(cc.hi, dd.hi);
  V root = sqrt(sum.hi);
  V residue = fma(-root, root, sum.hi) + (sum.lo + (cc.lo + dd.lo));
  V result = select(root > 0.0, root + residue / (root + root), root) * back;
  result = select(large < kInf, result, a + b);
  return select(eq(a, kInf) || eq(b, kInf), kInf, result);
}

namespace {

/// log2(x) to about 2^-66, x positive and finite.
Pair log2_pair(V x) {
  Split s = split(x);
  V f = s.m - 1.0, d = s.m + 1.0;
  V d_low = s.m - (d - 1.0);
  // q = f / d with its residue
  V reciprocal = 1.0 / d;
  V q = f * reciprocal;
  V q_low = fma(-q, d_low, fma(-q, d, f)) * reciprocal;
  Pair t = fast_two_sum(q, q_low);
  Pair z = two_product(t.hi, t.hi);
  z.lo = fma(t.hi + t.hi, t.lo, z.lo);
  // atanh(t) = t + t z (1/3 + z p(z))
  constexpr double kThird = 0x1.5555555555555p-2, kThirdLow = 0x1.5555555555555p-56;
  Pair w = fast_two_sum(x(kThird), z.hi * poly(z.hi, kPowLogF64));
  w.lo = w.lo + kThirdLow;
  Pair u = two_product(z.hi, w.hi);
  u.lo = u.lo + fma(z.hi, w.lo, z.lo * w.hi);
  Pair v = two_product(t.hi, u.hi);
  v.lo = v.lo + fma(t.hi, u.lo, t.lo * u.hi);
  Pair log = fast_two_sum(t.hi, v.hi);
  log.lo = log.lo + (v.lo + t.lo);
  Pair r = two_product(log.hi, x(2 * kLog2eF64[0]));
  r.lo = r.lo + fma(log.hi, 2 * kLog2eF64[1], log.lo * (2 * kLog2eF64[0]));
  Pair sum = two_sum(s.e, r.hi);
  return fast_two_sum(sum.hi, sum.lo + r.lo);
}

}  // namespace

V pow(V x, V y) {
  V a = abs(x);
  Pair l = log2_pair(a);
  V bounded = at_least(at_most(y, 0x1p70),
                       -0x1p70);  // 2^70 times the smallest nonzero log2 overflows already
  Pair p = two_product(l.hi, bounded);
  p.lo = fma(l.lo, bounded, p.lo);
  Pair n = fast_two_sum(p.hi, p.lo);
  V result = exp2_pair(n.hi, n.lo);
  V half = y * 0.5;
  V integer = eq(floor(y), y), odd = integer && ne(floor(half), half);
  V zero = eq(a, 0.0), infinite = eq(a, kInf), wild = eq(abs(y), kInf);
  V up = y > 0.0;
  V negative = x < 0.0;
  // magnitude at the ends: 0^y, inf^y, x^(+-inf)
  result = select(zero, select(up, 0.0, x(kInf)), result);
  result = select(infinite, select(up, kInf, x(0.0)), result);
  V grows = (a > 1.0 && up) || (a < 1.0 && !up);
  result = select(wild, select(eq(a, 1.0), 1.0, select(grows, kInf, x(0.0))), result);
  result = select(odd, copysign(result, x), result);
  result = select(negative && !integer && !infinite, kNan, result);
  result = select(is_nan(x) || is_nan(y), kNan, result);
  return select(eq(y, 0.0) || eq(x, 1.0), 1.0, result);
}

}  // namespace fastjit::codegen::math
