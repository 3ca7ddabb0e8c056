// Derivatives of what reads a part of its operand: the gradient there, zeros elsewhere.
#include "capture/lower/reduce.h"
#include "capture/lower/regions.h"

namespace fastjit::capture {
namespace {

// (gradient, sizes of the operand, the arguments that name the region)
template <auto F>
void region_backward(Call& c) {
  const Expr g = c.node(0);
  const Shape whole = c.shape(1);
  if (numel(c.meta(0)) == 0) throw NotLowered{};
  c.give(among_zeros(g, whole, F(c, whole, 2)));
}

// (gradient, dim, index of the element that a reduction chose, sizes of the operand, keepdim)
void choice_backward(Call& c) {
  const Shape whole = c.shape(3);
  if (whole.empty()) return c.give(c.node(0));
  const auto dim = static_cast<size_t>(wrap_dim(c.integer(1), static_cast<int64_t>(whole.size())));
  Shape lone = whole;
  lone[dim] = 1;
  const Expr index{&c.graph, c.graph.iota({whole, {}}, static_cast<int>(dim))};
  const Expr g = shaped(c.node(0), lone);
  const Expr zero = convert(number(c.as(0, c.meta(0).dtype), 0), g.type());
  c.give(where(index == shaped(c.node(2), lone), g, zero));
}

#define ROW(name, ...) lowered("aten::" name, row<__VA_ARGS__>)

constexpr LowerRow kRows[] = {
    ROW("select_backward", region_backward<selected>),
    ROW("slice_backward", region_backward<sliced>),
    ROW("diagonal_backward", region_backward<on_diagonal>),
    ROW("value_selecting_reduction_backward", choice_backward),
};

}  // namespace

std::span<const LowerRow> backward_view_rows() { return kRows; }

}  // namespace fastjit::capture
