#pragma once
// What a pass leaves out of a graph.
#include <span>
#include <vector>

#include "ir/graph.h"

namespace fastjit::pass {

/// Inputs and scalars stay even when unused: their numbers are the caller's. Extern calls stay, also in the rounds of a
/// loop: they may have effects. So do results of theirs whose sizes were foretold: each call compares these, and what
/// follows from them relies on it. And numbers that Python computes: it may raise.
bool stays(const ir::Graph& graph, ir::NodeId id);

/// The values of a live loop, which stand behind it, are live.
inline void take_finals(const ir::Graph& graph, ir::NodeId id, std::vector<bool>& live) {
  if (graph[id].op != ir::Op::Loop) return;
  for (uint32_t i = 0; i < graph.loops[graph[id].attr].finals(); ++i) live[id + 1 + i] = true;
}

/// The graph with the nodes that are live: a copy, since what was interned once is so without the others. `bases`, if
/// given: per node what this one, a View, is to be a view of; kNoNode: what it is.
ir::Graph kept(const ir::Graph& graph, const std::vector<bool>& live, std::span<const ir::NodeId> bases = {});

}  // namespace fastjit::pass
