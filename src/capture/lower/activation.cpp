// Activation functions (cpu/Activation.cpp and the headers it uses) and operators of three tensors.
#include <numbers>

#include "capture/lower/eager_loop.h"
#include "capture/lower/regions.h"
#include "capture/ops/torch_release.h"

namespace fastjit::capture {
namespace {

ScalarType float_type(Call& c) {
  const ScalarType type = c.meta(0).dtype;
  if (is_integral(type)) throw NotLowered{};
  return type;
}

template <auto F>
void plain(Call& c) {
  c.give(F(c.as(0, float_type(c))));
}

void gelu(Call& c) {  // cpu/Gelu.h
  const Expr x = c.as(0, float_type(c));
  if (c.text(1) == "none") return c.give(x * 0.5 * (1.0 + erf(x * number(x, std::numbers::sqrt2 / 2))));
  if (c.text(1) != "tanh") throw NotLowered{};
  const double beta = std::numbers::sqrt2 * (2.0 * std::numbers::inv_sqrtpi) * 0.5;
  const Expr inner = beta * (x + 0.044715 * (x * x * x));
  c.give(0.5 * x * (1.0 + tanh(inner)));
}

Expr silu(Expr x) { return x / (1.0 + exp(-x)); }
Expr mish(Expr x) { return x * tanh(log1p(exp(x))); }
Expr relu6(Expr x) { return min(max(x + 3.0, 0.0), 6.0); }
Expr hardswish(Expr x) { return x * relu6(x) / 6.0; }
Expr hardsigmoid(Expr x) { return relu6(x) / 6.0; }

void hardshrink(Call& c) {
  const ScalarType type = float_type(c);
  const Expr x = c.as(0, type), bound = c.as(1, type);
  c.give(where((x >= -bound) & (x <= bound), 0.0, x));
}

// NaN stays NaN, the rest of the middle is +0, in eager's scalar loop a 0 of its own sign. Up to torch 2.13 the bound
// keeps its precision beside halves.
template <bool rounds_bound>
void softshrink(Call& c) {
  const ScalarType type = float_type(c);
  if (!(c.real(1) >= 0 && c.real(1) <= largest(type)))
    throw NotLowered{};  // torch raises, so the bound is no run-time number
  const Expr x = c.as(0, type), bound = rounds_bound ? c.as(1, type) : c.opmath(1, type);
  const Expr middle = in_scalar_loop(c, {0}, type) ? x * 0.0 : where(isnan(x), x, 0.0);
  c.give(where(x > bound, x - bound, where(x < -bound, x + bound, middle)));
}

void threshold(Call& c) {
  const ScalarType type = c.meta(0).dtype;
  const Expr x = c.as(0, type);
  if (x.boolean()) throw NotLowered{};
  c.give(where(x <= c.opmath(1, type), c.as(2, type), x));
}

void elu(Call& c) {  // cpu/Elu.h
  const ScalarType type = float_type(c);
  const Expr x = c.as(0, type), alpha = c.opmath(1, type), scale = c.opmath(2, type), inner = c.opmath(3, type);
  c.give(where(x < 0.0, expm1(x * inner) * (alpha * scale), x * scale));
}

void softplus(Call& c) {
  const ScalarType type = float_type(c);
  const Expr x = c.as(0, type), beta = c.opmath(1, type), limit = c.opmath(2, type);
  c.give(where(x * beta > limit, x, log1p(exp(x * beta)) / beta));
}

void leaky_relu(Call& c) {
  const ScalarType type = float_type(c);
  const Expr x = c.as(0, type);
  c.give(where(x > 0.0, x, x * c.opmath(1, type)));
}

void prelu(Call& c) {
  const ScalarType type = float_type(c);
  if (c.meta(1).dtype != type) throw NotLowered{};
  const Expr x = c.as(0, type);
  c.give(where(x > 0.0, x, c.as(1, type) * x));
}

void log_sigmoid(Call& c) {
  const Expr x = c.as(0, float_type(c));
  const Expr buffer = exp(-abs(x));
  c.give(min(x, 0.0) - log1p(buffer));
  c.give(buffer);
}

void glu(Call& c) {
  const ScalarType type = float_type(c);
  if (c.rank(0) == 0) throw NotLowered{};
  const auto dim = c.dim(1);
  const ir::Dim whole = c.sizes(0)[dim], size = whole / 2;
  if (size * 2 != whole) throw NotLowered{};
  auto part = [&](ir::Dim offset) {
    Value value = c.tensor(0);
    value.node = at(c.node(0), part_of(c.sizes(0), dim, offset, size)).id;
    return c.as(value, type);
  };
  const Expr a = part(0), b = part(size);
  c.give(a * (1.0 / (1.0 + exp(-b))));
}

// ---- three operands (cpu/PointwiseOpsKernel.cpp, cpu/LerpKernel.cpp): fused multiply-adds where eager has them ----

void addcmul(Call& c) {
  const ScalarType type = c.promoted({0, 1, 2});
  const Expr self = c.as(0, type), a = c.as(1, type), b = c.as(2, type);
  if (self.boolean()) throw NotLowered{};
  const Expr scaled = c.known(3) == 1.0 ? a : c.opmath(3, type) * a;
  c.give(self.floating() ? fma(scaled, b, self) : self + scaled * b);
}

void addcdiv(Call& c) {
  const ScalarType type = c.promoted({0, 1, 2});
  if (is_integral(type)) throw NotLowered{};
  c.give(c.as(0, type) + c.opmath(3, type) * c.as(1, type) / c.as(2, type));
}

void lerp(Call& c) {  // the nearer end is the base, so that both ends are exact; one fused multiply-add
  const ScalarType type = float_type(c);
  const Expr start = c.as(0, type), end = c.as(1, type), weight = c.opmath(2, type);
  const Expr small = abs(weight) < 0.5;
  c.give(fma(where(small, weight, weight - 1.0), end - start, where(small, start, end)));
}

#define PLAIN(name, expr) lowered("aten::" name, row<plain<[](Expr x) { return expr; }>>)
#define ROW(name, ...) lowered("aten::" name, row<__VA_ARGS__>)

constexpr LowerRow kRows[] = {
    PLAIN("silu", silu(x)),
    PLAIN("mish", mish(x)),
    PLAIN("hardswish", hardswish(x)),
    PLAIN("hardsigmoid", hardsigmoid(x)),
    ROW("gelu", gelu),
    ROW("hardshrink", hardshrink),
    ROW("softshrink", softshrink<since(2, 14)>),
    ROW("threshold", threshold),
    ROW("elu", elu),
    ROW("softplus", softplus),
    ROW("leaky_relu", leaky_relu),
    ROW("_prelu_kernel", prelu),
    ROW("log_sigmoid_forward", log_sigmoid),
    ROW("glu", glu),
    ROW("addcmul", addcmul),
    ROW("addcdiv", addcdiv),
    ROW("lerp.Scalar", lerp),
    ROW("lerp.Tensor", lerp),
};

}  // namespace

std::span<const LowerRow> activation_rows() { return kRows; }

}  // namespace fastjit::capture
