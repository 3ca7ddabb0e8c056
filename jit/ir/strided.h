#pragma once
// Memory addressed by strides, as elements of a tensor that lies there.
#include <optional>
#include <span>

#include "ir/graph.h"

namespace fastjit::ir {

/// Where elements of memory that begins with a tensor's first one are in that tensor: a map from indices below `sizes`,
/// which lie `strides` apart from `offset` on. Nothing: some are none of its elements, or no map says which they are.
std::optional<IndexMap> strided_map(const Layout& tensor, std::span<const Dim> sizes, std::span<const Dim> strides,
                                    Dim offset);

}  // namespace fastjit::ir
