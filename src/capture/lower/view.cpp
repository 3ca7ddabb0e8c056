// Views: index maps without arithmetic. Whether a result aliases its operand is the caller's business; a row gives the
// value.
#include <algorithm>

#include "capture/lower/regions.h"
#include "ir/strided.h"

namespace fastjit::capture {
namespace {

using Sizes = std::vector<int64_t>;

void give_view(Call& c, Expr x, ir::IndexMap map, Shape sizes) {
  c.give_node(c.graph.view(x.id, std::move(map), std::move(sizes)));
}

// (self, the arguments that name the region)
template <auto F>
void region(Call& c) {
  const Expr x = c.node(0);
  c.give(at(x, F(c, sizes_of(x), 1)));
}

void permuted(Call& c, const Sizes& order) {
  const Expr x = c.node(0);
  c.give(at(x, permutation(sizes_of(x), order)));
}

Sizes identity_order(int64_t rank) {
  Sizes order(static_cast<size_t>(rank));
  for (size_t k = 0; k < order.size(); ++k) order[k] = static_cast<int64_t>(k);
  return order;
}

void permute(Call& c) {
  Sizes order = c.integers(1);
  if (static_cast<int64_t>(order.size()) != c.rank(0)) throw NotLowered{};
  for (int64_t& dim : order) dim = wrap_dim(dim, c.rank(0));
  permuted(c, order);
}

void transpose(Call& c) {
  Sizes order = identity_order(c.rank(0));
  if (order.empty()) return c.give(c.node(0));
  std::swap(order[c.dim(1)], order[c.dim(2)]);
  permuted(c, order);
}

void reversed(Call& c) {  // t, numpy_T
  Sizes order = identity_order(c.rank(0));
  std::ranges::reverse(order);
  permuted(c, order);
}

void narrow(Call& c) {
  const Expr x = c.node(0);
  if (c.rank(0) == 0) throw NotLowered{};
  const auto dim = c.dim(1);
  ir::Dim start = c.size(2);
  if (start < 0) start += x.sizes()[dim];
  if (start < 0 || start + c.size(3) > x.sizes()[dim]) throw NotLowered{};
  c.give(at(x, part_of(sizes_of(x), dim, start, c.size(3))));
}

void expand(Call& c) {  // -1: the size that it has
  const Expr x = c.node(0);
  Shape sizes = c.shape(1);
  const size_t rank = x.sizes().size();
  if (sizes.size() < rank) throw NotLowered{};
  for (size_t k = 0; k < rank; ++k)
    if (ir::Dim& size = sizes[sizes.size() - rank + k]; size == -1) size = x.sizes()[k];
  c.give_node(c.graph.expand(x.id, std::move(sizes)));
}
void expand_as(Call& c) { c.give_node(c.graph.expand(c.node(0).id, c.sizes(1))); }

// The same elements in row-major order.
void reshape_to(Call& c, Shape sizes) {
  if (c.result().dtype != c.meta(0).dtype) throw NotLowered{};
  c.give_node(c.graph.reshape(c.node(0).id, std::move(sizes)));
}

// -1 stands for what is left of `count` elements.
Shape with_rest(Shape sizes, ir::Dim count) {
  const auto rest = std::ranges::find_if(sizes, [](ir::Dim size) { return size == -1; }) - sizes.begin();
  if (rest == std::ssize(sizes)) return sizes;
  ir::Dim others = 1;
  for (std::ptrdiff_t d = 0; d < std::ssize(sizes); ++d)
    if (d != rest) others *= sizes[static_cast<size_t>(d)];
  if (others == 0) throw NotLowered{};
  sizes[static_cast<size_t>(rest)] = count / others;
  return sizes;
}

void reshaped(Call& c) { reshape_to(c, with_rest(c.shape(1), numel(c.meta(0)))); }
void reshaped_as(Call& c) { reshape_to(c, c.sizes(1)); }
void resized_by_one(Call& c) { reshape_to(c, c.sizes_like(c.node(0))); }  // squeeze, unsqueeze

void flatten(Call& c) {
  if (c.rank(0) == 0) return reshape_to(c, {1});
  const Shape from = c.sizes(0);
  const auto first = c.dim(1), last = c.dim(2);
  if (first > last) throw NotLowered{};
  Shape to(from.begin(), from.begin() + static_cast<ptrdiff_t>(first) + 1);
  for (size_t k = first + 1; k <= last; ++k) to.back() *= from[k];
  to.insert(to.end(), from.begin() + static_cast<ptrdiff_t>(last) + 1, from.end());
  reshape_to(c, std::move(to));
}

void unflatten(Call& c) {
  if (c.rank(0) == 0) throw NotLowered{};
  Shape to = c.sizes(0);
  const auto dim = static_cast<ptrdiff_t>(c.dim(1));
  const Shape parts = with_rest(c.shape(2), to[static_cast<size_t>(dim)]);
  to.erase(to.begin() + dim);
  to.insert(to.begin() + dim, parts.begin(), parts.end());
  reshape_to(c, std::move(to));
}

void flip(Call& c) {
  const Expr x = c.node(0);
  ir::IndexMap map = identity_map(x.sizes().size());
  if (c.rank(0) == 0) return c.give(x);
  for (int64_t dim : c.integers(1)) {
    const auto d = static_cast<size_t>(wrap_dim(dim, c.rank(0)));
    map.dims[d] = {x.sizes()[d] - 1, {{static_cast<uint8_t>(d), -1}}};
  }
  give_view(c, x, std::move(map), {x.sizes().begin(), x.sizes().end()});
}

// Of memory that begins with the tensor where an offset is given (see lies_in_its_tensor).
void as_strided(Call& c) {
  Shape sizes = c.shape(1);
  auto map = ir::strided_map(c.meta(0).layout(), sizes, c.shape(2), c.has(3) ? c.size(3) : ir::Dim(0));
  if (!map) throw NotLowered{};
  give_view(c, c.node(0), std::move(*map), std::move(sizes));
}

// ---- several results ----

void unbind(Call& c) {
  const Expr x = c.node(0);
  if (c.rank(0) == 0) throw NotLowered{};
  const auto dim = c.dim(1);
  const ir::Dim size = x.sizes()[dim];
  const int64_t count = c.are_walked() ? size.hint() : size.fixed();
  for (int64_t i = 0; i < count; ++i) {
    const Expr part = at(x, part_of(sizes_of(x), dim, c.are_walked() ? 0 : i, 1));
    Shape sizes(part.sizes().begin(), part.sizes().end());
    sizes.erase(sizes.begin() + static_cast<ptrdiff_t>(dim));
    c.give_node(c.graph.reshape(part.id, std::move(sizes)));
  }
}

// Parts of these sizes, one behind the other.
void parted(Call& c, size_t dim, const Shape& sizes) {
  const Expr x = c.node(0);
  ir::Dim start = 0;
  if (sizes.size() != c.result_count()) throw NotLowered{};
  for (const ir::Dim size : sizes) {
    c.give(at(x, part_of(sizes_of(x), dim, start, size)));
    start += size;
  }
}

// All of one size but for the last: how many there are is a guard.
void parted_evenly(Call& c, size_t dim, ir::Dim part) {
  const ir::Dim size = c.node(0).sizes()[dim];
  const auto count = static_cast<int64_t>(c.result_count());
  Shape sizes(c.result_count(), part);
  if (part < 1) {  // of no element: as many as eager made
    static_cast<void>(size.fixed());
    for (size_t k = 0; k < sizes.size(); ++k) sizes[k] = c.result(k).sizes[dim];
    return parted(c, dim, sizes);
  }
  if (ir::identical(part, 1)) static_cast<void>(size.fixed());
  const ir::Dim last = size - part * (count - 1);
  if (count < 1 || last < (count > 1 ? 1 : 0) || part < last) throw NotLowered{};
  sizes.back() = last;
  parted(c, dim, sizes);
}

void split(Call& c) {
  if (c.rank(0) == 0) throw NotLowered{};
  const size_t dim = c.dim(2);
  if (!c.are_walked()) return parted_evenly(c, dim, c.size(1));
  const Expr x = c.node(0);
  for (size_t i = 0; i < c.result_count(); ++i) c.give(at(x, part_of(sizes_of(x), dim, 0, 1)));  // as of unbind
}

void chunk(Call& c) {
  if (c.rank(0) == 0) throw NotLowered{};
  const size_t dim = c.dim(2);
  parted_evenly(c, dim, ir::divide_up(c.node(0).sizes()[dim], c.integer(1)));
}

void split_with_sizes(Call& c) {
  if (c.rank(0) == 0) throw NotLowered{};
  const size_t dim = c.dim(2);
  const Shape sizes = c.shape(1);
  ir::Dim sum = 0;
  for (const ir::Dim size : sizes) {
    if (size < 0) throw NotLowered{};
    sum += size;
  }
  if (sum != c.node(0).sizes()[dim]) throw NotLowered{};
  parted(c, dim, sizes);
}

#define ROW(name, ...) lowered("aten::" name, row<__VA_ARGS__>)

constexpr LowerRow kRows[] = {
    ROW("permute", permute),
    ROW("transpose.int", transpose),
    ROW("t", reversed),
    ROW("numpy_T", reversed),
    ROW("mT",
        [](Call& c) {
          Sizes order = identity_order(c.rank(0));
          if (order.size() < 2) throw NotLowered{};
          std::swap(order[order.size() - 1], order[order.size() - 2]);
          permuted(c, order);
        }),
    ROW("select.int", region<selected>),
    ROW("slice.Tensor", region<sliced>),
    ROW("narrow", narrow),
    ROW("as_strided", as_strided),
    ROW("expand", expand),
    ROW("expand_as", expand_as),
    ROW("broadcast_to", expand),
    ROW("view", reshaped),
    ROW("_unsafe_view", reshaped),
    ROW("_reshape_alias", reshaped),
    ROW("reshape", reshaped),
    ROW("view_as", reshaped_as),
    ROW("reshape_as", reshaped_as),
    ROW("flatten.using_ints", flatten),
    ROW("unflatten.int", unflatten),
    ROW("unsqueeze", resized_by_one),
    ROW("squeeze", resized_by_one),
    ROW("squeeze.dim", resized_by_one),
    ROW("squeeze.dims", resized_by_one),
    ROW("flip", flip),
    ROW("diagonal", region<on_diagonal>),
    ROW("unfold", region<windows>),
    ROW("unbind.int", unbind),
    ROW("split.Tensor", split),
    ROW("split_with_sizes", split_with_sizes),
    ROW("chunk", chunk),
    ROW("unsafe_split.Tensor", split),
    ROW("unsafe_split_with_sizes", split_with_sizes),
    ROW("unsafe_chunk", chunk),
    ROW("permute_copy", permute),
    ROW("transpose_copy.int", transpose),
    ROW("t_copy", reversed),
    ROW("select_copy.int", region<selected>),
    ROW("slice_copy.Tensor", region<sliced>),
    ROW("expand_copy", expand),
    ROW("view_copy", reshaped),
    ROW("unsqueeze_copy", resized_by_one),
    ROW("squeeze_copy", resized_by_one),
    ROW("squeeze_copy.dim", resized_by_one),
    ROW("squeeze_copy.dims", resized_by_one),
    ROW("diagonal_copy", region<on_diagonal>),
    ROW("unfold_copy", region<windows>),
    ROW("unbind_copy.int", unbind),
    ROW("split_copy.Tensor", split),
    ROW("split_with_sizes_copy", split_with_sizes),
    ROW("narrow_copy", narrow),
};

}  // namespace

std::span<const LowerRow> view_rows() { return kRows; }

}  // namespace fastjit::capture
