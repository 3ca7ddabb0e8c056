#include "plan/stage.h"

#include <algorithm>
#include <stdexcept>

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

void number_as(const ir::Graph& given, ir::Graph& graph) {
  if (given.externs.size() == graph.externs.size()) return;
  std::vector<ir::ExternAttr> calls(given.externs.size());
  uint32_t at = 0;
  for (ir::Node& node : graph.nodes) {
    if (node.op != ir::Op::Extern) continue;
    ir::ExternAttr& call = graph.externs[node.attr];
    const auto is_it = [&] { return given.externs[at].call == call.call && given.externs[at].kind == call.kind; };
    while (at < given.externs.size() && !is_it()) ++at;
    if (at == given.externs.size()) throw std::runtime_error("planner: a call is not of the graph that was given");
    calls[at] = std::move(call);
    node.attr = at++;
  }
  graph.externs = std::move(calls);
}

Staged staged(const ir::Graph& graph, const PlanOptions& options) {
  Staged made;
  if (!has_calls_in_order(graph) || (options.cuda && !graph.traced.empty())) {
    if (!graph.traced.empty()) throw std::runtime_error("planner: a loop of any number of rounds cannot be had here");
    return made;
  }
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
  if (made.graph) number_as(graph, *made.graph);
  return made;
}

}  // namespace fastjit::plan
