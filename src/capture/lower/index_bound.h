#pragma once
// What is known of values that are indices: whoever finds positions in a tensor finds none beyond it.
#include <optional>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"

namespace fastjit::capture {

/// Per result of a call that has found positions in a tensor, in memory that nothing writes afterwards: all are below
/// this one, or those in each column (the last dim) below its own.
using PickedOf = std::unordered_map<ir::NodeId, std::vector<ir::Dim>>;

/// No element of the I64 node is negative, and each is below this, in any call. Nothing: that is not known.
std::optional<ir::Dim> index_bound(const ir::Graph& graph, const PickedOf& picked, ir::NodeId node);

/// Whether indices below `bound` are all in a dim of this size: in any call, or it is a guard of the program.
bool is_within(ir::Dim bound, ir::Dim size);

}  // namespace fastjit::capture
