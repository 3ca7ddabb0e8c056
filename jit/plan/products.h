#pragma once
// Products of matrices that kernels compute, each together with what is done to its result.
#include <optional>

#include "ir/graph.h"
#include "plan/program.h"

namespace fastjit::plan {

/// Whether a kernel computes the Contract: it can, and that costs less than torch's library does. `by_rows`: its right
/// factor is laid out so before.
bool is_own_product(const ir::Graph& graph, ir::NodeId id, const Costs& costs, bool no_library, bool by_rows = false);

/// The same graph, where a Contract, or the gradients of a convolution, that cost less in kernels than in torch's
/// library are Dots, and a bias a sum; with `no_library`, all that kernels can compute.
/// Nothing if there is none. What decides a guard stays torch's, bit for bit. Extern calls, which stand in order, do so
/// afterwards.
std::optional<ir::Graph> own_products(const ir::Graph& graph, const PlanOptions& options);

}  // namespace fastjit::plan
