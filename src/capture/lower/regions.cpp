#include "capture/lower/regions.h"

#include <algorithm>

namespace fastjit::capture {
namespace {

size_t dim_of(const Call& c, const Shape& from, size_t i) {
  if (from.empty()) throw NotLowered{};
  return static_cast<size_t>(wrap_dim(c.integer(i), static_cast<int64_t>(from.size())));
}

// `size` where the argument is absent or beyond every size.
ir::Dim bound(const Call& c, size_t i, ir::Dim otherwise, ir::Dim size) {
  constexpr int64_t kEnd = int64_t{1} << 62;
  if (!c.has(i)) return otherwise;
  ir::Dim index = c.size(i);
  if (index.hint() >= kEnd) return size;
  if (index < 0) index += size;
  if (index < 0) return 0;
  const ir::Dim least = ir::min(size, index);
  const bool is_known = ir::identical(least, size) || ir::identical(least, index);
  return is_known ? least : size < index ? size : index;
}

}  // namespace

Region selected(const Call& c, const Shape& from, size_t first) {
  const size_t dim = dim_of(c, from, first);
  ir::Dim index = c.size(first + 1);
  if (index < 0) index += from[dim];
  if (index < 0 || index >= from[dim]) throw NotLowered{};  // also where no element is read
  Region out;
  for (size_t k = 0; k < from.size(); ++k) {
    if (k == dim) {
      out.map.dims.push_back({index, {}});
      continue;
    }
    out.map.dims.push_back({0, {{static_cast<uint8_t>(out.sizes.size()), 1}}});
    out.sizes.push_back(from[k]);
  }
  return out;
}

Region sliced(const Call& c, const Shape& from, size_t first) {
  const size_t dim = dim_of(c, from, first);
  const ir::Dim size = from[dim];
  const int64_t step = c.integer(first + 3);
  if (step < 1) throw NotLowered{};
  const ir::Dim start = bound(c, first + 1, 0, size);
  ir::Dim end = bound(c, first + 2, size, size);
  if (end < start) end = start;
  return part_of(from, dim, start, (end - start + step - 1) / step, step);
}

Region on_diagonal(const Call& c, const Shape& from, size_t first) {
  const int64_t offset = c.integer(first);
  const size_t one = dim_of(c, from, first + 1), two = dim_of(c, from, first + 2);
  if (one == two) throw NotLowered{};
  Region out;
  for (size_t k = 0; k < from.size(); ++k)
    if (k != one && k != two) out.sizes.push_back(from[k]);
  const int64_t down = std::max<int64_t>(-offset, 0), right = std::max<int64_t>(offset, 0);
  out.sizes.emplace_back(std::max<int64_t>(std::min(from[one].fixed() - down, from[two].fixed() - right), 0));
  const auto last = static_cast<uint8_t>(out.sizes.size() - 1);
  uint8_t next = 0;
  for (size_t k = 0; k < from.size(); ++k) {
    if (k == one)
      out.map.dims.push_back({down, {{last, 1}}});
    else if (k == two)
      out.map.dims.push_back({right, {{last, 1}}});
    else
      out.map.dims.push_back({0, {{next++, 1}}});
  }
  return out;
}

Region windows(const Call& c, const Shape& from, size_t first) {
  const size_t dim = dim_of(c, from, first);
  const int64_t size = c.integer(first + 1), step = c.integer(first + 2);
  if (step < 1) throw NotLowered{};
  Region out{identity_map(from.size()), from};
  out.map.dims[dim].terms = {{static_cast<uint8_t>(dim), step}, {static_cast<uint8_t>(from.size()), 1}};
  out.sizes[dim] = (from[dim] - size) / step + 1;
  out.sizes.emplace_back(size);
  return out;
}

Region part_of(const Shape& from, size_t dim, ir::Dim start, ir::Dim size, int64_t step) {
  Region out{identity_map(from.size()), from};
  out.map.dims[dim].offset = start;
  out.map.dims[dim].terms[0].second = step;
  out.sizes[dim] = size;
  return out;
}

Region permutation(const Shape& from, const std::vector<int64_t>& order) {
  Region out;
  out.map.dims.resize(order.size());
  for (size_t k = 0; k < order.size(); ++k) {
    const auto dim = static_cast<size_t>(order[k]);
    out.map.dims[dim].terms = {{static_cast<uint8_t>(k), 1}};
    out.sizes.push_back(from[dim]);
  }
  return out;
}

Expr at(Expr x, Region region) {
  return {x.graph, x.graph->view(x.id, std::move(region.map), std::move(region.sizes))};
}

Expr among_zeros(Expr value, const Shape& whole, Region region) {
  ir::Graph& graph = *value.graph;
  const ir::NodeId zeros = graph.expand(zero(graph, value.type()), whole);
  return {&graph, graph.update(zeros, graph.expand(value.id, std::move(region.sizes)), std::move(region.map))};
}

}  // namespace fastjit::capture
