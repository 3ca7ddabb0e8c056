#include "pass/follow.h"

#include "pass/rewrite.h"

namespace fastjit::pass {

using namespace ir;

Writes::Writes(const Graph& graph) : graph_(graph), is_written_(graph.nodes.size(), false) {
  for (const ExternAttr& call : graph.externs)
    for (const uint32_t index : call.written) is_written_[written_memory(call.operands[index])] = any_ = true;
}

NodeId Writes::memory(NodeId id) const {
  if (!any_) return kNoNode;
  const NodeId memory = written_memory(id);
  return is_written_[memory] ? memory : kNoNode;
}

// What a call writes when it writes `id`. What is no call's result gets memory where calls are given it.
NodeId Writes::written_memory(NodeId id) const {
  const NodeId root = memory_of(graph_, id);
  if (graph_[root].op == Op::Input || graph_[root].op == Op::Result) return root;
  while (graph_[id].op == Op::Result) id = graph_.externs[graph_[graph_[id].in[0]].attr].operands[0];
  return id;
}

std::vector<uint64_t> nodes_follow(const Graph& graph, const std::vector<uint64_t>& bits) {
  std::vector<uint64_t> follows(graph.nodes.size(), 0), held(graph.nodes.size(), 0);  // held: by memory
  const Writes writes(graph);
  const auto read = [&](NodeId id) {
    const NodeId memory = writes.memory(id);
    return follows[id] | (memory == kNoNode ? 0 : held[memory]);
  };
  for (NodeId id = 0; id < graph.nodes.size(); ++id) {
    if (graph[id].op == Op::Input) follows[id] = bits[graph[id].attr];
    for (const NodeId in : graph.operands(id))
      if (in != kNoNode) follows[id] |= read(in);
    writes.of(id, [&](NodeId memory) { held[memory] |= follows[id]; });
  }
  for (const NodeId id : graph.outputs) follows[id] = read(id);
  return follows;
}

std::vector<bool> followers(const Graph& graph, const std::vector<bool>& which) {
  const std::vector<uint64_t> follows = nodes_follow(graph, {which.begin(), which.end()});
  return {follows.begin(), follows.end()};
}

}  // namespace fastjit::pass
