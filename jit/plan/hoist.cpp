#include "plan/hoist.h"

#include <algorithm>

#include "plan/work.h"

namespace fastjit::plan {

using ir::NodeId;
using ir::Op;

namespace {

using Of = Source::Of;

constexpr int64_t kRoundsToPack = 8;  // a copy costs about as much as two products read
constexpr int64_t kManyRows = 8;  // a product of so many takes no longer in each round than with those of all others

/// All but the left factor is the same in every round, and a bias the same for every row.
bool has_fixed_others(const ir::Graph& graph, const Rounds& rounds, uint32_t at) {
  const auto sources = rounds.sources_of(at);
  const size_t left = sources.size() - 2;
  for (size_t k = 0; k < sources.size(); ++k) {
    if (sources[k].of != Of::Outside) return false;
    const auto nodes = rounds.operands_at(at, k);
    work(nodes.size());
    if (k != left && !is_one_node(nodes)) return false;
    const auto sizes = graph.sizes(nodes[0]);
    if (k < left && sizes.size() > 1 && sizes[sizes.size() - 2] != 1) return false;
  }
  return true;
}

/// Where the node, seen through views that maps describe, lies in its base.
std::optional<ir::IndexMap> map_to_base(const ir::Graph& graph, const Seen& seen) {
  if (seen.views.empty() || graph[seen.views.back()].op != Op::View) return std::nullopt;
  ir::IndexMap map = graph.maps[graph[seen.views.back()].attr];
  for (size_t i = seen.views.size() - 1; i-- > 0;) {
    if (graph[seen.views[i]].op != Op::View) return std::nullopt;
    map = ir::composed(map, graph.maps[graph[seen.views[i]].attr]);
  }
  return map;
}

}  // namespace

std::optional<Hoisted> hoisted(const ir::Graph& graph, const Sequence& sequence, const Rounds& rounds, uint32_t at) {
  if (!has_fixed_others(graph, rounds, at)) return std::nullopt;
  Hoisted made{at, 0, ir::kNoNode, {}, {}, 0};
  const auto factors = rounds.operands_at(at, rounds.sources_of(at).size() - 2);
  const auto sizes = graph.sizes(factors[0]);
  if (sizes[sizes.size() - 2].hint() >= kManyRows) return std::nullopt;
  made.base = base_of(graph, sequence, factors[0]);
  std::vector<ir::IndexMap> maps;
  for (const NodeId id : factors) {
    const Seen seen = seen_through(graph, sequence, id);
    std::optional<ir::IndexMap> map = map_to_base(graph, seen);
    if (!map || seen.base != made.base) return std::nullopt;
    maps.push_back(std::move(*map));
  }
  std::vector<const ir::IndexMap*> per_round;
  for (const ir::IndexMap& map : maps) per_round.push_back(&map);
  std::optional<WalkingMap> walking = walking_map(per_round, rounds.count);
  if (!walking) return std::nullopt;
  made.map = std::move(walking->first);
  made.sizes.assign(sizes.begin(), sizes.end());
  const auto round = static_cast<uint8_t>(sizes.size() - 2);
  made.sizes.insert(made.sizes.begin() + round, rounds.count);
  for (size_t row = 0; row < made.map.dims.size(); ++row) {
    auto& terms = made.map.dims[row].terms;
    for (auto& [dim, coefficient] : terms) dim = static_cast<uint8_t>(dim + (dim >= round));
    const auto behind = std::ranges::find_if(terms, [&](const auto& term) { return term.first > round; });
    if (!ir::identical(walking->steps[row], 0)) terms.insert(behind, {round, walking->steps[row]});
  }
  return made;
}

NodeId rows_of_all(ir::Graph& to, NodeId base, const Hoisted& hoisted) {
  ir::IndexMap map = hoisted.map;
  std::vector<ir::Dim> sizes = hoisted.sizes;  // [..., rounds, rows, inner]
  const size_t most = sizes.size() - 3;
  const auto is_spread = [&](size_t dim) {
    return std::ranges::none_of(map.dims, [&](const ir::Affine& row) {
      return std::ranges::any_of(row.terms, [&](const auto& term) { return term.first == dim; });
    });
  };
  size_t spread = 0;
  while (spread < most && is_spread(spread)) ++spread;
  for (ir::Affine& row : map.dims)
    for (auto& [dim, coefficient] : row.terms) dim = static_cast<uint8_t>(dim - spread);
  const std::vector<ir::Dim> many(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(spread));
  sizes.erase(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(spread));
  const NodeId rows = to.view(base, std::move(map), sizes);
  const size_t round = sizes.size() - 3;
  sizes[round] *= sizes[round + 1];
  sizes.erase(sizes.begin() + static_cast<std::ptrdiff_t>(round) + 1);
  const NodeId all = to.reshape(rows, sizes);
  if (spread == 0) return all;
  ir::IndexMap each;
  for (size_t dim = 0; dim < sizes.size(); ++dim) each.dims.push_back({0, {{static_cast<uint8_t>(spread + dim), 1}}});
  std::vector<ir::Dim> strides = ir::row_major(sizes);
  strides.insert(strides.begin(), spread, 0);
  sizes.insert(sizes.begin(), many.begin(), many.end());
  return to.with_strides(to.view(all, std::move(each), std::move(sizes)), strides);
}

bool is_packed(const ir::Graph& graph, const Sequence& sequence, const Rounds& rounds, uint32_t at, size_t k,
               const Costs& costs) {
  if (k + 1 != rounds.sources_of(at).size() || rounds.trip < kRoundsToPack) return false;
  const auto nodes = rounds.operands_at(at, k);
  if (!is_one_node(nodes)) return false;
  const ir::Layout& layout = graph.layout(nodes[0]);
  const size_t row = layout.sizes.size() - 2;
  // One row reads a weight that fills much of the second-level cache as fast where it lies.
  const NodeId product = rounds.node(sequence, 0, at);
  const bool is_one_row = graph.sizes(product)[graph.sizes(product).size() - 2].hint() == 1;
  if (is_one_row && layout.numel().hint() * ir::size_of(graph[nodes[0]].dtype) > costs.l2_bytes / 4) return false;
  return layout.sizes[row].hint() > 1 && layout.sizes[row + 1].hint() > 1 && ir::identical(layout.strides[row], 1);
}

}  // namespace fastjit::plan
