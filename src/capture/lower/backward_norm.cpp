// Derivatives of softmax and normalisation, times the gradient. Sums are taken of values that are centred already: what
// cancels in eager's sums over raw ones does not.
#include "capture/lower/reduce.h"

namespace fastjit::capture {
namespace {

using ir::ReduceKind;

ScalarType float_type(Call& c, size_t i) {
  const ScalarType type = c.meta(i).dtype;
  if (is_integral(type) || numel(c.meta(i)) == 0) throw NotLowered{};
  return type;
}

Expr sum(Expr x, const Dims& dims) { return reduce(ReduceKind::Sum, x, dims); }

// ---- softmax (cpu/SoftMaxKernel.cpp): (gradient, result, dim, type of the operand) ----

struct Softmax {
  Expr g, y;
  Dims dims;
};

Softmax softmax_parts(Call& c) {
  const ScalarType type = float_type(c, 0);
  if (c.result().dtype != type || c.meta(1).dtype != type) throw NotLowered{};
  Dims dims;
  if (c.rank(0) > 0) dims.push_back(static_cast<uint8_t>(wrap_dim(c.integer(2), c.rank(0))));
  return {c.as(0, type), c.as(1, type), dims};
}

void softmax_backward(Call& c) {
  const auto [g, y, dims] = softmax_parts(c);
  c.give((g - keep(sum(g * y, dims), g, dims)) * y);
}

void log_softmax_backward(Call& c) {
  const auto [g, y, dims] = softmax_parts(c);
  c.give(g - exp(y) * keep(sum(g, dims), g, dims));
}

// ---- normalisation ----

// Statistics and parameters may be f32 beside a half input.
Expr beside(Call& c, size_t i, Expr x) {
  const Expr value = c.as(i, c.meta(i).dtype);
  if (value.type() != x.type()) throw NotLowered{};
  return value;
}

// What the caller masked out is no tensor.
void give_or_none(Call& c, size_t k, Expr value) {
  if (c.result(k).dtype == ScalarType::Undefined) return c.give_none();
  c.give(shaped(value, c.sizes_like(value, k)));
}

// The gradient of an operand that was centred and scaled by rstd, both over the same `count` elements: `mean` is the
// mean of g over these, `dot` the sum of g * centred.
Expr through_statistics(Expr g, Expr mean, Expr centred, Expr dot, Expr rstd, ir::Dim count) {
  const Expr slope = dot * rstd * rstd / number(g, count);
  return g - mean - centred * slope;
}

void layer_norm_backward(Call& c) {  // (gradient, x, normalized_shape, mean, rstd, weight, bias, mask)
  const ScalarType type = float_type(c, 1);
  const auto named = static_cast<int64_t>(c.shape(2).size());
  const Expr g = c.as(0, type), x = c.as(1, type);
  Dims outer, inner;
  for (int64_t d = 0; d < c.rank(1); ++d) (d < c.rank(1) - named ? outer : inner).push_back(static_cast<uint8_t>(d));
  const Expr mean = keep(beside(c, 3, x), x, inner), rstd = keep(beside(c, 4, x), x, inner), centred = x - mean;
  const Expr scaled = c.has(5) ? g * beside(c, 5, x) : g;
  const ir::Dim count = count_of(x, inner);
  const Expr scaled_mean = keep(sum(scaled, inner), x, inner) / number(x, count);
  const Expr dot = keep(sum(scaled * centred, inner), x, inner);
  give_or_none(c, 0, through_statistics(scaled, scaled_mean, centred, dot, rstd, count) * rstd);
  give_or_none(c, 1, sum(g * (centred * rstd), outer));
  give_or_none(c, 2, sum(g, outer));
}

// Each plane is summed once; what groups, weights and biases need are sums of these sums.
void group_norm_backward(Call& c) {  // (gradient, x, mean, rstd, weight, N, C, HxW, groups, mask)
  const ScalarType type = float_type(c, 1);
  const int64_t groups = c.integer(8);
  const Shape sizes = c.sizes(1);
  const ir::Dim n = sizes[0], channels = sizes[1].fixed();
  ir::Dim plane = 1;
  for (size_t d = 2; d < sizes.size(); ++d) plane *= sizes[d];
  if (!(c.size(5) == n && c.size(6) == channels && c.size(7) == plane)) throw NotLowered{};
  const Shape grouped{n, groups, channels / groups, plane};
  const Expr g = shaped(c.as(0, type), grouped), x = shaped(c.as(1, type), grouped);
  auto statistic = [&](size_t i) { return shaped(beside(c, i, x), {n, groups, 1, 1}); };
  const Expr rstd = statistic(3), centred = x - statistic(2);
  const Expr plane_sum = keep(sum(g, {3}), x, {3}), plane_dot = keep(sum(g * centred, {3}), x, {3});
  auto weighted = [&](Expr v) { return c.has(4) ? v * shaped(beside(c, 4, x), {1, groups, channels / groups, 1}) : v; };
  auto of_group = [&](Expr v) { return keep(sum(weighted(v), {2}), v, {2}); };
  auto of_channel = [&](Expr v) { return shaped(sum(v, {0}), {channels}); };
  const ir::Dim count = plane * (channels / groups);
  const Expr mean = of_group(plane_sum) / number(x, count);
  const Expr dx = through_statistics(weighted(g), mean, centred, of_group(plane_dot), rstd, count) * rstd;
  give_or_none(c, 0, shaped(dx, sizes));
  give_or_none(c, 1, of_channel(plane_dot * rstd));
  give_or_none(c, 2, of_channel(plane_sum));
}

// Normalization.cpp: (gradient, x, weight, running_mean, running_var, save_mean, save_invstd, train, eps, mask)
void batch_norm_backward(Call& c) {
  const ScalarType type = float_type(c, 1);
  if (c.rank(1) < 2) throw NotLowered{};
  const bool training = c.flag(7);
  const Expr g = c.as(0, type), x = c.as(1, type);
  const Dims dims = beside_channels(c.rank(1));
  auto channel = [&](Expr v) { return keep(v, x, dims); };
  const Expr centred = x - channel(beside(c, training ? 5 : 3, x)), spread = beside(c, training ? 6 : 4, x);
  const Expr rstd = training ? spread : 1.0 / sqrt(spread + c.opmath(8, type));
  const Expr scale = channel(c.has(2) ? rstd * beside(c, 2, x) : rstd);
  const Expr total = sum(g, dims), dot = sum(g * centred, dims);
  const ir::Dim count = count_of(x, dims);
  const Expr mean = channel(total) / number(x, count);
  give_or_none(c, 0, (training ? through_statistics(g, mean, centred, channel(dot), channel(rstd), count) : g) * scale);
  give_or_none(c, 1, dot * rstd);
  give_or_none(c, 2, total);
}

#define ROW(name, ...) lowered("aten::" name, row<__VA_ARGS__>)

constexpr LowerRow kRows[] = {
    ROW("_softmax_backward_data", softmax_backward),        ROW("_log_softmax_backward_data", log_softmax_backward),
    ROW("native_layer_norm_backward", layer_norm_backward), ROW("native_group_norm_backward", group_norm_backward),
    ROW("native_batch_norm_backward", batch_norm_backward),
};

}  // namespace

std::span<const LowerRow> backward_norm_rows() { return kRows; }

}  // namespace fastjit::capture
