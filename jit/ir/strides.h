#pragma once
// Strides of the same elements seen as other dims.
#include <optional>
#include <span>
#include <vector>

#include "ir/graph.h"

namespace fastjit::ir {

/// Elements from the first to the last of these: none or fewer where a size is 0.
int64_t extent(std::span<const int64_t> sizes, std::span<const int64_t> strides);
Dim extent(std::span<const Dim> sizes, std::span<const Dim> strides);

/// Strides of the same elements under other sizes, if strides can express that.
std::optional<std::vector<Dim>> reshape_strides(std::span<const Dim> sizes, std::span<const Dim> strides,
                                                std::span<const Dim> to);

/// Where a view by index map begins, relative to its base, and its strides.
struct ViewStrides {
  Dim offset;
  std::vector<Dim> strides;
};
ViewStrides view_strides(const IndexMap& map, size_t rank, std::span<const Dim> strides_of_base);

}  // namespace fastjit::ir
