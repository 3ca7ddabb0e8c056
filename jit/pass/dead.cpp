#include <algorithm>

#include "pass/pass.h"
#include "pass/rewrite.h"

namespace fastjit::pass {

using namespace ir;

static bool is_symbolic(const Graph& graph, NodeId id) {
  return id != kNoNode && std::ranges::any_of(graph.sizes(id), &Dim::is_symbolic);
}

// The sizes of what the call gives were foretold, as sizes or as numbers.
static bool is_foretold(const Graph& graph, NodeId result) {
  if (!graph.symbols) return false;
  const auto operands = graph.operands(graph[result].in[0]);
  return is_symbolic(graph, result) ||
         std::ranges::any_of(operands, [&](NodeId operand) { return is_symbolic(graph, operand); });
}

// Inputs and scalars stay even when unused: their numbers are the caller's. Extern calls stay: they may have effects.
// So do results of theirs whose sizes were foretold: each call compares these, and what follows from them relies on it.
// And numbers that Python computes: it may raise.
Changed dead(const Graph& graph, const PassContext&) {
  std::vector<bool> live(graph.nodes.size(), false);
  for (NodeId id : graph.outputs) live[id] = true;
  for (const Store& store : graph.stores) live[store.value] = true;
  for (NodeId id = static_cast<NodeId>(graph.nodes.size()); id-- > 0;) {
    const Op op = graph[id].op;
    const bool is_number = op == Op::Result && graph.externs[graph[graph[id].in[0]].attr].kind == ExternKind::Number;
    if (op == Op::Extern || op == Op::Input || op == Op::Scalar || is_number) live[id] = true;
    if (op == Op::Result && is_foretold(graph, id)) live[id] = true;
    if (!live[id]) continue;
    for (NodeId in : graph.operands(id))
      if (in != kNoNode) live[in] = true;
  }
  Rewriter rewriter(graph);
  for (NodeId id = 0; id < graph.nodes.size(); ++id)
    if (live[id]) rewriter.copy(id);
  return rewriter.finish();
}

}  // namespace fastjit::pass
