#pragma once
// Constant folding: what of a graph is the same in every call is computed once, by a program of its own.
#include <optional>
#include <vector>

#include "ir/graph.h"

namespace fastjit::pass {

struct ConstantParts {
  ir::Graph part;  // has the inputs of the graph, of which it reads constant ones; its outputs are what `rest` is given
  ir::Graph rest;  // the graph, with one more input per output of `part` behind its own
};

/// Takes out what follows from inputs that are `constant` (per input of the graph), and from numbers, where a kernel
/// would not make it anew as cheaply as it reads it: joined, reduced and updated tensors, elementary functions. Nothing
/// if there is none, and of a graph with rounds of loops.
std::optional<ConstantParts> fold_constants(const ir::Graph& graph, const std::vector<bool>& constant);

}  // namespace fastjit::pass
