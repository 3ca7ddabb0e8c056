#pragma once
// A program for any size as the one for its recorded sizes.
#include "ir/graph.h"

namespace fastjit::ir {

/// The same graph with the recorded number in place of each expression of sizes: it has no symbols.
Graph in_numbers(const Graph& graph);

}  // namespace fastjit::ir
