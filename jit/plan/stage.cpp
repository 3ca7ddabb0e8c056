#include "plan/stage.h"

#include <algorithm>

#include "plan/products.h"
#include "plan/two_stage.h"

namespace fastjit::plan {

/// A graph that is rebuilt numbers its calls in the order of their nodes.
static bool has_calls_in_order(const ir::Graph& graph) {
  uint32_t calls = 0;
  return std::ranges::all_of(graph.nodes,
                             [&](const ir::Node& node) { return node.op != ir::Op::Extern || node.attr == calls++; });
}

std::optional<ir::Graph> staged(const ir::Graph& graph, const Costs& costs, bool own) {
  if (!has_calls_in_order(graph)) return std::nullopt;
  auto products = own ? own_products(graph, costs) : std::nullopt;
  auto both = two_stage(products ? *products : graph);
  return both ? std::move(both) : std::move(products);
}

}  // namespace fastjit::plan
