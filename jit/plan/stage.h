#pragma once
// What is planned in place of a graph: the same values, made in the way that costs least.
#include <optional>

#include "ir/graph.h"
#include "plan/cost.h"

namespace fastjit::plan {

/// The graph with long reductions in two stages and, if `own`, small products in kernels. Nothing: it is planned as it
/// is. Extern calls keep their numbers.
std::optional<ir::Graph> staged(const ir::Graph& graph, const Costs& costs, bool own);

}  // namespace fastjit::plan
