#pragma once
#include "ir/graph.h"

namespace fastjit::ir {

/// The layout of a value in the body of a loop in the graph, the same in all rounds, in expressions of the graph's.
Layout around_body(const Graph& graph, const Graph& body, Layout layout);

}  // namespace fastjit::ir
