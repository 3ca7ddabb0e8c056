#pragma once
// Products in a loop that are made before it, and weights that are laid out for it.
#include <optional>

#include "plan/cost.h"
#include "plan/rounds.h"

namespace fastjit::plan {

/// A product whose left factor alone differs from round to round, and lies further in one value in each: it is made
/// before the loop, with the rows of all rounds.
struct Hoisted {
  uint32_t at;                 // node of a round
  uint32_t operand;            // of the Loop
  ir::NodeId base;             // what the left factors are rows of
  ir::IndexMap map;            // from [..., round, row, column] to the base
  std::vector<ir::Dim> sizes;  // of that
  int64_t bytes;               // that a round has of the product
};

/// Node `at` of a round, a Contract, as such a product; `operand` and `bytes` are left open.
std::optional<Hoisted> hoisted(const ir::Graph& graph, const Sequence& sequence, const Rounds& rounds, uint32_t at);

/// The left factors of all rounds, one below the other, of which `base` is what they are rows of. What one value is for
/// many products lies there once.
ir::NodeId rows_of_all(ir::Graph& to, ir::NodeId base, const Hoisted& hoisted);

/// Whether operand `k` of node `at`, a Contract, is the right factor, the same in every round, and lies by columns: one
/// copy by rows, which vectors run along, serves all rounds.
bool is_packed(const ir::Graph& graph, const Sequence& sequence, const Rounds& rounds, uint32_t at, size_t k,
               const Costs& costs);

}  // namespace fastjit::plan
