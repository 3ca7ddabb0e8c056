#pragma once
// Checkpoints (torch.utils.checkpoint): memory saved by computing again.
#include "ir/checkpoints.h"
#include "ir/graph.h"

namespace fastjit::pass {

/// The graph where the way back through a checkpoint reads no value that was made in it, but makes each again of what
/// the checkpoint was given, where it is needed first. What is made again is no node with what was made before
/// (Node::again), so that no pass joins them.
ir::Graph recompute(const ir::Graph& graph, const ir::Checkpoints& checkpoints);

}  // namespace fastjit::pass
