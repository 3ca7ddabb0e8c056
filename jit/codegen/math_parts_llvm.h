#pragma once
// The elementary functions one by one. "f64 only": the caller widens floats and narrows the result.
#include "codegen/math_values_llvm.h"

namespace fastjit::codegen::math {

V exp_scaled(V x, int shift);      // e^x 2^shift, rounded once; shift 0 or -1
V exp_sum(V x, V low, int shift);  // e^(x + low) 2^shift; low is read for f64 only
V exp2(V x);
V exp2_pair(V hi, V lo);  // 2^(hi + lo); f64 only
Pair expm1_half(V x);     // (e^x - 1) / 2 for |x| < 88 (f32), 711 (f64), e^x not below 2^-40 (f32), 2^-60 (f64)
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
