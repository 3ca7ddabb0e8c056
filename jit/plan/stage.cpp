#include "plan/stage.h"

#include <algorithm>

#include "plan/products.h"
#include "plan/reroll.h"
#include "plan/two_stage.h"
#include "plan/updates.h"

namespace fastjit::plan {

/// A graph that is rebuilt numbers its calls in the order of their nodes.
static bool has_calls_in_order(const ir::Graph& graph) {
  uint32_t calls = 0;
  return std::ranges::all_of(graph.nodes,
                             [&](const ir::Node& node) { return node.op != ir::Op::Extern || node.attr == calls++; });
}

Staged staged(const ir::Graph& graph, const PlanOptions& options) {
  Staged made;
  if (!has_calls_in_order(graph)) return made;
  const auto take = [&](std::optional<ir::Graph> next) {
    if (next) made.graph = std::move(next);
  };
  if (auto rolled = options.cuda ? std::nullopt : reroll(graph, options)) {
    made.graph = std::move(rolled->graph);
    made.bodies = std::move(rolled->bodies);
  }
  if (options.own_products) take(own_products(made.of(graph), options));
  take(two_stage(made.of(graph), options.cuda));
  take(in_place(made.of(graph)));
  return made;
}

}  // namespace fastjit::plan
