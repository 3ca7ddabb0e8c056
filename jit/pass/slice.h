#pragma once
// Slices of tensors: those that updates write, and where one lies.
#include <cstdint>
#include <optional>

#include "ir/graph.h"

namespace fastjit::pass {

constexpr int64_t kMostSlices = 16;  // of a tensor, that passes look at together

/// A slice of a tensor: all elements with one index along a dim.
struct Slice {
  uint8_t dim;
  int64_t index;
};

/// Of an Update: the slice that it writes, with a value of just that shape.
std::optional<Slice> written_slice(const ir::Graph& graph, const ir::Node& update);

/// From the dims of a slice, so many, to the tensor that has one more at `dim`.
ir::IndexMap slice_map(size_t rank, size_t dim, ir::Dim index);

}  // namespace fastjit::pass
