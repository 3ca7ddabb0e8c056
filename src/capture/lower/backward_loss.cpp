// Derivatives of losses, times the gradient (Loss.cpp, LossNLL.cpp, LossNLL2d.cpp and the kernels that they use).
#include "capture/lower/eager_loop.h"
#include "capture/lower/reduce.h"

namespace fastjit::capture {
namespace {

enum Reduction : int64_t { kNone = 0, kMean = 1 };

ScalarType float_type(Call& c) {
  const ScalarType type = c.promoted({0, 1, 2});
  if (is_integral(type)) throw NotLowered{};
  return type;
}

// `value`, under a mean over the elements of argument 1 divided by how many these are: a double, rounded once.
Expr share(Call& c, Expr like, size_t reduction_at, double value) {
  if (c.integer(reduction_at) != kMean) return number(like, value);
  const Expr whole{&c.graph, c.graph.constant(DType::F64, value)};
  const ir::Dim count = numel(c.meta(1));
  if (!count.is_symbolic()) return number(like, value / static_cast<double>(count.hint()));
  return cast(whole / number(whole, count), like.type());
}

void mse_loss_backward(Call& c) {  // each step is rounded
  const ScalarType type = float_type(c);
  auto r = [&](Expr e) { return c.rounded(e, type); };
  const Expr g = c.as(0, type), x = c.as(1, type), y = c.as(2, type);
  c.give(r(r(share(c, x, 3, 2)) * r(x - y)) * g);
}

// +-1 beyond `bound`, `inside` within; what is not a number is inside.
Expr slope(Expr difference, Expr bound, Expr inside) {
  const Expr sign = where(difference > 0.0, number(bound, 1), number(bound, -1));
  return where(abs(difference) >= bound, sign, inside);
}

void smooth_l1_loss_backward(Call& c) {
  const ScalarType type = float_type(c);
  const Expr g = c.as(0, type), difference = c.as(1, type) - c.as(2, type), beta = c.opmath(4, type);
  c.give(share(c, g, 3, 1) * slope(difference, beta, difference / beta) * g);
}

void huber_loss_backward(Call& c) {  // each step is rounded; in eager's scalar loop delta is not
  const ScalarType type = float_type(c);
  auto r = [&](Expr e) { return c.rounded(e, type); };
  const Expr g = c.as(0, type), difference = r(c.as(1, type) - c.as(2, type));
  const Expr delta = in_scalar_loop(c, {1, 2, 0}, type) ? c.opmath(4, type) : c.as(4, type);
  const Expr scale = r(share(c, g, 3, 1));
  const Expr beyond = r(r(where(difference > 0.0, scale, -scale) * g) * delta);
  c.give(where(abs(difference) >= delta, beyond, r(scale * difference) * g));
}

void binary_cross_entropy_backward(Call& c) {  // (gradient, x, target, weight, reduction); each step is rounded
  const ScalarType type = float_type(c);
  auto r = [&](Expr e) { return c.rounded(e, type); };
  const Expr g = c.as(0, type), x = c.as(1, type), y = c.as(2, type);
  const Expr least = r(number(x, 1e-12F));
  Expr out = r(r(g * r(x - y)) / max(r(r(1.0 - x) * x), least));
  if (c.has(3)) out = r(out * c.as(3, type));
  if (c.integer(4) == kMean) out = out / number(out, numel(c.meta(1)));
  c.give(out);
}

// ---- losses of classes: (gradient, input, target, weight, reduction, ignore_index, total_weight) ----

struct Classes {
  Expr is_target;  // of the input's sizes: this is the class, and not the ignored one
  Expr weight;
};

// `at` is the dim of the classes. The forward operator has seen that each target is one, or is ignored.
Classes classes(Call& c, size_t at, ScalarType type) {
  const Shape sizes = c.sizes(1);
  Shape targets = sizes;
  targets[at] = 1;
  const Expr target = shaped(cast(c.node(2), DType::I64), targets);
  const Expr index{&c.graph, c.graph.iota({sizes, {}}, static_cast<int>(at))};
  const Expr ignored = number(index, static_cast<double>(c.integer(5)));
  Expr weight = number(c.as(1, type), 1);
  if (c.has(3)) {
    Shape lone(sizes.size(), 1);
    lone[at] = sizes[at];
    weight = shaped(c.as(3, type), lone);
  }
  return {(index == target) & (target != ignored), weight};
}

// The gradient against the input's sizes: one for each target, or a lone one.
Expr spread_gradient(Call& c, size_t at, ScalarType type) {
  const Expr g = c.as(0, type);
  if (c.rank(0) == 0) return g;
  Shape sizes = c.sizes(1);
  sizes[at] = 1;
  return shaped(g, sizes);
}

template <bool Planes>
void nll_loss_backward(Call& c) {
  const ScalarType type = c.meta(1).dtype;
  if (is_integral(type) || numel(c.meta(1)) == 0) throw NotLowered{};
  const size_t at = Planes ? 1 : static_cast<size_t>(c.rank(1) - 1);
  const Classes k = classes(c, at, type);
  Expr g = spread_gradient(c, at, type);
  if (c.integer(4) == kMean) g = c.rounded(g / c.as(6, type), type);
  c.give(where(k.is_target, k.weight * -g, 0.0));
}

#define ROW(name, ...) lowered("aten::" name, row<__VA_ARGS__>)

constexpr LowerRow kRows[] = {
    ROW("mse_loss_backward", mse_loss_backward),
    ROW("smooth_l1_loss_backward", smooth_l1_loss_backward),
    ROW("huber_loss_backward", huber_loss_backward),
    ROW("binary_cross_entropy_backward", binary_cross_entropy_backward),
    ROW("nll_loss_backward", nll_loss_backward<false>),
    ROW("nll_loss2d_backward", nll_loss_backward<true>),
};

}  // namespace

std::span<const LowerRow> backward_loss_rows() { return kRows; }

}  // namespace fastjit::capture
