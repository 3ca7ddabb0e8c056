// Arithmetic of two operands, with torch's type promotion.
#include <array>
#include <limits>
#include <numbers>

#include "capture/lower/eager_loop.h"

namespace fastjit::capture {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

template <auto F>
void arithmetic(Call& c) {
  const ScalarType type = c.promoted({0, 1});
  c.give(F(c.as(0, type), c.as(1, type)));
}

template <auto F>
void float_binary(Call& c) {
  const ScalarType type = c.promoted_float({0, 1});
  c.give(F(c.as(0, type), c.as(1, type)));
}

// a + sign * alpha * b. add.Tensor takes the product into a fused multiply-add (vec::fmadd) unless alpha is 1;
// alpha is rounded to the tensor's type.
void scaled_sum(Call& c, size_t a_at, size_t b_at, double direction) {
  const ScalarType type = c.promoted({a_at, b_at});
  const Expr a = c.as(a_at, type), b = c.as(b_at, type);
  if (c.has(2) && c.known(2) != 1.0) {
    const Expr alpha = c.as(2, type);
    if (a.boolean()) throw NotLowered{};
    const Expr factor = direction < 0 ? (constant_of(alpha) ? number(alpha, -*constant_of(alpha)) : -alpha) : alpha;
    return c.give(a.floating() ? fma(b, factor, a) : a + b * factor);
  }
  if (a.boolean()) return direction < 0 ? throw NotLowered{} : c.give(a | b);
  c.give(direction < 0 ? a - b : a + b);
}
void add(Call& c) { scaled_sum(c, 0, 1, 1); }
void sub(Call& c) { scaled_sum(c, 0, 1, -1); }
void rsub(Call& c) { scaled_sum(c, 1, 0, -1); }

void mul(Call& c) {
  const ScalarType type = c.promoted({0, 1});
  const Expr a = c.as(0, type), b = c.as_scalar_operand(1, type);
  c.give(a.boolean() ? a & b : a * b);
}

// Integer division by a value that may be zero raises in eager: only known divisors are lowered.
Expr checked(Expr divisor) {
  if (!divisor.floating() && constant_of(divisor).value_or(0) == 0) throw NotLowered{};
  if (divisor.boolean()) throw NotLowered{};
  return divisor;
}

void true_div(Call& c) {
  const ScalarType type = c.promoted_float({0, 1});
  c.give(c.as(0, type) / c.as_scalar_operand(1, type));
}

ir::Dim numel_of(Call& c, size_t i) { return c.arg(i).kind == Arg::Kind::Tensor ? numel(c.meta(i)) : 1; }

// Halves by halves: c10::div_floor_floating with each step rounded. fmod and floor of halves are halves.
Expr floor_div_of_halves(Call& c, ScalarType type, Expr a, Expr b) {
  const auto r = [&](Expr e) { return c.rounded(e, type); };
  const Expr mod = apply(Op::Fmod, a, b), quotient = r(a / b);
  const Expr exact = r(r(a - mod) / b);
  const Expr div = where((mod != 0.0) & ((b < 0.0) ^ (mod < 0.0)), r(exact - 1.0), exact);
  const Expr below = floor(div);
  const Expr result = where(r(div - below) > 0.5, r(below + 1.0), below);
  return where(b == 0.0, quotient, where(div == 0.0, copysign(number(a, 0), quotient), result));
}

void floor_div(Call& c) {
  const ScalarType type = c.promoted({0, 1});
  if (is_half(type) && numel_of(c, 1) != 1) return c.give(floor_div_of_halves(c, type, c.as(0, type), c.as(1, type)));
  c.give(apply(Op::FloorDiv, c.as(0, type), checked(c.as_scalar_operand(1, type))));
}

void div_mode(Call& c) {
  if (!c.has(2)) return true_div(c);
  const std::string mode = c.text(2);
  if (mode == "floor") return floor_div(c);
  if (mode != "trunc") throw NotLowered{};
  const ScalarType type = c.promoted({0, 1});
  const Expr quotient = c.as(0, type) / checked(c.as_scalar_operand(1, type));
  if (!quotient.floating()) return c.give(quotient);
  // A half quotient is rounded before it is cut, unless the divisor is one number.
  c.give(trunc(numel_of(c, 1) == 1 ? quotient : c.rounded(quotient, type)));
}

template <Op op>
Expr modulo(Expr a, Expr b) {
  return apply(op, a, checked(b));
}

Expr larger(Expr a, Expr b) { return a.boolean() ? a | b : max(a, b); }
Expr smaller(Expr a, Expr b) { return a.boolean() ? a & b : min(a, b); }

// Of two zeros eager's vector loop takes the second operand, its scalar loop the first.
template <auto F>
void maximum_or_minimum(Call& c) {
  const ScalarType type = c.promoted({0, 1});
  const bool swapped = !is_integral(type) && in_scalar_loop(c, {0, 1}, type);
  c.give(F(c.as(swapped ? 1 : 0, type), c.as(swapped ? 0 : 1, type)));
}

// Of two zeros eager's kernels take the first operand, that of bfloat16 the second.
template <Op op, auto F>
void fmax_or_fmin(Call& c) {
  const ScalarType type = c.promoted({0, 1});
  const bool swapped = type == ScalarType::BFloat16;
  const Expr a = c.as(swapped ? 1 : 0, type), b = c.as(swapped ? 0 : 1, type);
  c.give(a.floating() ? apply(op, a, b) : F(a, b));
}

Expr heaviside(Expr x, Expr at_zero) { return where(x == 0.0, at_zero, where(x > 0.0, number(x, 1), number(x, 0))); }

Expr logaddexp(Expr a, Expr b) {  // BinaryOpsKernel.cpp: infinities of one sign stay as they are
  return where((abs(a) == kInf) & (a == b), a, max(a, b) + log1p(exp(-abs(a - b))));
}

Expr logaddexp2(Expr a, Expr b) {
  const Expr inverse = number(a, 1.0 / std::numbers::ln2);
  return where((abs(a) == kInf) & (a == b), a, max(a, b) + log1p(exp2(-abs(a - b))) * inverse);
}

// x * log(y) is rounded after each step in eager's half kernels.
void xlogy(Call& c) {
  const ScalarType type = c.promoted_float({0, 1});
  const Expr x = c.as(0, type), y = c.as(1, type);
  c.give(where(isnan(y), y, where(x == 0.0, 0.0, x * c.rounded(log(y), type))));
}
void xlog1py(Call& c) {
  const ScalarType type = c.promoted_float({0, 1});
  const Expr x = c.as(0, type), y = c.as(1, type);
  c.give(where(isnan(y), y, where(x == 0.0, 0.0, x * c.rounded(log1p(y), type))));
}

// ---- powers (Pow.cpp, cpu/PowKernel.cpp) ----

Expr integer_power(Expr base, uint64_t exponent) {  // wrapping products in any order are equal
  Expr result = number(base, 1);
  bool first = true;
  for (; exponent; exponent >>= 1, base = base * base) {
    if (exponent & 1) {
      result = first ? base : result * base;
      first = false;
    }
    if (exponent == 1) break;
  }
  return result;
}

void pow_scalar(Call& c) {
  const ScalarType type = c.promoted({0, 1});
  const Expr x = c.as(0, type);
  const auto exponent = c.known(1);
  if (!exponent) throw NotLowered{};  // the formula depends on its value
  const double e = *exponent;
  if (e == 0) return c.give(number(x, 1));
  if (e == 1) return c.give(x);
  if (is_integral(type)) {
    if (x.boolean() || e < 0 || e > 64) throw NotLowered{};
    return c.give(integer_power(x, static_cast<uint64_t>(e)));
  }
  const bool f16 = type == ScalarType::Half;  // its kernel works in f32 and has no special roots
  if (e == 0.5 && !f16) return c.give(sqrt(x));
  if (e == -0.5 && !f16) return c.give(rsqrt(x));
  if (e == -1) return c.give(1.0 / x);
  const Expr square = f16 ? x * x : c.rounded(x * x, type);
  if (e == 2) return c.give(square);
  if (e == 3) return c.give(square * x);
  if (e == -2) return c.give(1.0 / square);
  c.give(pow(x, c.as(1, type)));
}

void pow_tensor(Call& c) {
  const ScalarType type = c.promoted({0, 1});
  if (is_integral(type)) throw NotLowered{};
  c.give(pow(c.as(0, type), c.as(1, type)));
}

// (Scalar, Tensor), and by the same name the functional form of pow_.Scalar: (Tensor, Scalar).
void pow_of_scalar(Call& c) { c.arg(0).kind == Arg::Kind::Tensor ? pow_scalar(c) : pow_tensor(c); }

// ---- bits ----

template <Op op>
void bitwise(Call& c) {
  const ScalarType type = c.promoted({0, 1});
  c.give(apply(op, c.as(0, type), c.as(1, type)));
}

#define ARITHMETIC(name, ...) lowered("aten::" name, row<arithmetic<__VA_ARGS__>>)
#define FLOATING(name, ...) lowered("aten::" name, row<float_binary<__VA_ARGS__>>)
#define ROW(name, ...) lowered("aten::" name, row<__VA_ARGS__>)
#define BITS(name, op) ROW(name ".Tensor", bitwise<op>), ROW(name ".Scalar", bitwise<op>)

constexpr LowerRow kRows[] = {
    ROW("add.Tensor", add),
    ROW("add.Scalar", add),
    ROW("sub.Tensor", sub),
    ROW("sub.Scalar", sub),
    ROW("rsub.Tensor", rsub),
    ROW("rsub.Scalar", rsub),
    ROW("mul.Tensor", mul),
    ROW("mul.Scalar", mul),
    ROW("div.Tensor", true_div),
    ROW("div.Scalar", true_div),
    ROW("div.Tensor_mode", div_mode),
    ROW("div.Scalar_mode", div_mode),
    ROW("floor_divide", floor_div),
    ROW("floor_divide.Scalar", floor_div),
    ARITHMETIC("remainder.Tensor", modulo<Op::Remainder>),
    ARITHMETIC("remainder.Scalar", modulo<Op::Remainder>),
    ARITHMETIC("remainder.Scalar_Tensor", modulo<Op::Remainder>),
    ARITHMETIC("fmod.Tensor", modulo<Op::Fmod>),
    ARITHMETIC("fmod.Scalar", modulo<Op::Fmod>),
    ROW("maximum", maximum_or_minimum<larger>),
    ROW("minimum", maximum_or_minimum<smaller>),
    ROW("fmax", fmax_or_fmin<Op::FMax, larger>),
    ROW("fmin", fmax_or_fmin<Op::FMin, smaller>),
    ARITHMETIC("hypot", [](Expr a, Expr b) { return apply(Op::Hypot, a, b); }),
    ARITHMETIC("heaviside", heaviside),
    FLOATING("atan2", [](Expr a, Expr b) { return apply(Op::Atan2, a, b); }),
    FLOATING("copysign.Tensor", [](Expr a, Expr b) { return copysign(a, b); }),
    FLOATING("copysign.Scalar", [](Expr a, Expr b) { return copysign(a, b); }),
    FLOATING("logaddexp", logaddexp),
    FLOATING("logaddexp2", logaddexp2),
    ROW("xlogy.Tensor", xlogy),
    ROW("xlogy.Scalar_Self", xlogy),
    ROW("xlogy.Scalar_Other", xlogy),
    ROW("special_xlog1py", xlog1py),
    ROW("special_xlog1py.self_scalar", xlog1py),
    ROW("special_xlog1py.other_scalar", xlog1py),
    ROW("pow.Tensor_Scalar", pow_scalar),
    ROW("pow.Tensor_Tensor", pow_tensor),
    ROW("pow.Scalar", pow_of_scalar),
    BITS("bitwise_and", Op::And),
    ROW("bitwise_and.Scalar_Tensor", bitwise<Op::And>),
    BITS("bitwise_or", Op::Or),
    ROW("bitwise_or.Scalar_Tensor", bitwise<Op::Or>),
    BITS("bitwise_xor", Op::Xor),
    ROW("bitwise_xor.Scalar_Tensor", bitwise<Op::Xor>),
    ROW("bitwise_left_shift.Tensor", bitwise<Op::Shl>),
    ROW("bitwise_left_shift.Tensor_Scalar", bitwise<Op::Shl>),
    ROW("bitwise_left_shift.Scalar_Tensor", bitwise<Op::Shl>),
    ROW("bitwise_right_shift.Tensor", bitwise<Op::Shr>),
    ROW("bitwise_right_shift.Tensor_Scalar", bitwise<Op::Shr>),
    ROW("bitwise_right_shift.Scalar_Tensor", bitwise<Op::Shr>),
    BITS("__lshift__", Op::Shl),
    BITS("__rshift__", Op::Shr),
};

}  // namespace

std::span<const LowerRow> binary_rows() { return kRows; }

}  // namespace fastjit::capture
