// exp and its family, for float and double with one algorithm: x = k ln2 + r
// with |r| <= ln2 / 2 (Cody and Waite, with fused operations), a minimax
// polynomial for r, and 2^k put in as exponent bits.
#include "codegen/math/coefficients.h"
#include "codegen/math/parts.h"

namespace fastjit::codegen::math {
namespace {

constexpr double kLog2e = 0x1.71547652b82fep+0;

struct Reduced {
  V shifted;  // k in the low bits, plus the offset asked for
  V r, rest;  // x - k ln2 as r + rest
};

Reduced reduce_ln2(V x, int64_t offset) {
  const Format format(x);
  const double magic = format.magic + static_cast<double>(offset);
  const double* ln2 = x.f64() ? kLn2FullF64 : kLn2F32;
  V t = fma(x, kLog2e, magic);
  V k = t - magic;
  V high = fma(k, -ln2[0], x);
  V r = fma(k, -ln2[1], high);
  return {t, r, fma(k, -ln2[1], high - r)};
}

/// p * 2^k, rounded once, also for denormal results and k up to bias + 2.
/// `shifted` holds k + 2 bias.
V scale_by(V p, V shifted) {
  const Format format(p);
  V i = shifted.bits();
  V half = lshr(i, 1);
  return p * shl(half, format.mantissa).real() * shl(isub(i, half), format.mantissa).real();
}

}  // namespace

V exp_scaled(V x, int shift) { return exp_sum(x, x(0.0), shift); }

namespace {

/// Floats: k ln2 high is exact, and x - k ln2 high too.
V exp_f32(V x, int shift) {
  V clamped = at_least(at_most(x, 90), -106);
  const double magic = 0x1.8p23 + 2 * 127 + shift;
  V t = fma(clamped, kLog2e, magic);
  V k = t - magic;
  V high = fma(k, -kLn2F32[0], clamped);
  V r = fma(k, -kLn2F32[1], high);
  V tail = fma(k, -kLn2F32[1], poly(r, kExpm1F32) * (r * r));
  V p = tail + high + 1.0;
  return x.avx512 ? scale_by_power(p, shift ? k + shift : k) : scale_by(p, t);
}

}  // namespace

V exp_sum(V x, V low, int shift) {
  const bool wide = x.f64();
  if (!wide) return exp_f32(x, shift);
  const Format format(x);
  V clamped = at_least(at_most(x, wide ? 711 : 90), wide ? -750 : -106);
  Reduced a = reduce_ln2(clamped, 2 * format.bias + shift);
  Pair r = two_sum(a.r, a.rest + low);
  return scale_by(fma(r.hi * r.hi, poly(r.hi, kExpF64), r.lo) + r.hi + 1.0, a.shifted);
}

V exp_rough(V x) {
  // log2 e is its float and a little more; of one sign, so that infinities stay.
  V t = fma(x, kLog2e - 0x1.715476p0, x * 0x1.715476p0);
  return scale_by_power(poly(above_whole(t), kExp2RoughF32), t);
}

V exp2(V x) {
  const bool wide = x.f64();
  const Format format(x);
  V clamped = at_least(at_most(x, wide ? 1026 : 130), wide ? -1080 : -152);
  const double magic = format.magic + 2 * static_cast<double>(format.bias);
  V t = clamped + magic;
  V k = t - magic;
  V f = clamped - k;
  if (!wide) {
    V p = fma(poly(f, kExp2F32), f, 1.0);
    return x.avx512 ? scale_by_power(p, k) : scale_by(p, t);
  }
  V r = f * kLn2FullF64[0];
  V rest = fma(f, kLn2FullF64[0], -r) + f * kLn2FullF64[1];
  return scale_by(fma(r * r, poly(r, kExpF64), rest) + r + 1.0, t);
}

V exp2_pair(V hi, V lo) {
  V clamped = at_least(at_most(hi, 1026), -1080);
  V tail = select(abs(lo) < 1.0, lo, 0.0);
  const Format format(hi);
  const double magic = format.magic + 2 * static_cast<double>(format.bias);
  V t = clamped + magic;
  Pair f = two_sum(clamped - (t - magic), tail);
  V r = f.hi * kLn2FullF64[0];
  V rest = fma(f.hi, kLn2FullF64[0], -r) + fma(f.hi, kLn2FullF64[1], f.lo * kLn2FullF64[0]);
  return scale_by(fma(r * r, poly(r, kExpF64), rest) + r + 1.0, t);
}

// (e^x - 1) / 2 = s r + (s - 1/2) + s (r^2 q(r)) with s = 2^(k-1); the two
// large terms are summed without error.
Pair expm1_half(V x) {
  const Format format(x);
  Reduced a = reduce_ln2(x, format.bias - 1);
  V s = shl(a.shifted.bits(), format.mantissa).real();
  V q = x.f64() ? poly(a.r, kExpF64) : poly(a.r, kExpm1F32);
  V tail = fma(a.r * a.r, q, a.rest);
  V base = s - 0.5;
  Pair sum = fast_two_sum(base, s * a.r);
  return {sum.hi, fma(s, tail, sum.lo + ((s - base) - 0.5))};
}

V expm1(V x) {
  const bool wide = x.f64();
  V clamped = at_least(at_most(x, wide ? 711 : 90), wide ? -40 : -20);
  Pair half = expm1_half(clamped);
  V sum = half.hi + half.lo;
  V result = select(x > (wide ? 0x1.62e42fefa39efp+9 : 0x1.62e43p+6), __builtin_inf(), sum + sum);
  return select(abs(x) < (wide ? 0x1p-60 : 0x1p-30), x, result);
}

namespace {

/// n / (d.hi + d.lo), with the residue of the division added back.
V divide(Pair n, Pair d) {
  V reciprocal = 1.0 / d.hi;
  V q = n.hi * reciprocal;
  V residue = fma(-q, d.hi, n.hi);
  return fma(fma(-q, d.lo, n.lo.v ? residue + n.lo : residue), reciprocal, q);
}

}  // namespace

// Doubles: t / (t + 1) for t = (e^2|x| - 1) / 2.
V tanh(V x) {
  if (!x.f64())
    return odd_by_table(x,
                        x.avx512 ? Table{flat(kTanh16F32), 16, 0.59, 9.1, 1} : Table{flat(kTanh8F32), 8, 1.22, 9.1, 1});
  V y = at_most(abs(x), 20);
  Pair t = expm1_half(y + y);
  t = fast_two_sum(t.hi, t.lo);
  Pair d = two_sum(t.hi, x(1.0));
  d.lo = d.lo + t.lo;
  return select(abs(x) < 0x1p-30, x, copysign(divide(t, d), x));
}

V sigmoid(V x) {
  V e = exp_scaled(-abs(x), 0);
  return divide({select(x < 0.0, e, 1.0), {}}, fast_two_sum(x(1.0), e));
}

V cosh(V x) {
  V e = exp_scaled(abs(x), -1);
  return e + 0.25 / e;
}

V sinh(V x) {
  V y = abs(x);
  V e = exp_scaled(y, -1);
  V z = x * x;
  V small = fma(fma(z, poly(z, kSinhF64), x(0)), x, x);
  return select(y < 1.0, small, copysign(e - 0.25 / e, x));
}

}  // namespace fastjit::codegen::math
