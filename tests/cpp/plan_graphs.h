#pragma once
// Graphs that several tests of the planner put together.
#include "ir/graph.h"

namespace fastjit::test {

inline ir::NodeId tensor(ir::Graph& g, std::vector<ir::Dim> sizes, std::vector<ir::Dim> strides = {},
                         ir::DType type = ir::DType::F32) {
  if (strides.empty()) strides = ir::row_major(sizes);
  return g.input(type, {std::move(sizes), std::move(strides)}, {"x" + std::to_string(g.inputs.size())});
}

inline ir::NodeId number(ir::Graph& g, double value) { return g.constant(ir::DType::F32, value); }

/// torch's own product of two matrices.
inline ir::NodeId product(ir::Graph& g, ir::NodeId a, ir::NodeId b) {
  const std::vector<ir::Dim> sizes{g.sizes(a)[0], g.sizes(b)[1]};
  const auto call = static_cast<uint32_t>(g.contracts.size());
  return g.contract({ir::Product::Mm, call, "aten::mm", {a, b}}, ir::DType::F32, {sizes, ir::row_major(sizes)});
}

}  // namespace fastjit::test
