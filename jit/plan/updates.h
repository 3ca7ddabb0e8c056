#pragma once
// Writes to parts of a tensor. An Update is planned as a store into the memory of what it updates; this makes the
// graph one where that is right.
#include <optional>
#include <vector>

#include "ir/graph.h"

namespace fastjit::plan {

/// For each Update the node in whose memory it lies: the first of its chain, which has memory of its own. kNoNode for
/// other nodes.
std::vector<ir::NodeId> memory_of_updates(const ir::Graph& graph);

/// Whether the Update is made of neighbours of what it replaces, and replaces half of its base or more: it is then made
/// in memory of its own.
bool is_sweep(const ir::Graph& graph, ir::NodeId update);

/// Whose memory the inputs of a graph lie in: what is the caller's is only written once no run can end early any more.
enum class Inputs : uint8_t { OfCaller, OfProgram };

/// Per node, an Update or a Final: it is stored in an input's own memory, since the input gets the last of such a
/// chain, and nobody wants an older value.
std::vector<bool> made_in_inputs(const ir::Graph& graph, Inputs inputs = Inputs::OfCaller);

/// The graph with a copy below every Update whose base is wanted as it was, or is no memory that it may write to.
/// Nothing where the graph has no Update.
std::optional<ir::Graph> in_place(const ir::Graph& graph, Inputs inputs = Inputs::OfCaller);

}  // namespace fastjit::plan
