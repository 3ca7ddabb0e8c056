#include "plan/stage.h"

#include <algorithm>

#include "plan/products.h"
#include "plan/two_stage.h"
#include "plan/updates.h"

namespace fastjit::plan {

/// A graph that is rebuilt numbers its calls in the order of their nodes.
static bool has_calls_in_order(const ir::Graph& graph) {
  uint32_t calls = 0;
  return std::ranges::all_of(graph.nodes,
                             [&](const ir::Node& node) { return node.op != ir::Op::Extern || node.attr == calls++; });
}

std::optional<ir::Graph> staged(const ir::Graph& graph, const Costs& costs, bool own) {
  if (!has_calls_in_order(graph)) return std::nullopt;
  std::optional<ir::Graph> made;
  const auto take = [&](std::optional<ir::Graph> next) {
    if (next) made = std::move(next);
  };
  const auto now = [&]() -> const ir::Graph& { return made ? *made : graph; };
  if (own) take(own_products(now(), costs));
  take(two_stage(now()));
  take(in_place(now()));
  return made;
}

}  // namespace fastjit::plan
