// Tensors indexed by tensors of ints. A kernel checks no index: only those that are in range in any call are lowered,
// and what torch would refuse, or count from the end, is torch's.
#include <algorithm>

#include "capture/lower/regions.h"

namespace fastjit::capture {
namespace {

/// The I64 index, which is in range along a dim of this size.
ir::NodeId index_of(Call& c, const Value& value, ir::Dim size) {
  if (value.node == ir::kNoNode || value.meta->dtype != ScalarType::Long) throw NotLowered{};
  const std::optional<ir::Dim> bound = c.index_bound(value.node);
  if (!bound || !is_within(*bound, size)) throw NotLowered{};
  return value.node;
}

// Where dims of size 1 lie says nothing.
void need_row_major(const Call& c) {
  const TensorMeta& meta = c.result();
  const std::vector<int64_t> strides = ir::row_major(meta.sizes);
  for (size_t d = 0; d < strides.size(); ++d)
    if (meta.sizes[d] > 1 && meta.strides[d] != strides[d]) throw NotLowered{};
}

void give_gather(Call& c, Expr table, ir::NodeId index, size_t dim) {
  need_row_major(c);
  c.give_node(c.graph.gather(table.id, index, dim));
}

void index_select(Call& c) {
  const Expr table = c.node(0);
  if (c.rank(0) == 0) throw NotLowered{};
  const size_t dim = c.dim(1);
  ir::NodeId index = index_of(c, c.tensor(2), table.sizes()[dim]);
  if (c.graph[index].rank == 0) index = c.graph.reshape(index, {1});
  give_gather(c, table, index, dim);
}

// (weight, indices, what only the gradient asks for)
void embedding(Call& c) {
  const Expr table = c.node(0);
  if (c.rank(0) != 2) throw NotLowered{};
  give_gather(c, table, index_of(c, c.tensor(1), table.sizes()[0]), 0);
}

// The dims from `first` on as one, and the place there of the elements that these indices name.
std::pair<Expr, ir::NodeId> flattened(Call& c, Expr table, size_t first, const std::vector<ir::NodeId>& indices) {
  Shape sizes = sizes_of(table);
  Expr place{&c.graph, indices[0]};
  for (size_t k = 1; k < indices.size(); ++k) {
    const ir::Dim size = sizes[first + 1];
    place = place * Expr{&c.graph, c.graph.size(size)} + Expr{&c.graph, indices[k]};
    sizes[first] *= size;
    sizes.erase(sizes.begin() + static_cast<std::ptrdiff_t>(first) + 1);
  }
  return {indices.size() == 1 ? table : Expr{&c.graph, c.graph.reshape(table.id, std::move(sizes))}, place.id};
}

// (self, an index or none for each of the first dims). Indices that lie side by side are broadcast, and their dims
// stand in the place of those that they index.
void index(Call& c) {
  const Expr table = c.node(0);
  if (c.arg(1).kind != Arg::Kind::TensorList) throw NotLowered{};
  const std::vector<Value>& list = c.arg(1).list;
  const auto is_given = [](const Value& value) { return value.meta->dtype != ScalarType::Undefined; };
  const auto begin = std::ranges::find_if(list, is_given);
  const auto end = std::find_if_not(begin, list.end(), is_given);
  if (begin == end || std::any_of(end, list.end(), is_given) || list.size() > table.sizes().size()) throw NotLowered{};
  const auto first = static_cast<size_t>(begin - list.begin());
  std::vector<ir::NodeId> indices;
  for (auto value = begin; value != end; ++value)
    indices.push_back(index_of(c, *value, table.sizes()[first + indices.size()]));
  const auto [flat, place] = flattened(c, table, first, indices);
  give_gather(c, flat, place, first);
}

// An index beyond its dim torch refuses where there are no elements to take, too.
#define ROW(name, ...) lowered("aten::" name, row<__VA_ARGS__, false>)

constexpr LowerRow kRows[] = {
    ROW("index.Tensor", index),
    ROW("index_select", index_select),
    ROW("embedding", embedding),
};

}  // namespace

std::span<const LowerRow> gather_rows() { return kRows; }

}  // namespace fastjit::capture
