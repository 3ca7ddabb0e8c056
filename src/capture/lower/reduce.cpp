#include "capture/lower/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fastjit::capture {

using ir::ReduceKind;

Dims all_dims(int64_t rank) {
  Dims dims;
  for (int64_t d = 0; d < rank; ++d) dims.push_back(static_cast<uint8_t>(d));
  return dims;
}

Dims beside_channels(int64_t rank) {
  Dims dims{0};
  for (int64_t d = 2; d < rank; ++d) dims.push_back(static_cast<uint8_t>(d));
  return dims;
}

Dims reduced_dims(const Call& c, size_t i, int64_t rank) {
  if (!c.has(i)) return all_dims(rank);
  const std::vector<int64_t> named = c.integers(i);
  if (named.empty() || rank == 0) return all_dims(rank);
  Dims dims;
  for (int64_t dim : named) dims.push_back(static_cast<uint8_t>(wrap_dim(dim, rank)));
  std::ranges::sort(dims);
  return dims;
}

ir::Dim count_of(Expr x, const Dims& dims) {
  ir::Dim count = 1;
  for (uint8_t d : dims) count *= x.sizes()[d];
  return count;
}

DType sum_type(ScalarType type) {
  if (type == ScalarType::Bool) throw NotLowered{};
  return is_integral(type) ? DType::I64 : compute_type(type);
}

Expr reduce(ReduceKind kind, Expr x, const Dims& dims) {
  const bool index = ir::gives_position(kind);
  Expr out = x;
  if (!dims.empty() || index) out.id = x.graph->reduce(kind, x.id, dims, index ? DType::I64 : x.type());
  // A sum begins with 0: that of one -0.0 is 0.0.
  return kind == ReduceKind::Sum && x.floating() && count_of(x, dims) == 1 ? out + 0.0 : out;
}

Expr shaped(Expr x, const Shape& sizes) { return {x.graph, x.graph->reshape(x.id, sizes)}; }

Expr keep(Expr reduced, Expr operand, const Dims& dims) {
  Shape sizes(operand.sizes().begin(), operand.sizes().end());
  for (uint8_t d : dims) sizes[d] = 1;
  return shaped(reduced, sizes);
}

Moments moments(Expr x, const Dims& dims) {
  const Expr mean = reduce(ReduceKind::Sum, x, dims) / number(x, count_of(x, dims));
  const Expr centred = x - keep(mean, x, dims);
  return {mean, reduce(ReduceKind::Sum, centred * centred, dims), centred};
}

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

void give_shaped(Call& c, Expr x, size_t k = 0) { c.give(shaped(x, c.sizes_like(x, k))); }

// `dims_at`: which argument names the dims; none: all of them.
constexpr size_t kAll = 99;
Dims dims_of(const Call& c, size_t dims_at) {
  return dims_at == kAll ? all_dims(c.rank(0)) : reduced_dims(c, dims_at, c.rank(0));
}

// Values are converted to the result's type first, as sum(dtype=) does.
template <ReduceKind Kind, size_t DimsAt>
void total(Call& c) {
  const ScalarType type = c.result().dtype;
  const Expr x = cast(c.as(0, type), sum_type(type));
  give_shaped(c, reduce(Kind, x, dims_of(c, DimsAt)));
}

template <size_t DimsAt>
void nansum(Call& c) {
  const ScalarType type = c.result().dtype;
  Expr x = cast(c.as(0, type), sum_type(type));
  if (x.floating()) x = where(isnan(x), 0.0, x);
  give_shaped(c, reduce(ReduceKind::Sum, x, dims_of(c, DimsAt)));
}

template <size_t DimsAt>
void mean(Call& c) {  // ReduceOps.cpp: halves are summed and divided as f32, rounded once
  const ScalarType type = c.result().dtype;
  if (is_integral(type)) throw NotLowered{};
  const Dims dims = dims_of(c, DimsAt);
  const Expr x = c.as(0, type);
  give_shaped(c, reduce(ReduceKind::Sum, x, dims) / number(x, count_of(x, dims)));
}

