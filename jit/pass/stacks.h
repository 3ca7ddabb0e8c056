#pragma once
// Many small tensors of one kind, as slices of one.
#include <optional>
#include <vector>

#include "ir/graph.h"

namespace fastjit::pass {

/// Of `values`, ascending: those that go together, where a kernel can write each into its slice of one tensor. What the
/// rounds of a loop save is so gathered in its place, and costs one tensor and no copies. What is large, or has calls
/// of torch's in between, stays apart: each is freed when nobody needs it any more.
std::vector<std::vector<ir::NodeId>> stacks(const ir::Graph& graph, const std::vector<ir::NodeId>& values);

/// A tensor of the graph with slices along its first dim, kNoNode where one is none of those that are asked for.
struct Held {
  ir::NodeId stack = ir::kNoNode;
  std::vector<ir::NodeId> slices;
};
/// The one in which all of these values lie, as torch.stack puts them, with few others; nothing: there is none.
std::optional<Held> held_together(const ir::Graph& graph, const std::vector<ir::NodeId>& values);

/// Slices 0, 1, ... of the result, along a new dim at the front.
ir::NodeId stacked(ir::Graph& graph, const std::vector<ir::NodeId>& slices);
/// One of them.
ir::NodeId slice_of(ir::Graph& graph, ir::NodeId stack, int64_t index);

}  // namespace fastjit::pass
