#pragma once
// Strides of the same elements seen as other dims.
#include <optional>
#include <span>
#include <vector>

#include "ir/graph.h"

namespace fastjit::ir {

/// Strides of the same elements under other sizes, if strides can express that.
std::optional<std::vector<Dim>> reshape_strides(std::span<const Dim> sizes, std::span<const Dim> strides,
                                                std::span<const Dim> to);

}  // namespace fastjit::ir