Expr extreme(ReduceKind kind, Expr x, const Dims& dims) {
  if (x.boolean()) kind = kind == ReduceKind::Max ? ReduceKind::Any : ReduceKind::All;
  return reduce(kind, x, dims);
}

void need_elements(const Call& c, Expr x, const Dims& dims) {
  if (count_of(x, dims) == 0 || numel(c.meta(0)) == 0) throw NotLowered{};
}

template <ReduceKind Kind, size_t DimsAt>
void extremes(Call& c) {
  const Dims dims = dims_of(c, DimsAt);
  const Expr x = c.as(0, c.meta(0).dtype);
  need_elements(c, x, dims);
  give_shaped(c, extreme(Kind, x, dims));
}

template <ReduceKind Kind, ReduceKind Index>
void extreme_and_index(Call& c) {  // max.dim: the first NaN, else the first hit
  const Dims dims = dims_of(c, 1);
  Expr x = c.as(0, c.meta(0).dtype);
  need_elements(c, x, dims);
  if (x.boolean()) x = cast(x, DType::U8);
  if (dims.empty()) {
    c.give(x);
    return c.give(number({&c.graph, c.graph.constant_int(DType::I64, 0)}, 0));
  }
  give_shaped(c, reduce(Kind, x, dims));
  give_shaped(c, reduce(Index, x, dims), 1);
}

template <ReduceKind Kind>
void index_of(Call& c) {
  const Dims dims = dims_of(c, 1);
  const Expr x = c.as(0, c.meta(0).dtype);
  need_elements(c, x, dims);
  if (x.boolean()) throw NotLowered{};
  if (dims.empty()) return c.give(number({&c.graph, c.graph.constant_int(DType::I64, 0)}, 0));
  give_shaped(c, reduce(Kind, x, dims));
}

void aminmax(Call& c) {
  const Dims dims = dims_of(c, 1);
  const Expr x = c.as(0, c.meta(0).dtype);
  need_elements(c, x, dims);
  give_shaped(c, extreme(ReduceKind::Min, x, dims));
  give_shaped(c, extreme(ReduceKind::Max, x, dims), 1);
}

Expr truth(Call& c) {
  const Expr x = c.as(0, c.meta(0).dtype);
  return x.boolean() ? x : x != 0.0;
}

template <ReduceKind Kind, size_t DimsAt>
void question(Call& c) {
  give_shaped(c, reduce(Kind, truth(c), dims_of(c, DimsAt)));
}

template <size_t DimsAt>
void count_nonzero(Call& c) {
  give_shaped(c, reduce(ReduceKind::Sum, cast(truth(c), DType::I64), dims_of(c, DimsAt)));
}

void logsumexp(Call& c) {  // ReduceOps.cpp: an infinite maximum is not subtracted
  const ScalarType type = c.result().dtype;
  const Expr x = c.as(0, type);
  const Dims dims = dims_of(c, 1);
  need_elements(c, x, dims);
  const Expr top = reduce(ReduceKind::Max, x, dims);
  const Expr shift = where(abs(top) == kInf, 0.0, top);
  const Expr sum = reduce(ReduceKind::Sum, exp(x - keep(shift, x, dims)), dims);
  give_shaped(c, log(sum) + shift);
}

