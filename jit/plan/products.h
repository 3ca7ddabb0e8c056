#pragma once
// Products of matrices that kernels compute, each together with what is done to its result.
#include <optional>

#include "ir/graph.h"
#include "plan/cost.h"

namespace fastjit::plan {

/// Whether a kernel computes the Contract: it can, and that costs less than torch's library does. `by_rows`: its right
/// factor is laid out so before.
bool is_own_product(const ir::Graph& graph, ir::NodeId id, const Costs& costs, bool no_library, bool by_rows = false);

/// The same graph, where a Contract that costs less in a kernel than in torch's library is a Dot, and its bias a sum;
/// with `no_library`, every one that a kernel can compute.
/// Nothing if there is none. What decides a guard stays torch's, bit for bit. Extern calls, which stand in order, keep
/// their numbers.
std::optional<ir::Graph> own_products(const ir::Graph& graph, const Costs& costs, bool no_library);

}  // namespace fastjit::plan
