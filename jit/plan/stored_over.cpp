#include "plan/stored_over.h"

#include <algorithm>
#include <limits>
#include <ranges>

#include "ir/regions.h"
#include "plan/work.h"

namespace fastjit::plan {

namespace {

/// A part of a tensor: the map gives it over these sizes.
struct Region {
  ir::IndexMap map;
  std::vector<ir::Dim> sizes;
};

bool are_apart(const Region& a, const Region& b) { return ir::are_apart(a.map, a.sizes, b.map, b.sizes); }

/// Nothing: other views than those by maps are between them.
std::optional<Region> region_of(const ir::Graph& graph, const Seen& seen) {
  std::optional<ir::IndexMap> map;
  for (const ir::NodeId id : std::views::reverse(seen.views)) {
    if (graph[id].op != ir::Op::View) return std::nullopt;
    const ir::IndexMap& view = graph.maps[graph[id].attr];
    map = map ? ir::composed(*map, view) : view;
  }
  const auto sizes = graph.sizes(seen.views.front());
  return Region{*map, {sizes.begin(), sizes.end()}};
}

/// What node `at` of all rounds, an Update, stores over: the round is one more dim. Of a loop of any number of rounds
/// all that it could come to.
std::optional<Region> written(const ir::Graph& graph, const Sequence& sequence, const Rounds& rounds, uint32_t at) {
  std::vector<const ir::IndexMap*> maps;
  maps.reserve(static_cast<size_t>(rounds.trip));
  for (int64_t round = 0; round < rounds.trip; ++round)
    maps.push_back(&graph.maps[graph[rounds.node(sequence, round, at)].attr]);
  std::optional<WalkingMap> walking = walking_map(maps, rounds.count);
  if (!walking) return std::nullopt;
  const auto sizes = graph.sizes(graph[rounds.node(sequence, 0, at)].in[1]);
  Region out{std::move(walking->first), {sizes.begin(), sizes.end()}};
  for (size_t row = 0; row < out.map.dims.size(); ++row)
    if (!ir::identical(walking->steps[row], 0))
      out.map.dims[row].terms.emplace_back(static_cast<uint8_t>(sizes.size()), walking->steps[row]);
  constexpr int64_t kAny = std::numeric_limits<int32_t>::max();
  out.sizes.push_back(rounds.count.is_symbolic() ? kAny : rounds.trip);
  return out;
}

}  // namespace

bool is_stored_over(const ir::Graph& graph, const Sequence& sequence, const MadeLoop& loop, ir::NodeId value) {
  const Seen seen = seen_through(graph, sequence, value);
  const auto begins = [&](const PlacedValue& placed) {
    return placed.kind == PlacedValue::Kind::Base && base_of(graph, sequence, placed.base) == seen.base;
  };
  if (seen.views.empty() || std::ranges::none_of(loop.placed, begins)) return false;
  const std::optional<Region> read = region_of(graph, seen);
  const auto is_copy = [&](ir::NodeId id) { return ir::is_own_copy(graph, graph[id]); };
  const auto replaces = [&](const PlacedValue& placed) {
    if (!std::ranges::all_of(seen_through(graph, sequence, placed.base).views, is_copy)) return true;
    for (uint32_t at = placed.at;;) {  // its Updates of a round, the last one first
      work();
      const std::optional<Region> region = written(graph, sequence, loop.rounds, at);
      if (!read || !region || !are_apart(*read, *region)) return true;
      const Source& before = loop.rounds.sources_of(at)[0];
      if (before.of != Source::Of::Round) return false;
      at = before.at;
    }
  };
  return std::ranges::any_of(loop.placed,
                             [&](const PlacedValue& placed) { return begins(placed) && replaces(placed); });
}

}  // namespace fastjit::plan
