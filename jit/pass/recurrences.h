#pragma once
// The state that a loop carries, in a graph that has all its rounds one after another.
#include <vector>

#include "ir/graph.h"

namespace fastjit::pass {

/// Per node: it is one of `values`, follows pointwise from another of them and from something new beside it, and so on,
/// as the state c of c = f * c + i * g does in every round. Computing one again takes all before it; computing every
/// tenth one again makes a different round of each tenth. A chain that nothing new comes into, as sin(sin(x)), is none.
std::vector<bool> recurrences(const ir::Graph& graph, const std::vector<bool>& values);

}  // namespace fastjit::pass