void vector_norm(Call& c, double order, size_t dims_at) {
  const ScalarType type = c.result().dtype;
  if (is_integral(type)) throw NotLowered{};
  const Expr x = c.as(0, type);
  const Dims dims = dims_of(c, dims_at);
  const bool is_whole = dims_at == kAll || !c.has(dims_at);
  if (count_of(x, dims) == 1 && (c.rank(0) > 0 || is_whole))  // ReduceOps.cpp: no powers, no roots
    return give_shaped(c, order == 0 ? cast(x != 0.0, x.type()) : abs(x));
  if (order == kInf || order == -kInf) {
    need_elements(c, x, dims);
    return give_shaped(c, reduce(order > 0 ? ReduceKind::Max : ReduceKind::Min, abs(x), dims));
  }
  if (order == 2) return give_shaped(c, sqrt(reduce(ReduceKind::Sum, x * x, dims)));
  if (std::fabs(order) > largest(ScalarType::Float)) throw NotLowered{};  // infinite in a narrower type
  if (order == 1) return give_shaped(c, reduce(ReduceKind::Sum, abs(x), dims));
  if (order == 0) return give_shaped(c, reduce(ReduceKind::Sum, cast(x != 0.0, x.type()), dims));
  const Expr sum = reduce(ReduceKind::Sum, pow(abs(x), number(x, order)), dims);
  give_shaped(c, pow(sum, number(x, 1.0 / order)));
}
void linalg_vector_norm(Call& c) { vector_norm(c, c.real(1), 2); }
template <size_t DimsAt>
void norm(Call& c) {
  vector_norm(c, c.has(1) ? c.real(1) : 2.0, DimsAt);
}

// var and std: SharedReduceOps.h divides by max(n - correction, 0); ReduceOps.cpp fills with NaN where n is 0.
template <bool Root, bool WithMean>
void give_spread(Call& c, const Dims& dims, double correction) {
  const ScalarType type = c.meta(0).dtype;
  if (is_integral(type)) throw NotLowered{};
  const Expr x = cast(c.as(0, type), DType::F64);  // cpu/ReduceOpsKernel.cpp: WelfordOps<scalar_t, double>
  const ir::Dim count = count_of(x, dims);
  const bool warns = !(static_cast<double>(count.hint()) - correction > 0);
  if (warns || count <= static_cast<int64_t>(std::floor(correction)))
    throw NotLowered{};  // torch warns, each time; NaN is a correction of its own
  const Moments m = moments(x, dims);
  const Expr variance =
      m.squares / (count == 0 ? number(x, std::numeric_limits<double>::quiet_NaN()) : number(x, count) - correction);
  give_shaped(c, Root ? sqrt(variance) : variance);
  if (WithMean) give_shaped(c, m.mean, 1);
}

// (dim, correction)
template <bool Root, bool WithMean>
void spread(Call& c) {
  give_spread<Root, WithMean>(c, dims_of(c, 1), c.has(2) ? c.real(2) : 1.0);
}

// The forms with `unbiased` call the kernel without another recorded operator, so they are rows of their own.
template <bool Root, bool WithMean, size_t DimsAt>
void unbiased_spread(Call& c) {
  give_spread<Root, WithMean>(c, dims_of(c, DimsAt), c.flag(DimsAt == kAll ? 1 : 2) ? 1.0 : 0.0);
}

// ---- losses (Loss.cpp, cpu/BinaryOpsKernel.cpp): the elements are rounded to their type before they are reduced ----

void reduced_loss(Call& c, size_t reduction_at, ScalarType type, Expr elements) {
  const int64_t reduction = c.integer(reduction_at);
  if (reduction == 0) return c.give(elements);
  const Expr x = c.rounded(elements, type);
  const Dims dims = all_dims(static_cast<int64_t>(x.sizes().size()));
  const Expr sum = reduce(ReduceKind::Sum, x, dims);
  c.give(reduction == 1 ? sum / number(x, count_of(x, dims)) : sum);
}

ScalarType loss_type(Call& c) {
  const ScalarType type = c.promoted({0, 1});
  if (is_integral(type)) throw NotLowered{};
  return type;
}

void mse_loss(Call& c) {
  const ScalarType type = loss_type(c);
  const Expr difference = c.rounded(c.as(0, type) - c.as(1, type), type);
  reduced_loss(c, 2, type, difference * difference);
}

// Two half kernels work in their own type step by step: smooth_l1_loss in f16, huber_loss in bf16.
void smooth_l1_loss(Call& c) {
  const ScalarType type = loss_type(c), step = type == ScalarType::Half ? type : ScalarType::Float;
  auto r = [&](Expr e) { return c.rounded(e, step); };
  const Expr z = r(abs(c.as(0, type) - c.as(1, type)));
  if (!(c.real(3) >= 0)) throw NotLowered{};  // torch raises, so it is no run-time number
  const Expr beta = step == type ? c.as(3, type) : c.opmath(3, type);
  reduced_loss(c, 2, type, where(z < beta, r(r(0.5 * z) * z) / beta, z - r(0.5 * beta)));
}

