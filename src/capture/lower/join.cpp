// Tensors put together from parts, and tensors made of indices and constants.
#include <algorithm>
#include <cmath>

#include "capture/lower/regions.h"

namespace fastjit::capture {
namespace {

using Sizes = std::vector<int64_t>;

const std::vector<Value>& tensors(Call& c, size_t i) {
  if (c.arg(i).kind != Arg::Kind::TensorList) throw NotLowered{};
  return c.arg(i).list;
}

// A list element in the result's type; halves stay halves.
Expr part(Call& c, const Value& value) {
  const auto type = to_ir(c.result().dtype);
  if (!type || value.node == ir::kNoNode) throw NotLowered{};
  return cast({&c.graph, value.node}, *type);
}

// A list with values of all rounds of a loop has as many as these are.
ir::NodeId joined(Call& c, std::vector<ir::NodeId> parts, int64_t dim) {
  const Arg& list = c.arg(0);
  if (!list.length.is_symbolic()) return c.graph.cat(std::move(parts), dim);
  const auto length_of = [&](ir::NodeId id) { return c.graph.sizes(id)[static_cast<size_t>(dim)]; };
  const ir::Dim each = length_of(parts[0]);
  const auto is_alike = [&](ir::NodeId id) { return ir::identical(length_of(id), each); };
  if (parts.size() != list.list.size() || !std::ranges::all_of(parts, is_alike)) throw NotLowered{};
  if (list.reversed && !ir::identical(each, 1)) throw NotLowered{};
  list.takes_length = true;
  if (!list.reversed) return c.graph.cat(std::move(parts), dim, list.length * each);
  std::ranges::reverse(parts);
  const ir::NodeId all = c.graph.cat(std::move(parts), dim, list.length);
  const std::span<const ir::Dim> sizes = c.graph.sizes(all);
  const std::vector<ir::Dim> shape(sizes.begin(), sizes.end());
  ir::IndexMap map = ir::identity_map(shape.size());
  const auto at = static_cast<size_t>(dim);
  map.dims[at] = {list.length - 1, {{static_cast<uint8_t>(dim), -1}}};
  return c.graph.with_strides(c.graph.view(all, std::move(map), shape), row_major(shape));
}

void cat(Call& c) {
  const size_t rank = c.result().sizes.size();
  if (rank == 0) throw NotLowered{};
  std::vector<ir::NodeId> parts;
  for (const Value& value : tensors(c, 0)) {
    if (value.meta->sizes.size() == 1 && value.meta->sizes[0] == 0 && rank != 1)
      continue;  // torch's legacy empty tensor
    parts.push_back(part(c, value).id);
  }
  if (parts.empty()) throw NotLowered{};
  c.give_node(joined(c, std::move(parts), wrap_dim(c.integer(1), static_cast<int64_t>(rank))));
}

void stack(Call& c) {
  const auto rank = static_cast<int64_t>(c.result().sizes.size());
  const int64_t dim = wrap_dim(c.integer(1), rank);
  std::vector<ir::NodeId> parts;
  for (const Value& value : tensors(c, 0)) {
    Shape sizes = value.meta->layout().sizes;
    sizes.insert(sizes.begin() + dim, 1);
    parts.push_back(c.graph.reshape(part(c, value).id, std::move(sizes)));
  }
  c.give_node(joined(c, std::move(parts), dim));
}

void repeat(Call& c) {
  const Expr x = c.node(0);
  const Shape times = c.shape(1);
  if (c10::multiply_integers(c.result().sizes) == 0 || times.size() < x.sizes().size()) throw NotLowered{};
  const size_t lead = times.size() - x.sizes().size();
  Shape from, to, out;
  for (size_t k = 0; k < times.size(); ++k) {
    const ir::Dim size = k < lead ? 1 : x.sizes()[k - lead];
    from.insert(from.end(), {1, size});
    to.insert(to.end(), {times[k], size});
    out.push_back(size * times[k]);
  }
  const ir::NodeId spread = c.graph.expand(c.graph.reshape(x.id, from), to);
  c.give_node(c.graph.reshape(spread, out));
}

// Which element comes first.
ir::Dim rolled_start(ir::Dim size, int64_t shift) {
  if (shift > 0 && size > shift) return size - shift;
  if (shift <= 0 && size > -shift) return -shift;
  const int64_t count = size.fixed();
  return ((count - shift % count) % count + count) % count;
}

void roll(Call& c) {
  Expr x = c.node(0);
  const Sizes shifts = c.integers(1);
  Sizes dims = c.integers(2);
  const Shape out = c.sizes(0);
  if (numel(c.meta(0)) == 0) throw NotLowered{};
  if (dims.empty()) {
    x = {&c.graph, c.graph.reshape(x.id, {numel(c.meta(0))})};
    dims = {0};
  }
  if (dims.size() != shifts.size()) throw NotLowered{};
  for (size_t i = 0; i < dims.size(); ++i) {
    const Shape sizes(x.sizes().begin(), x.sizes().end());
    const int64_t dim = wrap_dim(dims[i], static_cast<int64_t>(sizes.size()));
    const auto d = static_cast<size_t>(dim);
    const ir::Dim size = sizes[d], start = rolled_start(size, shifts[i]);
    if (start == 0) continue;
    const Expr tail = at(x, part_of(sizes, d, start, size - start)), head = at(x, part_of(sizes, d, 0, start));
    x = {&c.graph, c.graph.cat({tail.id, head.id}, dim)};
  }
  c.give_node(c.graph.reshape(x.id, out));
}

// (self, pads before and behind each dim, the last one first; negative ones take elements away)
void pad(Call& c, size_t value_at) {
  Expr x = c.node(0);
  const Shape pads = c.shape(1);
  const size_t rank = x.sizes().size();
  if (pads.size() % 2 != 0 || pads.size() / 2 > rank || numel(c.meta(0)) == 0) throw NotLowered{};
  const ScalarType type = c.meta(0).dtype;
  Shape whole = sizes_of(x), inner = whole;
  ir::IndexMap from = identity_map(rank), to = identity_map(rank);
  for (size_t i = 0; i < pads.size(); i += 2) {
    const size_t d = rank - 1 - i / 2;
    for (const ir::Dim count : {pads[i], pads[i + 1]}) {
      whole[d] += count;
      if (count < 0) inner[d] += count;
    }
    from.dims[d].offset = pads[i] < 0 ? -pads[i] : ir::Dim(0);
    to.dims[d].offset = pads[i] < 0 ? ir::Dim(0) : pads[i];
    if (inner[d] < 1) throw NotLowered{};
  }
  x = at(x, {from, inner});
  if (inner == whole) return c.give(x);
  const Expr value = c.has(value_at) ? c.moved(value_at, type) : convert(number(c.as(0, type), 0), x.type());
  c.give_node(c.graph.update(c.graph.expand(value.id, whole), x.id, to));
}

void constant_pad(Call& c) { pad(c, 2); }
void pad_by_mode(Call& c) {
  if (c.text(2) != "constant") throw NotLowered{};
  pad(c, 3);
}

// Of neighbours along a dim, of everything that is joined there.
void diff(Call& c) {
  const ScalarType type = c.result().dtype;
  if (c.integer(1) != 1 || type == ScalarType::Bool || is_half(type) || c.rank(0) == 0) throw NotLowered{};
  const size_t dim = c.dim(2);
  std::vector<ir::NodeId> parts;
  for (const size_t i : {size_t{3}, size_t{0}, size_t{4}})
    if (c.has(i)) parts.push_back(part(c, c.tensor(i)).id);
  const ir::NodeId x = parts.size() == 1 ? parts[0] : c.graph.cat(parts, static_cast<int64_t>(dim));
  Shape sizes(c.graph.sizes(x).begin(), c.graph.sizes(x).end());
  sizes[dim] -= 1;
  const auto from = [&](int64_t start) { return at({&c.graph, x}, part_of(sizes, dim, start, sizes[dim])); };
  c.give(from(1) - from(0));
}

// tril keeps column - row <= diagonal, triu the rest of the plane from `diagonal` on.
template <bool Lower>
void triangle(Call& c) {
  const Expr x = c.node(0);
  const auto rank = static_cast<int>(c.rank(0));
  if (rank < 2) throw NotLowered{};
  const Shape plane(x.sizes().end() - 2, x.sizes().end());
  const Expr line{&c.graph, c.graph.iota({plane, {}}, 0)}, column{&c.graph, c.graph.iota({plane, {}}, 1)};
  const Expr distance = column - line;
  const Expr bound = number(distance, static_cast<double>(c.integer(1)));
  const ScalarType type = c.meta(0).dtype;
  const Expr zero = convert(number(c.as(0, type), 0), x.type());
  c.give(where(Lower ? distance <= bound : distance >= bound, x, zero));
}

Expr filled(Call& c, double value) {
  const DType type = compute_type(c.result().dtype);
  return {&c.graph,
          ir::is_float(type) ? c.graph.constant(type, value) : c.graph.constant_int(type, static_cast<int64_t>(value))};
}

// One value for all elements: of the sizes that the operator was given, or of those of its argument.
void give_full(Call& c, Expr value, Shape sizes) { c.give({&c.graph, c.graph.expand(value.id, std::move(sizes))}); }
template <int Value, size_t SizesArg>
void fills(Call& c) {
  give_full(c, filled(c, Value), c.shape(SizesArg));
}
template <int Value>
void fills_like(Call& c) {
  give_full(c, filled(c, Value), c.sizes(0));
}
template <size_t ValueArg, size_t SizesArg>
void full(Call& c) {
  give_full(c, c.moved(ValueArg, c.result().dtype), c.shape(SizesArg));
}
void scalar(Call& c) { give_full(c, c.moved(0, c.result().dtype), {}); }
template <size_t ValueArg>
void full_like(Call& c) {
  give_full(c, c.moved(ValueArg, c.result().dtype), c.sizes(0));
}
void fill_tensor(Call& c) {
  if (!c.sizes(1).empty()) throw NotLowered{};
  give_full(c, c.moved(1, c.meta(0).dtype), c.sizes(0));
}

// Largest magnitude below which every integer is exact in a type.
double exact_integers(ScalarType type) {
  switch (type) {
    case ScalarType::BFloat16:
      return 0x1p8;
    case ScalarType::Half:
      return 0x1p11;
    case ScalarType::Float:
      return 0x1p24;
    default:
      return 0x1p53;
  }
}

// A number as it is known, or one that follows from sizes.
ir::Dim whole(Call& c, size_t i) {
  if (!c.arg(i).dims.empty()) return c.size(i);
  const double value = c.real(i);
  if (value != std::floor(value) || std::fabs(value) > exact_integers(ScalarType::Double)) throw NotLowered{};
  return static_cast<int64_t>(value);
}

// start + i * step. Eager adds up floats in its own way: only whole numbers that the type holds exactly are lowered.
template <int StartArg, size_t EndArg, int StepArg>
void arange(Call& c) {
  const ScalarType type = c.result().dtype;
  if (c.result().sizes.size() != 1) throw NotLowered{};
  const ir::Dim start = StartArg < 0 ? ir::Dim(0) : whole(c, static_cast<size_t>(StartArg));
  const int64_t step = StepArg < 0 ? 1 : whole(c, static_cast<size_t>(StepArg)).fixed();
  ir::Dim count = c.result().sizes[0];
  if (start.is_symbolic() || !c.arg(EndArg).dims.empty()) {
    if (step < 1) throw NotLowered{};
    count = (whole(c, EndArg) - start + (step - 1)) / step;
  } else {
    c.real(EndArg);  // the size was made of it
  }
  const auto limit = static_cast<int64_t>(exact_integers(type));
  if (start > limit || start < -limit || start + count * step > limit || start + count * step < -limit)
    throw NotLowered{};
  const Expr index{&c.graph, c.graph.iota({{count}, {}}, 0)};
  auto number_of = [&](ir::Dim n) { return Expr{&c.graph, c.graph.size(n)}; };
  const Expr scaled = step == 1 ? index : index * number_of(step);
  c.give(identical(start, 0) ? scaled : scaled + number_of(start));
}

template <size_t Args>
void eye(Call& c) {
  const Shape plane{c.size(0), c.size(Args - 1)};
  const Expr line{&c.graph, c.graph.iota({plane, {}}, 0)}, column{&c.graph, c.graph.iota({plane, {}}, 1)};
  c.give(cast(line == column, compute_type(c.result().dtype)));
}

#define ROW(name, ...) lowered("aten::" name, row<__VA_ARGS__>)

constexpr LowerRow kRows[] = {
    ROW("cat", cat),
    ROW("stack", stack),
    ROW("repeat", repeat),
    ROW("roll", roll),
    ROW("diff", diff),
    ROW("constant_pad_nd", constant_pad),
    ROW("pad", pad_by_mode),
    ROW("tril", triangle<true>),
    ROW("triu", triangle<false>),
    ROW("zeros_like", fills_like<0>),
    ROW("ones_like", fills_like<1>),
    ROW("zeros", fills<0, 0>),
    ROW("ones", fills<1, 0>),
    ROW("new_zeros", fills<0, 1>),
    ROW("new_ones", fills<1, 1>),
    ROW("full", full<1, 0>),
    ROW("full_like", full_like<1>),
    ROW("new_full", full<2, 1>),
    ROW("scalar_tensor", scalar),
    ROW("zero", fills_like<0>),
    ROW("fill.Scalar", full_like<1>),
    ROW("fill.Tensor", fill_tensor),
    ROW("arange", arange<-1, 0, -1>),
    ROW("arange.start", arange<0, 1, -1>),
    ROW("arange.start_step", arange<0, 1, 2>),
    ROW("eye", eye<1>),
    ROW("eye.m", eye<2>),
};

}  // namespace

std::span<const LowerRow> join_rows() { return kRows; }

}  // namespace fastjit::capture
