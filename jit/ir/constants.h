#pragma once
#include "ir/graph.h"

namespace fastjit::ir {

/// +0 of any type, rank 0.
inline NodeId zero(Graph& graph, DType dtype) {
  if (is_half(dtype)) return graph.convert(graph.constant(DType::F32, 0), dtype);
  return is_floating(dtype) ? graph.constant(dtype, 0) : graph.constant_int(dtype, 0);
}

}  // namespace fastjit::ir
