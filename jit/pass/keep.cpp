#include "pass/keep.h"

#include <algorithm>

#include "ir/calls.h"

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

bool stays(const Graph& graph, NodeId id) {
  const Op op = graph[id].op;
  if (op == Op::Result) return is_number_of_python(graph, id) || is_foretold(graph, id);
  return has_call(graph, id) || op == Op::Input || op == Op::Scalar;
}

Graph kept(const Graph& graph, const std::vector<bool>& live, std::span<const NodeId> bases) {
  Graph to;
  to.symbols = graph.symbols;
  to.layouts = graph.layouts;
  to.constants = graph.constants;
  to.maps = graph.maps;
  to.reduces = graph.reduces;
  to.lines = graph.lines;
  to.line_rounds = graph.line_rounds;
  to.traced = graph.traced;
  to.inputs = graph.inputs;
  to.scalars = graph.scalars;
  to.nodes.reserve(static_cast<size_t>(std::ranges::count(live, true)));
  to.lists.reserve(graph.lists.size());
  to.contracts.reserve(graph.contracts.size());
  to.externs.reserve(graph.externs.size());
  std::vector<NodeId> now(graph.nodes.size(), kNoNode);
  const auto moved = [&](NodeId in) { return in == kNoNode ? in : now[in]; };
  const auto take = [&](auto& table, const auto& attr) {
    for (NodeId& in : table.emplace_back(attr).operands) in = moved(in);
    return static_cast<uint32_t>(table.size() - 1);
  };
  for (NodeId id = 0; id < graph.nodes.size(); ++id) {
    if (!live[id]) continue;
    Node node = graph[id];
    if (!bases.empty() && bases[id] != kNoNode) node.in[0] = bases[id];
    for (NodeId& in : node.in) in = moved(in);
    if (node.op == Op::Cat) node.attr = take(to.lists, graph.lists[node.attr]);
    if (node.op == Op::Contract) node.attr = take(to.contracts, graph.contracts[node.attr]);
    if (node.op == Op::Extern) node.attr = take(to.externs, graph.externs[node.attr]);
    if (node.op == Op::Loop) node.attr = take(to.loops, graph.loops[node.attr]);
    now[id] = static_cast<NodeId>(to.nodes.size());
    to.nodes.push_back(node);
  }
  for (const NodeId id : graph.outputs) to.outputs.push_back(now[id]);
  for (Store store : graph.stores) {
    store.value = now[store.value];
    to.stores.push_back(store);
  }
  return to;
}

}  // namespace fastjit::pass
