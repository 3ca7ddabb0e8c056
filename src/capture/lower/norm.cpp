// Softmax and normalisation: reductions with the pointwise work around them.
#include <limits>

#include "capture/lower/reduce.h"

namespace fastjit::capture {
namespace {

using ir::ReduceKind;

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Softmax {
  Expr x, top, shifted, exponential, sum;  // the greatest and the sum keep their dim
};

Softmax softmax_parts(Call& c) {
  const ScalarType type = c.meta(0).dtype;
  if (is_integral(type) || numel(c.meta(0)) == 0) throw NotLowered{};
  const Expr x = c.as(0, type);
  Dims dims;
  if (c.rank(0) > 0) dims.push_back(static_cast<uint8_t>(wrap_dim(c.integer(1), c.rank(0))));
  const Expr top = keep(reduce(ReduceKind::Max, x, dims), x, dims);
  const Expr shifted = x - top, exponential = exp(shifted);
  return {x, top, shifted, exponential, keep(reduce(ReduceKind::Sum, exponential, dims), x, dims)};
}

void softmax(Call& c) {  // cpu/SoftMaxKernel.cpp
  if (c.flag(2)) throw NotLowered{};
  const Softmax s = softmax_parts(c);
  c.give(s.exponential / s.sum);
}

void log_softmax(Call& c) {  // (x - max) - log(sum): the other order loses digits of large inputs
  if (c.flag(2)) throw NotLowered{};
  const Softmax s = softmax_parts(c);
  c.give(s.shifted - log(s.sum));
}

// transformers/attention.cpp: nothing is attended to where all is masked.
void safe_softmax(Call& c) {
  if (c.has(2)) throw NotLowered{};
  const Softmax s = softmax_parts(c);
  c.give(where(s.top == -kInf, 0.0, s.exponential / s.sum));
}

// An optional affine parameter; it may be f32 beside a half input.
std::optional<Expr> parameter(Call& c, size_t i, Expr x) {
  if (!c.has(i)) return std::nullopt;
  const Expr value = c.as(i, c.meta(i).dtype);
  if (value.type() != x.type()) throw NotLowered{};
  return value;
}

Expr inverse_deviation(const Moments& m, ir::Dim count, Expr eps) {
  return 1.0 / sqrt(m.squares / number(m.squares, count) + eps);
}

void layer_norm(Call& c) {  // cpu/layer_norm_kernel.cpp: (x - mean) * rstd * gamma + beta
  const ScalarType type = c.meta(0).dtype;
  const Shape named = c.shape(1);
  const auto normalized = static_cast<int64_t>(named.size());
  if (is_integral(type) || numel(c.meta(0)) == 0) throw NotLowered{};
  const Expr x = c.as(0, type);
  if (!std::ranges::equal(named, x.sizes().last(named.size()))) throw NotLowered{};
  Dims dims;
  for (int64_t d = c.rank(0) - normalized; d < c.rank(0); ++d) dims.push_back(static_cast<uint8_t>(d));
  const Moments m = moments(x, dims);
  const Expr scale = inverse_deviation(m, count_of(x, dims), c.opmath(4, type));
  const Expr y = m.centred * keep(scale, x, dims);
  const auto gamma = parameter(c, 2, x), beta = parameter(c, 3, x);
  c.give(gamma && beta ? fma(y, *gamma, *beta) : gamma ? y * *gamma : beta ? y + *beta : y);
  c.give(shaped(m.mean, c.sizes_like(m.mean, 1)));
  c.give(shaped(scale, c.sizes_like(scale, 2)));
}

// A per-channel value against [N, C, ...].
Expr per_channel(Expr v, size_t rank) {
  Shape sizes(rank - 1, 1);
  sizes[0] = v.sizes()[0];
  return shaped(v, sizes);
}

void group_norm(Call& c) {  // (input, weight, bias, N, C, HxW, group, eps); cpu/group_norm_kernel.cpp
  const ScalarType type = c.meta(0).dtype;
  if (is_integral(type) || numel(c.meta(0)) == 0) throw NotLowered{};
  const int64_t groups = c.integer(6);
  const Expr x = c.as(0, type);
  const Shape sizes(x.sizes().begin(), x.sizes().end());
  const ir::Dim n = sizes[0], channels = sizes[1].fixed();
  ir::Dim plane = 1;
  for (size_t d = 2; d < sizes.size(); ++d) plane *= sizes[d];
  const Expr grouped = shaped(x, {n, groups, channels / groups, plane});
  const Dims dims{2, 3};
  const Moments m = moments(grouped, dims);
  const Expr rstd = inverse_deviation(m, count_of(grouped, dims), c.opmath(7, type));
  auto channel = [&](Expr v) { return shaped(v, {1, groups, channels / groups, 1}); };
  Expr scale = keep(rstd, grouped, dims);
  if (auto gamma = parameter(c, 1, x)) scale = scale * channel(*gamma);
  Expr shift = -(scale * keep(m.mean, grouped, dims));
  if (auto beta = parameter(c, 2, x)) shift = shift + channel(*beta);
  c.give(shaped(fma(grouped, scale, shift), sizes));
  c.give(shaped(m.mean, c.sizes_like(m.mean, 1)));
  c.give(shaped(rstd, c.sizes_like(rstd, 2)));
}

// In evaluation: (input, weight, bias, running_mean, running_var, training, momentum, eps); Normalization.cpp
void batch_norm_eval(Call& c, size_t eps_at) {
  const ScalarType type = c.meta(0).dtype;
  if (is_integral(type) || c.rank(0) < 2) throw NotLowered{};
  const auto rank = static_cast<size_t>(c.rank(0));
  const Expr x = c.as(0, type);
  const Expr mean = *parameter(c, 3, x), variance = *parameter(c, 4, x);
  Expr scale = 1.0 / sqrt(variance + c.opmath(eps_at, type));
  if (auto gamma = parameter(c, 1, x)) scale = scale * *gamma;
  Expr shift = -(mean * scale);
  if (auto beta = parameter(c, 2, x)) shift = fma(-mean, scale, *beta);
  c.give(fma(x, per_channel(scale, rank), per_channel(shift, rank)));
  for (size_t k = 1; k < c.result_count(); ++k) {  // the saved statistics are empty
    if (numel(c.result(k)) != 0) throw NotLowered{};
    c.give(cast({&c.graph, c.graph.constant_int(DType::I64, 0)}, compute_type(c.result(k).dtype)));
  }
}

// In training, of the same arguments: behind the results come the new running statistics, where there are some.
// Normalization.cpp: the variance that they take up is the unbiased one.
void batch_norm_train(Call& c) {
  const ScalarType type = c.meta(0).dtype;
  if (is_integral(type) || c.rank(0) < 2 || numel(c.meta(0)) == 0) throw NotLowered{};
  const bool renews = c.result_count() == 5;
  if (c.result_count() != 3 && !renews) throw NotLowered{};
  const auto rank = static_cast<size_t>(c.rank(0));
  const Expr x = c.as(0, type);
  const Dims dims = beside_channels(c.rank(0));
  const Moments m = moments(x, dims);
  const ir::Dim count = count_of(x, dims);
  const Expr rstd = inverse_deviation(m, count, c.opmath(7, type));
  const auto gamma = parameter(c, 1, x), beta = parameter(c, 2, x);
  const Expr scale = per_channel(gamma ? rstd * *gamma : rstd, rank);
  c.give(beta ? fma(m.centred, scale, per_channel(*beta, rank)) : m.centred * scale);
  c.give(m.mean);
  c.give(rstd);
  if (!renews) return;
  const Expr share = c.as(6, ScalarType::Double);
  const Expr taken = cast(share, x.type()), left = cast(1.0 - share, x.type());
  const auto renewed = [&](size_t i, Expr now) { c.give(now * taken + *parameter(c, i, x) * left); };
  renewed(3, m.mean);
  renewed(4, m.squares / number(m.squares, count - 1));
}

void batch_norm(Call& c) {
  if (c.flag(5)) return batch_norm_train(c);
  if (!c.has(3) || !c.has(4)) throw NotLowered{};
  batch_norm_eval(c, 7);
}
void batch_norm_no_training(Call& c) { batch_norm_eval(c, 6); }

#define ROW(name, ...) lowered("aten::" name, row<__VA_ARGS__>)

constexpr LowerRow kRows[] = {
    ROW("_softmax", softmax),
    ROW("_log_softmax", log_softmax),
    ROW("_safe_softmax", safe_softmax),
    ROW("native_layer_norm", layer_norm),
    ROW("native_group_norm", group_norm),
    ROW("native_batch_norm", batch_norm),
    ROW("batch_norm", batch_norm),
    ROW("_native_batch_norm_legit_no_training", batch_norm_no_training),
};

}  // namespace

std::span<const LowerRow> norm_rows() { return kRows; }

}  // namespace fastjit::capture
