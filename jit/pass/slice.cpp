#include "pass/slice.h"

#include <algorithm>

namespace fastjit::pass {

using namespace ir;

static bool same_dim(Dim a, Dim b) { return identical(a, b); }

std::optional<Slice> written_slice(const Graph& graph, const Node& update) {
  std::optional<Slice> slice;
  const IndexMap& map = graph.maps[update.attr];
  uint8_t next = 0;
  for (size_t d = 0; d < map.dims.size(); ++d) {
    const Affine& row = map.dims[d];
    if (row.terms.empty()) {
      if (slice || row.offset.is_symbolic()) return std::nullopt;
      slice = Slice{static_cast<uint8_t>(d), row.offset.hint()};
    } else if (row.terms.size() != 1 || row.terms[0].first != next++ || !identical(row.terms[0].second, 1) ||
               !identical(row.offset, 0)) {
      return std::nullopt;
    }
  }
  if (!slice || graph.sizes(update.in[1]).size() != next) return std::nullopt;
  const auto whole = graph.sizes(update.in[0]), value = graph.sizes(update.in[1]);
  const auto behind = whole.begin() + slice->dim;
  const bool has_its_shape = std::equal(whole.begin(), behind, value.begin(), same_dim) &&
                             std::equal(behind + 1, whole.end(), value.begin() + slice->dim, same_dim);
  return has_its_shape ? slice : std::nullopt;
}

IndexMap slice_map(size_t rank, size_t dim, Dim index) {
  IndexMap map = identity_map(rank);
  map.dims.insert(map.dims.begin() + static_cast<std::ptrdiff_t>(dim), Affine{index, {}});
  return map;
}

}  // namespace fastjit::pass
