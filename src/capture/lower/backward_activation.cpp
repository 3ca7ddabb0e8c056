// Derivatives of activation functions, times the gradient (cpu/Activation.cpp, cpu/BinaryOpsKernel.cpp).
#include <limits>
#include <numbers>

#include "capture/lower/eager_loop.h"
#include "capture/lower/regions.h"

namespace fastjit::capture {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

ScalarType float_type(Call& c, std::initializer_list<size_t> tensors) {
  const ScalarType type = c.promoted(tensors);
  if (is_integral(type)) throw NotLowered{};
  return type;
}

// (gradient, operand or result of the function)
template <auto F>
void plain(Call& c) {
  const ScalarType type = float_type(c, {0, 1});
  c.give(F(c.as(0, type), c.as(1, type)));
}

Expr one(Expr like) { return number(like, 1); }
Expr one_less_square(Expr y) { return fma(-y, y, one(y)); }
Expr logistic(Expr x) { return 1.0 / (1.0 + exp(-x)); }

void sigmoid_backward(Call& c) {  // the kernel of f16 works in f16 step by step
  const ScalarType type = float_type(c, {0, 1}), step = type == ScalarType::Half ? type : ScalarType::Float;
  const Expr g = c.as(0, type), y = c.as(1, type);
  c.give(c.rounded(g * c.rounded(1.0 - y, step), step) * y);
}

Expr tanh_backward(Expr g, Expr y) { return g * one_less_square(y); }

Expr silu_backward(Expr g, Expr x) {
  const Expr s = logistic(x);
  return g * s * fma(x, 1.0 - s, one(x));
}

Expr mish_backward(Expr g, Expr x) {
  const Expr s = logistic(x), t = tanh(log1p(exp(x)));
  return g * fma(x * s, one_less_square(t), t);
}

// eager's constant is a float, also beside doubles
Expr hardsigmoid_backward(Expr g, Expr x) { return where((x > -3.0) & (x < 3.0), g * (1.0F / 6.0F), 0.0); }

Expr gelu_backward_of_erf(Expr g, Expr x) {
  const double beta = std::numbers::inv_sqrtpi * std::numbers::sqrt2 / 2;
  const Expr cdf = 0.5 * (1.0 + erf(x * (std::numbers::sqrt2 / 2))), pdf = beta * exp(x * x * -0.5);
  return g * fma(x, pdf, cdf);
}

Expr gelu_backward_of_tanh(Expr g, Expr x) {
  const double beta = std::numbers::sqrt2 * (2.0 * std::numbers::inv_sqrtpi) * 0.5;
  const Expr square = x * x, inner = tanh(beta * fma(number(x, 0.044715), square * x, x));
  const Expr left = 0.5 * x, right = 1.0 + inner;
  const Expr slope = beta * fma(3.0 * number(x, 0.044715), square, one(x));
  return g * fma(0.5 * one(x), right, left * one_less_square(inner) * slope);
}

void gelu_backward(Call& c) {
  if (c.text(2) == "none") return plain<gelu_backward_of_erf>(c);
  if (c.text(2) != "tanh") throw NotLowered{};
  plain<gelu_backward_of_tanh>(c);
}

void threshold_backward(Call& c) {
  const ScalarType type = c.promoted({0, 1});
  const Expr g = c.as(0, type), x = c.as(1, type);
  if (x.boolean()) throw NotLowered{};
  c.give(where(x <= c.opmath(2, type), 0.0, g));
}

// A comparison of x that decides; where x is NaN, eager's scalar loop takes the other side than its vector loop.
Expr decided(Call& c, size_t x, ScalarType type, Expr in_vectors, Expr in_scalars) {
  return in_scalar_loop(c, {0, x}, type) ? ~in_scalars : in_vectors;
}

void hardswish_backward(Call& c) {
  const ScalarType type = float_type(c, {0, 1});
  const Expr g = c.as(0, type), x = c.as(1, type);
  const Expr is_linear = decided(c, 1, type, x >= 3.0, x < 3.0);
  c.give(where(x <= -3.0, 0.0, where(is_linear, g, g * (x / 3.0 + 0.5))));
}

void shrink_backward(Call& c) {
  const ScalarType type = float_type(c, {0, 1});
  const Expr g = c.as(0, type), x = c.as(1, type), bound = c.as(2, type);
  c.give(where(decided(c, 1, type, (x < -bound) | (x > bound), (x >= -bound) & (x <= bound)), g, 0.0));
}

void hardtanh_backward(Call& c) {
  const ScalarType type = float_type(c, {0, 1});
  const Expr g = c.as(0, type), x = c.as(1, type), low = c.opmath(2, type), high = c.opmath(3, type);
  c.give(where(decided(c, 1, type, (x > low) & (x < high), (x <= low) | (x >= high)), g, 0.0));
}

// torch raises where a result does not tell its operand's sign, so that number is no run-time one.
void need_sign(Call& c, size_t number, bool is_result) {
  if (is_result && !(c.real(number) >= 0)) throw NotLowered{};
}

void leaky_relu_backward(Call& c) {
  const ScalarType type = float_type(c, {0, 1});
  need_sign(c, 2, c.flag(3));
  const Expr g = c.as(0, type), x = c.as(1, type);
  c.give(where(x > 0.0, g, g * c.opmath(2, type)));
}

void elu_backward(Call& c) {  // (gradient, alpha, scale, input_scale, is_result, operand or result)
  const ScalarType type = float_type(c, {0, 5});
  const bool is_result = c.flag(4);
  need_sign(c, 1, is_result);
  const Expr g = c.as(0, type), x = c.as(5, type);
  const Expr scale = c.opmath(2, type), inner = c.opmath(3, type), negative = c.opmath(1, type) * scale;
  const Expr below = is_result ? g * inner * (x + negative) : g * inner * negative * exp(x * inner);
  c.give(where(decided(c, 5, type, x > 0.0, x <= 0.0), g * scale, below));
}

void softplus_backward(Call& c) {
  const ScalarType type = float_type(c, {0, 1});
  const Expr g = c.as(0, type), x = c.as(1, type);
  const Expr scaled = x * c.opmath(2, type), z = exp(scaled);
  c.give(where(scaled > c.opmath(3, type), g, g * z / (z + 1.0)));
}

void log_sigmoid_backward(Call& c) {  // the buffer is exp(-abs(x))
  const ScalarType type = float_type(c, {0, 1});
  const Expr g = c.as(0, type), x = c.as(1, type), buffer = c.as(2, type);
  const Expr share = buffer / (1.0 + buffer), is_below = x < 0.0;
  c.give((where(is_below, number(x, 1), number(x, 0)) - where(is_below, number(x, 1), number(x, -1)) * share) * g);
}

void glu_backward(Call& c) {  // GatedLinearUnit.cpp: the sigmoid is rounded, and the halves of the result are parts
  const ScalarType type = float_type(c, {0, 1});
  const auto dim = static_cast<size_t>(wrap_dim(c.integer(2), c.rank(1)));
  const ir::Dim whole = c.sizes(1)[dim], size = whole / 2;
  if (size * 2 != whole) throw NotLowered{};
  const Expr g = c.as(0, type), x = c.as(1, type);
  const Expr a = at(x, part_of(sizes_of(x), dim, 0, size)),
             s = c.rounded(logistic(at(x, part_of(sizes_of(x), dim, size, size))), type);
  const Expr first = s * g, second = (1.0 - s) * s * a * g;
  c.give_node(c.graph.cat({first.id, second.id}, static_cast<int64_t>(dim)));
}

void logit_backward(Call& c) {  // each step is rounded
  const ScalarType type = float_type(c, {0, 1});
  const Expr g = c.as(0, type), x = c.as(1, type);
  auto r = [&](Expr e) { return c.rounded(e, type); };
  const bool is_clamped = c.has(2);
  const Expr low = is_clamped ? c.as(2, type) : number(x, 0), high = r(1.0 - low);
  const Expr inside = where((x == 0.0) | (x == 1.0), g * kInf, g / r(x * r(1.0 - x)));
  const Expr is_inside = decided(c, 1, type, (x >= low) & (x <= high), (x < low) | (x > high));
  c.give(where(is_inside, inside, number(x, is_clamped ? 0 : kNan)));
}

void prelu_backward(Call& c) {
  const ScalarType type = c.meta(1).dtype;
  if (is_integral(type) || c.meta(0).dtype != type || c.meta(2).dtype != type) throw NotLowered{};
  const Expr g = c.as(0, type), x = c.as(1, type), is_above = x > 0.0;
  c.give(where(is_above, g, c.as(2, type) * g));
  c.give(where(is_above, 0.0, x * g));
}

void dropout_backward(Call& c) {  // Dropout.cpp: grad * mask * scale, two operators
  const ScalarType type = c.promoted({0, 1}), scaled = c.result().dtype;
  const Expr g = c.as(0, type), mask = c.as(1, type);
  const Expr kept = g.boolean() ? g & mask : c.rounded(g * mask, type);
  c.give(cast(kept, compute_type(scaled)) * c.opmath(2, scaled));
}

#define PLAIN(name, f) lowered("aten::" name, row<plain<f>>)
#define ROW(name, ...) lowered("aten::" name, row<__VA_ARGS__>)

constexpr LowerRow kRows[] = {
    ROW("sigmoid_backward", sigmoid_backward),
    PLAIN("tanh_backward", tanh_backward),
    PLAIN("silu_backward", silu_backward),
    PLAIN("mish_backward", mish_backward),
    ROW("hardswish_backward", hardswish_backward),
    PLAIN("hardsigmoid_backward", hardsigmoid_backward),
    ROW("gelu_backward", gelu_backward),
    ROW("threshold_backward", threshold_backward),
    ROW("hardshrink_backward", shrink_backward),
    ROW("softshrink_backward", shrink_backward),
    ROW("hardtanh_backward", hardtanh_backward),
    ROW("leaky_relu_backward", leaky_relu_backward),
    ROW("elu_backward", elu_backward),
    ROW("softplus_backward", softplus_backward),
    ROW("log_sigmoid_backward", log_sigmoid_backward),
    ROW("glu_backward", glu_backward),
    ROW("logit_backward", logit_backward),
    ROW("_prelu_kernel_backward", prelu_backward),
    ROW("native_dropout_backward", dropout_backward),
};

}  // namespace

std::span<const LowerRow> backward_activation_rows() { return kRows; }

}  // namespace fastjit::capture
