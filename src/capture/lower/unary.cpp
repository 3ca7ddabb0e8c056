// Operators of one tensor, element by element.
#include <limits>
#include <numbers>

#include "capture/lower/util.h"

namespace fastjit::capture {
namespace {

constexpr double kPi = std::numbers::pi;
constexpr double kInf = std::numeric_limits<double>::infinity();

// Integers become the default float type; halves are computed as f32 and rounded once.
template <auto F>
void float_unary(Call& c) {
  c.give(F(c.as(0, c.promoted_float({0}))));
}

// The result has the operand's type.
template <auto F>
void same_unary(Call& c) {
  c.give(F(c.as(0, c.meta(0).dtype)));
}

// A float function that leaves integers as they are (floor, ceil, round, trunc, frac of an integer type).
template <auto F>
void rounding_unary(Call& c) {
  const ScalarType type = c.meta(0).dtype;
  is_integral(type) ? c.give(c.node(0)) : c.give(F(c.as(0, type)));
}

void identity(Call& c) { c.give(c.node(0)); }

Expr truth(Expr x, bool value) { return {x.graph, x.graph->constant_int(DType::Bool, value)}; }

// A question whose answer for integers is `Integers`.
template <auto F, bool Integers>
void float_question(Call& c) {
  const ScalarType type = c.meta(0).dtype;
  const Expr x = c.as(0, type);
  c.give(is_integral(type) ? truth(x, Integers) : F(x));
}

Expr sign(Expr x) {  // UnaryOpsKernel.cpp: (0 < a) - (a < 0), so NaN gives 0
  if (x.boolean()) return x;
  return where(x > 0.0, number(x, 1), number(x, 0)) - where(x < 0.0, number(x, 1), number(x, 0));
}

Expr sinc(Expr x) {
  const Expr product = kPi * x;
  return where(x == 0.0, 1.0, sin(product) / product);
}

Expr angle(Expr x) { return where(isnan(x), x, where(x < 0.0, number(x, kPi), number(x, 0))); }

void entr(Call& c) {  // special_entr: -x log(x), 0 at 0, -inf below; halves round the logarithm
  const ScalarType type = c.promoted_float({0});
  const Expr x = c.as(0, type);
  const Expr inside = where(x == 0.0, number(x, 0), number(x, -kInf));
  c.give(where(isnan(x), x, where(x > 0.0, -x * c.rounded(log(x), type), inside)));
}

void logit(Call& c) {  // logit_kernel: log(x / (1 - x)), x clamped to [eps, 1 - eps] first
  const ScalarType type = c.promoted_float({0});
  Expr x = c.as(0, type);
  if (c.has(1)) {
    const Expr low = c.as(1, type), high = c.rounded(1.0 - low, type);
    x = where(x < low, low, where(x > high, high, x));
  }
  c.give(log(c.rounded(x / c.rounded(1.0 - x, type), type)));
}

void round_decimals(Call& c) {  // round_decimals_kernel: scales by a power of ten
  const ScalarType type = c.meta(0).dtype;
  if (is_integral(type)) throw NotLowered{};
  const int64_t decimals = c.integer(1);
  const Expr x = c.as(0, type);
  if (decimals == 0) return c.give(round(x));
  const Expr ten = number(x, std::pow(10.0, std::abs(decimals)));
  c.give(decimals > 0 ? round(x * ten) / ten : round(x / ten) * ten);
}

void nan_to_num(Call& c) {
  const ScalarType type = c.meta(0).dtype;
  if (is_integral(type)) return identity(c);
  const Expr x = c.as(0, type);
  const Expr nan = c.has(1) ? c.as(1, type) : number(x, 0);
  const Expr above = c.has(2) ? c.as(2, type) : number(x, largest(type));
  const Expr below = c.has(3) ? c.as(3, type) : number(x, -largest(type));
  c.give(where(isnan(x), nan, where(x == kInf, above, where(x == -kInf, below, x))));
}

void signbit_of(Call& c) {
  const ScalarType type = c.meta(0).dtype;
  const Expr x = c.as(0, type);
  c.give(!is_integral(type) ? signbit(x) : ir::is_signed(x.type()) ? x < 0.0 : truth(x, false));
}

void bitwise_not(Call& c) { c.give(~c.node(0)); }

void to_dtype(Call& c, size_t dtype_arg) {
  // Eager's conversion of a float out of an integer's range depends on the machine instruction used: left to eager's
  // own type conversion, which Convert is defined as.
  c.give(c.moved(0, c.has(dtype_arg) ? c.dtype(dtype_arg) : c.meta(0).dtype));
}
void to_copy(Call& c) { to_dtype(c, 1); }

#define FLOAT(name, expr) lowered("aten::" name, row<float_unary<[](Expr x) { return expr; }>>)
#define SAME(name, expr) lowered("aten::" name, row<same_unary<[](Expr x) { return expr; }>>)
#define ROUNDING(name, expr) lowered("aten::" name, row<rounding_unary<[](Expr x) { return expr; }>>)
#define QUESTION(name, integers, expr) \
  lowered("aten::" name, row<float_question<[](Expr x) { return expr; }, integers>>)

constexpr LowerRow kRows[] = {
    FLOAT("exp", exp(x)),
    FLOAT("exp2", exp2(x)),
    FLOAT("expm1", expm1(x)),
    FLOAT("log", log(x)),
    FLOAT("log2", log2(x)),
    FLOAT("log10", log10(x)),
    FLOAT("log1p", log1p(x)),
    FLOAT("sin", sin(x)),
    FLOAT("cos", cos(x)),
    FLOAT("tan", tan(x)),
    FLOAT("asin", asin(x)),
    FLOAT("acos", acos(x)),
    FLOAT("atan", atan(x)),
    FLOAT("sinh", sinh(x)),
    FLOAT("cosh", cosh(x)),
    FLOAT("tanh", tanh(x)),
    FLOAT("asinh", asinh(x)),
    FLOAT("acosh", acosh(x)),
    FLOAT("atanh", atanh(x)),
    FLOAT("erf", erf(x)),
    FLOAT("erfc", erfc(x)),
    FLOAT("erfinv", erfinv(x)),
    FLOAT("sigmoid", sigmoid(x)),
    FLOAT("sqrt", sqrt(x)),
    FLOAT("rsqrt", rsqrt(x)),
    FLOAT("reciprocal", 1.0 / x),
    FLOAT("sinc", sinc(x)),
    FLOAT("deg2rad", x* number(x, kPi / 180.0)),
    FLOAT("rad2deg", x* number(x, 180.0 / kPi)),
    FLOAT("angle", angle(x)),
    lowered("aten::special_entr", row<entr>),
    SAME("abs", ir::is_signed(x.type()) ? abs(x) : x),
    SAME("neg", -x),
    SAME("sign", sign(x)),
    SAME("sgn", sign(x)),
    ROUNDING("ceil", ceil(x)),
    ROUNDING("floor", floor(x)),
    ROUNDING("round", round(x)),
    ROUNDING("trunc", trunc(x)),
    ROUNDING("frac", x - trunc(x)),
    QUESTION("isnan", false, isnan(x)),
    QUESTION("isinf", false, abs(x) == kInf),
    QUESTION("isposinf", false, x == kInf),
    QUESTION("isneginf", false, x == -kInf),
    QUESTION("isfinite", true, abs(x) < kInf),
    SAME("logical_not", x == 0.0),
    SAME("isreal", truth(x, true)),
    lowered("aten::signbit", row<signbit_of>),
    lowered("aten::bitwise_not", row<bitwise_not>),
    lowered("aten::logit", row<logit>),
    lowered("aten::round.decimals", row<round_decimals>),
    lowered("aten::nan_to_num", row<nan_to_num>),
    lowered("aten::_to_copy", row<to_copy>),
    lowered("aten::clone", row<identity>),
    lowered("aten::alias", row<identity>),
    lowered("aten::detach", row<identity>),
    lowered("aten::contiguous", row<identity>),
    lowered("aten::positive", row<identity>),
    lowered("aten::lift_fresh", row<identity>),
    lowered("aten::alias_copy", row<identity>),
    lowered("aten::detach_copy", row<identity>),
    lowered("aten::_conj", row<identity>),
    lowered("aten::resolve_conj", row<identity>),
    lowered("aten::resolve_neg", row<identity>),
};

}  // namespace

std::span<const LowerRow> unary_rows() { return kRows; }

}  // namespace fastjit::capture
