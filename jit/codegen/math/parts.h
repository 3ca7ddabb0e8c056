#pragma once
// The elementary functions one by one. "f64 only": the caller widens floats and
// narrows the result.
#include "codegen/math/values.h"

namespace fastjit::codegen::math {

// Instructions of the vector units, for values of any lane count: the bits are
// those of the instruction everywhere.
V scale_by_power(V a, V k);  // AVX-512: a 2^floor(k), rounded once; k may be infinite or NaN
V above_whole(V a);          // AVX-512, floats: a - floor(a); 0 for infinities
V exponent(V a);             // AVX-512, floats: floor(log2 |a|); -inf for 0
V mantissa_from_3_4(V a);    // AVX-512, floats: a 2^-k in [3/4, 3/2); NaN for a <
                             // 0, 1 for 0 and infinity
V permuted(std::span<const double> table,
           V index);  // floats: table[index mod size]; size 16 (AVX-512) or 8

/// f(x) for an odd f that reaches 1 at `end`. Rows: centres, values there, coefficients; a column an interval of width
/// `step`. In the first `near` columns, where an error counts most, the polynomial is f(x) / x - 1.
struct Table {
  std::span<const double> rows;
  size_t columns;
  double step, end;
  int near;
};
template <size_t Rows, size_t Columns>
std::span<const double> flat(const double (&rows)[Rows][Columns]) {
  return {&rows[0][0], Rows * Columns};
}
V odd_by_table(V x, const Table& table);

V exp_rough(V x);              // e^x to 2^-18, for what is rounded to bfloat16 next; floats, AVX-512
V exp_scaled(V x, int shift);  // e^x 2^shift, rounded once; shift 0 or -1
V exp_sum(V x, V low,
          int shift);  // e^(x + low) 2^shift; low is read for f64 only
V exp2(V x);
V exp2_pair(V hi, V lo);  // 2^(hi + lo); f64 only
Pair expm1_half(V x);     // (e^x - 1) / 2 for |x| < 88 (f32), 711 (f64), e^x not
                          // below 2^-40 (f32), 2^-60 (f64)
V expm1(V x);
V tanh(V x);
V sigmoid(V x);
V cosh(V x);  // f64 only
V sinh(V x);  // f64 only

enum class Base { E, Two, Ten };
V log(V x);                  // f32 only
V log_base(V x, Base base);  // f64 only
V log1p(V x);
V asinh(V x);  // f64 only
V acosh(V x);  // f64 only
V atanh(V x);  // f64 only
V pow(V x, V y);
V hypot(V x, V y);

V sin_cos(V x, bool cosine);
V tan(V x);         // f64 only
V atan(V x);        // f64 only
V atan2(V y, V x);  // f64 only
V asin(V x);        // f64 only
V acos(V x);        // f64 only

V erf(V x);
V erfc(V x);    // f64 only
V erfinv(V x);  // f64 only

}  // namespace fastjit::codegen::math
