#pragma once
// Long reductions with few results, cut in two so that many threads can work on them.
#include <optional>

#include "ir/graph.h"

namespace fastjit::plan {

/// The same graph, where a Reduce of many elements to few goes through partial results. Nothing if there is none.
/// Extern calls, which stand in order, keep their numbers. `cuda`: a GPU runs it.
std::optional<ir::Graph> two_stage(const ir::Graph& graph, bool cuda);

}  // namespace fastjit::plan
