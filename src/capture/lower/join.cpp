// Tensors put together from parts, and tensors made of indices and constants.
#include <algorithm>
#include <cmath>

#include "capture/lower/util.h"

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
  c.give_node(c.graph.cat(std::move(parts), wrap_dim(c.integer(1), static_cast<int64_t>(rank))));
}

void stack(Call& c) {
  const auto rank = static_cast<int64_t>(c.result().sizes.size());
  const int64_t dim = wrap_dim(c.integer(1), rank);
  Sizes sizes = c.result().sizes;
  sizes[static_cast<size_t>(dim)] = 1;
  std::vector<ir::NodeId> parts;
  for (const Value& value : tensors(c, 0)) parts.push_back(c.graph.reshape(part(c, value).id, sizes));
  c.give_node(c.graph.cat(std::move(parts), dim));
}

void repeat(Call& c) {
  const Expr x = c.node(0);
  const Sizes& out = c.result().sizes;
  const size_t lead = out.size() - x.sizes().size();
  Sizes from, to;
  for (size_t k = 0; k < out.size(); ++k) {
    const int64_t size = k < lead ? 1 : x.sizes()[k - lead];
    from.insert(from.end(), {1, size});
    to.insert(to.end(), {size ? out[k] / size : 0, size});
  }
  if (numel(c.result()) == 0) throw NotLowered{};
  const ir::NodeId spread = c.graph.expand(c.graph.reshape(x.id, from), to);
  c.give_node(c.graph.reshape(spread, out));
}

void roll(Call& c) {
  Expr x = c.node(0);
  const Sizes shifts = c.integers(1);
  Sizes dims = c.integers(2);
  const Sizes out = c.result().sizes;
  if (numel(c.result()) == 0) throw NotLowered{};
  if (dims.empty()) {
    x = {&c.graph, c.graph.reshape(x.id, {numel(c.result())})};
    dims = {0};
  }
  if (dims.size() != shifts.size()) throw NotLowered{};
  for (size_t i = 0; i < dims.size(); ++i) {
    const Sizes sizes(x.sizes().begin(), x.sizes().end());
    const int64_t dim = wrap_dim(dims[i], static_cast<int64_t>(sizes.size()));
    const auto d = static_cast<size_t>(dim);
    const int64_t size = sizes[d], start = ((size - shifts[i] % size) % size + size) % size;
    if (start == 0) continue;
    auto piece = [&](int64_t from, int64_t count) {
      ir::IndexMap map = identity_map(sizes.size());
      map.dims[d].offset = from;
      Sizes part_sizes = sizes;
      part_sizes[d] = count;
      return c.graph.view(x.id, std::move(map), std::move(part_sizes));
    };
    const ir::NodeId tail = piece(start, size - start), head = piece(0, start);
    x = {&c.graph, c.graph.cat({tail, head}, dim)};
  }
  c.give_node(c.graph.reshape(x.id, out));
}

// tril keeps column - row <= diagonal, triu the rest of the plane from `diagonal` on.
template <bool Lower>
void triangle(Call& c) {
  const Expr x = c.node(0);
  const auto rank = static_cast<int>(c.rank(0));
  if (rank < 2) throw NotLowered{};
  const Sizes plane(x.sizes().end() - 2, x.sizes().end());
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
void zeros(Call& c) { c.give(filled(c, 0)); }
void ones(Call& c) { c.give(filled(c, 1)); }
template <size_t ValueArg>
void full(Call& c) {
  c.give(c.moved(ValueArg, c.result().dtype));
}
void fill_tensor(Call& c) {
  if (!c.meta(1).sizes.empty()) throw NotLowered{};
  c.give(c.moved(1, c.meta(0).dtype));
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

// start + i * step. Eager adds up floats in its own way: only whole numbers that the type holds exactly are lowered.
template <int StartArg, size_t EndArg, int StepArg>
void arange(Call& c) {
  c.real(EndArg);  // the size was made of it
  const ScalarType type = c.result().dtype;
  if (c.result().sizes.size() != 1) throw NotLowered{};
  auto value = [&](int at, double otherwise) { return at < 0 ? otherwise : c.real(static_cast<size_t>(at)); };
  const double start = value(StartArg, 0), step = value(StepArg, 1);
  const double far = std::fabs(start) + std::fabs(step) * static_cast<double>(c.result().sizes[0]);
  if (start != std::floor(start) || step != std::floor(step) || far > exact_integers(type)) throw NotLowered{};
  const Expr index{&c.graph, c.graph.iota({c.result().sizes, {}}, 0)};
  auto whole = [&](double n) { return Expr{&c.graph, c.graph.constant_int(DType::I64, static_cast<int64_t>(n))}; };
  const Expr scaled = step == 1 ? index : index * whole(step);
  c.give(start == 0 ? scaled : scaled + whole(start));
}

void eye(Call& c) {
  if (c.result().sizes.size() != 2) throw NotLowered{};
  const Sizes plane = c.result().sizes;
  const Expr line{&c.graph, c.graph.iota({plane, {}}, 0)}, column{&c.graph, c.graph.iota({plane, {}}, 1)};
  c.give(cast(line == column, compute_type(c.result().dtype)));
}

#define ROW(name, ...) lowered("aten::" name, row<__VA_ARGS__>)

constexpr LowerRow kRows[] = {
    ROW("cat", cat),
    ROW("stack", stack),
    ROW("repeat", repeat),
    ROW("roll", roll),
    ROW("tril", triangle<true>),
    ROW("triu", triangle<false>),
    ROW("zeros_like", zeros),
    ROW("ones_like", ones),
    ROW("zeros", zeros),
    ROW("ones", ones),
    ROW("new_zeros", zeros),
    ROW("new_ones", ones),
    ROW("full", full<1>),
    ROW("full_like", full<1>),
    ROW("new_full", full<2>),
    ROW("scalar_tensor", full<0>),
    ROW("zero", zeros),
    ROW("fill.Scalar", full<1>),
    ROW("fill.Tensor", fill_tensor),
    ROW("arange", arange<-1, 0, -1>),
    ROW("arange.start", arange<0, 1, -1>),
    ROW("arange.start_step", arange<0, 1, 2>),
    ROW("eye", eye),
    ROW("eye.m", eye),
};

}  // namespace

std::span<const LowerRow> join_rows() { return kRows; }

}  // namespace fastjit::capture
