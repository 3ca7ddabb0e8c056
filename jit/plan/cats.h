#pragma once
// Values put together one after another: a Cat that another one begins with lies there.
#include <vector>

#include "ir/graph.h"

namespace fastjit::plan {

/// For each node: the Cat in whose memory it lies as the first part, or kNoNode. A chain of them (dense connections,
/// a cache that grows) is one buffer, and each part of it is written once.
std::vector<ir::NodeId> longer_cats(const ir::Graph& graph, const std::vector<bool>& live);

}  // namespace fastjit::plan
