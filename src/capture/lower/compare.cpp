// Comparisons, logic, selection and clamping.
#include <cmath>

#include "capture/lower/eager_loop.h"

namespace fastjit::capture {
namespace {

template <auto F>
void compare(Call& c) {
  const ScalarType type = c.promoted({0, 1});
  c.give(F(c.as(0, type), c.as(1, type)));
}

Expr truth(Call& c, size_t i) {
  const ScalarType type = c.meta(i).dtype;
  return type == ScalarType::Bool ? c.node(i) : c.as(i, type) != 0.0;
}
template <Op op>
void logical(Call& c) {
  c.give(apply(op, truth(c, 0), truth(c, 1)));
}

Expr condition(Call& c, size_t i) {
  const ScalarType type = c.meta(i).dtype;
  if (type == ScalarType::Bool) return c.node(i);
  if (type == ScalarType::Byte) return c.node(i) != 0.0;  // where() still takes uint8 masks
  throw NotLowered{};
}

void where_self(Call& c) {
  const ScalarType type = c.promoted({1, 2});
  c.give(where(condition(c, 0), c.moved(1, type), c.moved(2, type)));
}

void masked_fill(Call& c) {
  const ScalarType type = c.meta(0).dtype;
  if (c.meta(1).dtype != ScalarType::Bool) throw NotLowered{};
  // torch takes the number out of a tensor, and raises if `type` has it not.
  if (c.arg(2).kind == Arg::Kind::Tensor && !c.known(2) && !holds_all_of(type, c.meta(2).dtype)) throw NotLowered{};
  c.give(where(c.node(1), c.moved(2, type), c.node(0)));
}

// A bound that is a number: NaN fills, NaN elements pass, and of two equal zeros the element's stays
// (vec::clamp in cpu/TensorCompareKernel.cpp).
Expr bounded(Expr x, Expr bound, bool below) {
  if (!x.floating()) return below ? max(x, bound) : min(x, bound);
  const auto known = constant_of(bound);
  if (known && std::isnan(*known)) return bound;
  Expr outside = below ? x < bound : x > bound;
  if (!known) outside = outside | isnan(bound);
  return where(outside, bound, x);
}

void clamp_numbers(Call& c, std::optional<size_t> low, std::optional<size_t> high) {
  if (low && !c.has(*low)) low.reset();
  if (high && !c.has(*high)) high.reset();
  const ScalarType type = low && high ? c.promoted({0, *low, *high})
                          : low       ? c.promoted({0, *low})
                          : high      ? c.promoted({0, *high})
                                      : c.promoted({0});
  Expr x = c.as(0, type);
  if (x.boolean()) throw NotLowered{};
  auto nan = [&](std::optional<size_t> at) { return at && std::isnan(c.known(*at).value_or(0)); };
  if (nan(low) || nan(high)) return c.give(number(x, NAN));
  if (low) x = bounded(x, c.as(*low, type), true);
  if (high) x = bounded(x, c.as(*high, type), false);
  c.give(x);
}
void clamp(Call& c) { clamp_numbers(c, 1, 2); }
void clamp_min(Call& c) { clamp_numbers(c, 1, std::nullopt); }
void clamp_max(Call& c) { clamp_numbers(c, std::nullopt, 1); }
void relu(Call& c) {  // clamp_min(self, 0): relu(-0.0) is -0.0
  const Expr x = c.as(0, c.meta(0).dtype);
  if (x.boolean()) throw NotLowered{};
  c.give(bounded(x, number(x, 0), true));
}

// A bound that is a tensor: NaN in any operand wins; of two zeros eager's vector loop takes the bound's, its scalar
// loop the element's.
Expr bounded_by(Expr x, Expr bound, bool below, bool in_scalars) {
  const Expr &first = in_scalars ? bound : x, &second = in_scalars ? x : bound;
  return below ? max(first, second) : min(first, second);
}

void clamp_tensors(Call& c) {
  const bool low = c.has(1), high = c.has(2);
  const ScalarType type = low && high ? c.promoted({0, 1, 2}) : low ? c.promoted({0, 1}) : c.promoted({0, 2});
  Expr x = c.as(0, type);
  if (x.boolean()) throw NotLowered{};
  const bool in_scalars = low && high ? in_scalar_loop(c, {0, 1, 2}, type)
                          : low       ? in_scalar_loop(c, {0, 1}, type)
                                      : in_scalar_loop(c, {0, 2}, type);
  if (low) x = bounded_by(x, c.as(1, type), true, in_scalars);
  if (high) x = bounded_by(x, c.as(2, type), false, in_scalars);
  c.give(x);
}
template <bool Below>
void clamp_tensor(Call& c) {
  const ScalarType type = c.promoted({0, 1});
  c.give(bounded_by(c.as(0, type), c.as(1, type), Below, in_scalar_loop(c, {0, 1}, type)));
}

#define COMPARE(name, symbol)                                                                  \
  lowered("aten::" name ".Tensor", row<compare<[](Expr a, Expr b) { return (a symbol b); }>>), \
      lowered("aten::" name ".Scalar", row<compare<[](Expr a, Expr b) { return (a symbol b); }>>)
#define ROW(name, ...) lowered("aten::" name, row<__VA_ARGS__>)

constexpr LowerRow kRows[] = {
    COMPARE("eq", ==),
    COMPARE("ne", !=),
    COMPARE("lt", <),
    COMPARE("le", <=),
    COMPARE("gt", >),
    COMPARE("ge", >=),
    ROW("logical_and", logical<Op::And>),
    ROW("logical_or", logical<Op::Or>),
    ROW("logical_xor", logical<Op::Xor>),
    ROW("where.self", where_self),
    ROW("where.ScalarOther", where_self),
    ROW("where.ScalarSelf", where_self),
    ROW("where.Scalar", where_self),
    ROW("masked_fill.Scalar", masked_fill),
    ROW("masked_fill.Tensor", masked_fill),
    ROW("clamp", clamp),
    ROW("clamp.Tensor", clamp_tensors),
    ROW("clamp_min", clamp_min),
    ROW("clamp_max", clamp_max),
    ROW("clamp_min.Tensor", clamp_tensor<true>),
    ROW("clamp_max.Tensor", clamp_tensor<false>),
    ROW("relu", relu),
    ROW("hardtanh", clamp),
};

}  // namespace

std::span<const LowerRow> compare_rows() { return kRows; }

}  // namespace fastjit::capture
