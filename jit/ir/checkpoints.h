#pragma once
// Parts of a captured call whose values are not to be kept for its way back (torch.utils.checkpoint).
#include <cstdint>
#include <vector>

namespace fastjit::ir {

/// Of each node of a graph, by its id. Checkpoints are numbered from 1; 0: none.
struct Checkpoints {
  std::vector<uint32_t> made_in;  // the checkpoint that it is made in
  std::vector<uint32_t> back_of;  // it is made where autograd goes back through what that one made
  std::vector<bool> draws;        // random numbers: it is not made again
  bool empty() const { return made_in.empty(); }
};

}  // namespace fastjit::ir
