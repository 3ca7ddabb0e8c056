#pragma once
// Sizes that a run of the program finds on its way: see ir::Symbols::add_late().
#include <cstdint>
#include <span>

#include "ir/graph.h"

namespace fastjit::plan {

/// The late symbols that any of these hang on, as bits.
inline uint64_t late_in(const ir::Graph& graph, std::span<const ir::Dim> dims) {
  uint64_t late = 0;
  if (graph.symbols)
    for (const ir::Dim dim : dims) late |= graph.symbols->late_in(dim);
  return late;
}

/// The same of scalars that are sizes.
inline uint64_t late_in_scalars(const ir::Graph& graph, std::span<const uint32_t> scalars) {
  uint64_t late = 0;
  for (const uint32_t scalar : scalars) late |= late_in(graph, {&graph.scalars[scalar].size, 1});
  return late;
}

}  // namespace fastjit::plan
