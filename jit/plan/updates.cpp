// In place where no older value is wanted afterwards (Cytron et al. 1991 speak of the copies that leaving SSA form
// needs; here they are the fresh copies below an Update).
#include "plan/updates.h"

#include <algorithm>

#include "pass/rewrite.h"
#include "plan/work.h"

namespace fastjit::plan {

using ir::NodeId;
using ir::Op;

namespace {

/// Memory that an operator only allocated: nobody else knows of it.
bool is_blank(const ir::Graph& graph, NodeId id) {
  if (graph[id].op != Op::Result) return false;
  const ir::ExternAttr& call = graph.externs[graph[graph[id].in[0]].attr];
  return call.kind == ir::ExternKind::Op && call.operands.empty() && call.name.starts_with("aten::empty");
}

/// Per node the last one that reads it itself; kNoNode: the caller does. Views are readers like others: what they give
/// is read before the next write, or stored before it (Former::mark_before_write).
std::vector<NodeId> last_readers(const ir::Graph& graph) {
  std::vector<NodeId> last(graph.nodes.size(), 0);
  for (NodeId id = 0; id < graph.nodes.size(); ++id)
    for (const NodeId in : graph.operands(id))
      if (in != ir::kNoNode) last[in] = id;
  for (const ir::ExternAttr& call : graph.externs) {  // a view of torch's stays where it is
    if (call.kind != ir::ExternKind::View) continue;
    NodeId base = call.operands[0];
    for (; graph[base].op == Op::View || graph[base].op == Op::Reshape; base = graph[base].in[0])
      last[base] = ir::kNoNode;
    last[base] = ir::kNoNode;
  }
  for (const NodeId id : graph.outputs) last[id] = ir::kNoNode;
  for (const ir::Store& store : graph.stores) last[store.value] = ir::kNoNode;
  return last;
}

}  // namespace

std::vector<NodeId> memory_of_updates(const ir::Graph& graph) {
  std::vector<NodeId> memory(graph.nodes.size(), ir::kNoNode);
  for (NodeId id = 0; id < graph.nodes.size(); ++id) {
    if (graph[id].op != Op::Update) continue;
    const NodeId base = graph[id].in[0];
    memory[id] = memory[base] == ir::kNoNode ? base : memory[base];
  }
  return memory;
}

std::optional<ir::Graph> in_place(const ir::Graph& graph) {
  if (std::ranges::none_of(graph.nodes, [](const ir::Node& node) { return node.op == Op::Update; }))
    return std::nullopt;
  const std::vector<NodeId> last = last_readers(graph);
  pass::Rewriter rewriter(graph);
  for (NodeId id = 0; id < graph.nodes.size(); ++id) {
    work();
    const ir::Node& node = graph[id];
    if (node.op != Op::Update) {
      rewriter.copy(id);
      continue;
    }
    const bool is_memory = graph[node.in[0]].op == Op::Update || is_blank(graph, node.in[0]);
    NodeId base = rewriter[node.in[0]];
    rewriter.to().set_line(node.line);
    if (!is_memory || last[node.in[0]] != id) base = rewriter.to().fresh_copy(base, graph.layout(id).strides);
    rewriter.set(id, rewriter.to().update(base, rewriter[node.in[1]], graph.maps[node.attr]));
  }
  return rewriter.finish();
}

}  // namespace fastjit::plan
