#include "ir/regions.h"

#include <numeric>
#include <optional>

namespace fastjit::ir {

namespace {

/// The indices that a row of a map gives: from `low` to `high`, all of them `step` apart; nothing where sizes are
/// symbols.
struct Indices {
  int64_t low, high, step;
};
std::optional<Indices> indices_of(const Affine& row, std::span<const Dim> sizes) {
  if (row.offset.is_symbolic()) return std::nullopt;
  Indices out{row.offset.hint(), row.offset.hint(), 0};
  for (const auto& [dim, coefficient] : row.terms) {
    if (coefficient.is_symbolic() || sizes[dim].is_symbolic()) return std::nullopt;
    (coefficient.hint() < 0 ? out.low : out.high) += coefficient.hint() * (sizes[dim].hint() - 1);
    out.step = std::gcd(out.step, coefficient.hint());
  }
  return out;
}

}  // namespace

bool are_apart(const IndexMap& a, std::span<const Dim> a_sizes, const IndexMap& b, std::span<const Dim> b_sizes) {
  for (size_t d = 0; d < a.dims.size(); ++d) {
    const auto x = indices_of(a.dims[d], a_sizes), y = indices_of(b.dims[d], b_sizes);
    if (!x || !y) continue;
    const int64_t step = std::gcd(x->step, y->step);
    if (x->high < y->low || y->high < x->low || (step > 1 && (x->low - y->low) % step != 0)) return true;
  }
  return false;
}

bool is_own_copy(const Graph& graph, const Node& node) {
  return node.op == Op::View && node.layout == graph[node.in[0]].layout &&
         graph.maps[node.attr] == identity_map(node.rank);
}

}  // namespace fastjit::ir
