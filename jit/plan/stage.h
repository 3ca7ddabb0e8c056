#pragma once
// What is planned in place of a graph: the same values, made in the way that costs least.
#include <optional>
#include <vector>

#include "plan/body.h"

namespace fastjit::plan {

struct Staged {
  std::optional<ir::Graph> graph;  // nothing: it is planned as it is
  std::vector<Body> bodies;        // per Graph::loops

  const ir::Graph& of(const ir::Graph& given) const { return graph ? *graph : given; }
};

/// The graph with long reductions in two stages, its repetitions as loops and, if the options say so, small products in
/// kernels. Extern calls keep their numbers.
Staged staged(const ir::Graph& graph, const PlanOptions& options);

/// Gives the calls of `graph`, of which kernels may have taken the place of some, the numbers that they have in the
/// graph that it was made of. In both they stand in the order of their nodes.
void number_as(const ir::Graph& given, ir::Graph& graph);

}  // namespace fastjit::plan
