#pragma once
// Numbers that are others in each round of a loop of Python's (`x * (1 + i * 0.01)`), for which it was recorded round
// by round.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace fastjit::pass {

struct NumberList {
  ir::DType dtype;
  std::vector<uint64_t> bits;  // as Graph::constants has them
  std::string name;
};

struct NumberLists {
  ir::Graph rest;                 // the graph, with one more input per list behind its own, which reads its elements
  std::vector<NumberList> lists;  // each a tensor of one dim, row-major
};

/// Takes the numbers out of the code where one source line computes the same with many different ones: then rounds are
/// alike, and are a loop or share their kernels. Nothing if there are none, and of a graph with loops of any number of
/// rounds.
std::optional<NumberLists> list_numbers(const ir::Graph& graph);

}  // namespace fastjit::pass
