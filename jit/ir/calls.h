#pragma once
// What takes place whether or not anybody wants what it gives.
#include "ir/graph.h"

namespace fastjit::ir {

/// A call of torch's, which may draw random numbers or guard a value, or a loop with one in its rounds.
bool has_call(const Graph& graph, NodeId id);

}  // namespace fastjit::ir
