#pragma once
// Regions of a tensor, as index maps give them.
#include <span>

#include "ir/graph.h"

namespace fastjit::ir {

/// Whether two regions of one tensor, indexed over these sizes, share no element for sure: along one dim their indices
/// never meet. False where that depends on sizes.
bool are_apart(const IndexMap& a, std::span<const Dim> a_sizes, const IndexMap& b, std::span<const Dim> b_sizes);

/// A View that changes nothing: nobody makes one but to have the value twice in memory, and others may write to that.
bool is_own_copy(const Graph& graph, const Node& node);

}  // namespace fastjit::ir
