#pragma once
// Loops in place of what repeats in a graph, before it is planned: layers, steps in time, sweeps.
#include <optional>
#include <vector>

#include "ir/graph.h"
#include "plan/body.h"

namespace fastjit::plan {

struct Rerolled {
  ir::Graph graph;
  std::vector<Body> bodies;  // per Graph::loops
};

/// The graph with its long repetitions as loops, whose rounds compute what the nodes in their place did, in the same
/// order. Nothing: there is none that is worth it. Linear in the number of nodes but for the search (see repeats()).
/// Of Graph::traced each becomes a loop of any number of rounds, or std::runtime_error is thrown.
std::optional<Rerolled> reroll(const ir::Graph& graph, const PlanOptions& options);

}  // namespace fastjit::plan
