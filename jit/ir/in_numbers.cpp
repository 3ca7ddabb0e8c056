#include "ir/in_numbers.h"

#include <algorithm>

namespace fastjit::ir {

Graph in_numbers(const Graph& graph) {
  Graph out = graph;
  const auto fix = [](Dim& dim) { dim = dim.hint(); };
  for (Layout& layout : out.layouts) {
    std::ranges::for_each(layout.sizes, fix);
    std::ranges::for_each(layout.strides, fix);
  }
  for (IndexMap& map : out.maps)
    for (Affine& row : map.dims) {
      fix(row.offset);
      for (auto& [dim, coefficient] : row.terms) fix(coefficient);
    }
  for (InputInfo& scalar : out.scalars) fix(scalar.size);
  for (TracedLoop& loop : out.traced) fix(loop.trip);
  out.symbols = nullptr;
  return out;
}

}  // namespace fastjit::ir
