#pragma once
// What follows from what in a graph, through memory that calls of torch's write too.
#include <cstdint>
#include <vector>

#include "ir/graph.h"

namespace fastjit::pass {

/// The memory behind each value that some call of a graph writes.
class Writes {
 public:
  explicit Writes(const ir::Graph& graph);

  /// kNoNode: no call writes it.
  ir::NodeId memory(ir::NodeId id) const;

  /// Calls `each` with the memory that the node writes.
  template <class Each>
  void of(ir::NodeId id, const Each& each) const {
    if (graph_[id].op != ir::Op::Extern) return;
    const ir::ExternAttr& call = graph_.externs[graph_[id].attr];
    for (const uint32_t index : call.written) each(written_memory(call.operands[index]));
  }

 private:
  ir::NodeId written_memory(ir::NodeId id) const;

  const ir::Graph& graph_;
  std::vector<bool> is_written_;
  bool any_ = false;
};

/// Per node: the bits of the inputs that it follows from.
std::vector<uint64_t> nodes_follow(const ir::Graph& graph, const std::vector<uint64_t>& bits);

/// Per node: it follows from inputs that `which` names.
std::vector<bool> followers(const ir::Graph& graph, const std::vector<bool>& which);

}  // namespace fastjit::pass
