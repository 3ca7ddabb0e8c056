#pragma once
// The meaning of a graph in plain ATen calls, node by node: the oracle that lowerings, passes and kernels are tested
// against.
#include <ATen/core/Tensor.h>

#include <vector>

#include "ir/graph.h"

namespace fastjit::capture {

/// The value of every node of `graph` that `wanted` needs, in the order of `wanted`. `inputs` by Input's attribute,
/// `scalars` (0-dim f64 or i64) by Scalar's. Throws std::invalid_argument for Extern nodes.
std::vector<at::Tensor> evaluate(const ir::Graph& graph, const std::vector<at::Tensor>& inputs,
                                 const std::vector<at::Tensor>& scalars, const std::vector<ir::NodeId>& wanted);

}  // namespace fastjit::capture