void huber_loss(Call& c) {
  const ScalarType type = loss_type(c), step = type == ScalarType::BFloat16 ? type : ScalarType::Float;
  auto r = [&](Expr e) { return c.rounded(e, step); };
  const Expr z = r(abs(c.as(0, type) - c.as(1, type)));
  if (!(c.real(3) > 0)) throw NotLowered{};  // torch raises, so it is no run-time number
  const Expr delta = step == type ? c.as(3, type) : c.opmath(3, type);
  reduced_loss(c, 2, type, where(z <= delta, r(0.5 * z) * z, delta * r(z - r(0.5 * delta))));
}

#define ROW(name, ...) lowered("aten::" name, row<__VA_ARGS__>)

constexpr LowerRow kRows[] = {
    ROW("sum", total<ReduceKind::Sum, kAll>),
    ROW("sum.dim_IntList", total<ReduceKind::Sum, 1>),
    ROW("nansum", nansum<1>),
    ROW("prod", total<ReduceKind::Prod, kAll>),
    ROW("prod.dim_int", total<ReduceKind::Prod, 1>),
    ROW("mean", mean<kAll>),
    ROW("mean.dim", mean<1>),
    ROW("amax", extremes<ReduceKind::Max, 1>),
    ROW("amin", extremes<ReduceKind::Min, 1>),
    ROW("max", extremes<ReduceKind::Max, kAll>),
    ROW("min", extremes<ReduceKind::Min, kAll>),
    ROW("max.dim", extreme_and_index<ReduceKind::Max, ReduceKind::ArgMax>),
    ROW("min.dim", extreme_and_index<ReduceKind::Min, ReduceKind::ArgMin>),
    ROW("argmax", index_of<ReduceKind::ArgMax>),
    ROW("argmin", index_of<ReduceKind::ArgMin>),
    ROW("aminmax", aminmax),
    ROW("any", question<ReduceKind::Any, kAll>),
    ROW("any.dim", question<ReduceKind::Any, 1>),
    ROW("any.dims", question<ReduceKind::Any, 1>),
    ROW("all", question<ReduceKind::All, kAll>),
    ROW("all.dim", question<ReduceKind::All, 1>),
    ROW("all.dims", question<ReduceKind::All, 1>),
    ROW("count_nonzero", count_nonzero<kAll>),
    ROW("count_nonzero.dim_IntList", count_nonzero<1>),
    ROW("logsumexp", logsumexp),
    ROW("linalg_vector_norm", linalg_vector_norm),
    ROW("norm.ScalarOpt_dim", norm<2>),
    ROW("norm.Scalar", norm<kAll>),
    ROW("norm.ScalarOpt_dim_dtype", norm<2>),
    ROW("norm.ScalarOpt_dtype", norm<kAll>),
    ROW("var.correction", spread<false, false>),
    ROW("std.correction", spread<true, false>),
    ROW("var_mean.correction", spread<false, true>),
    ROW("std_mean.correction", spread<true, true>),
    ROW("var", unbiased_spread<false, false, kAll>),
    ROW("var.dim", unbiased_spread<false, false, 1>),
    ROW("std", unbiased_spread<true, false, kAll>),
    ROW("std.dim", unbiased_spread<true, false, 1>),
    ROW("var_mean", unbiased_spread<false, true, kAll>),
    ROW("var_mean.dim", unbiased_spread<false, true, 1>),
    ROW("std_mean", unbiased_spread<true, true, kAll>),
    ROW("std_mean.dim", unbiased_spread<true, true, 1>),
    ROW("mse_loss", mse_loss),
    ROW("smooth_l1_loss", smooth_l1_loss),
    ROW("huber_loss", huber_loss),
};

}  // namespace

std::span<const LowerRow> reduce_rows() { return kRows; }

}  // namespace fastjit::capture
