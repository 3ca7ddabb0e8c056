#include "pass/rewrite.h"

#include <algorithm>

namespace fastjit::pass {

using namespace ir;

static bool is_extern(const Graph& graph, const Node& node, ExternKind kind) {
  return node.op == Op::Extern && graph.externs[node.attr].kind == kind;
}

bool is_guard(const Graph& graph, const Node& node) { return is_extern(graph, node, ExternKind::Guard); }

bool may_end(const Graph& graph, const Node& node) {
  if (node.op == Op::Loop) {
    const Graph& body = *graph.loops[node.attr].body;
    return std::ranges::any_of(body.nodes, [&](const Node& each) { return is_guard(body, each); });
  }
  return is_guard(graph, node) || is_extern(graph, node, ExternKind::Number);
}

std::vector<bool> decides_guard(const Graph& graph) {
  std::vector<bool> decides(graph.nodes.size(), false);
  if (graph.externs.empty() && graph.loops.empty()) return decides;
  for (auto id = static_cast<NodeId>(graph.nodes.size()); id-- > 0;) {
    const Node& node = graph[id];
    if ((!decides[id] && !may_end(graph, node)) || graph.is_position(id)) continue;
    for (const NodeId in : graph.operands(id))
      if (in != kNoNode) decides[in] = true;
  }
  return decides;
}

NodeId memory_of(const Graph& graph, NodeId id) {
  for (;;) {
    const Node& node = graph[id];
    NodeId in = ir::is_view(node.op) ? node.in[0] : kNoNode;
    if (node.op == Op::Result) {
      const ExternAttr& call = graph.externs[graph[node.in[0]].attr];
      if (call.kind == ExternKind::View && !call.operands.empty()) in = call.operands[0];
    }
    if (in == kNoNode) return id;
    id = in;
  }
}

std::vector<bool> overwritten(const Graph& graph) {
  std::vector<bool> out(graph.nodes.size(), false);
  for (const ExternAttr& attr : graph.externs)
    for (const uint32_t index : attr.written) out[memory_of(graph, attr.operands[index])] = true;
  return out;
}

// A call of torch's sees the strides of its operands: where a pass turned one into an input's value, or gave it other
// strides, it gets a tensor like the one that it had.
NodeId Rewriter::operand(NodeId old) { return operand(old, from_.layout(old).strides); }

NodeId Rewriter::operand(NodeId old, const Strides& strides) {
  const NodeId now = (*this)[old];
  if (ir::identical(to_.layout(now).strides, strides)) return now;
  return is_tensor(to_[now].op) ? to_.fresh_copy(now, strides) : to_.with_strides(now, strides);
}

void Rewriter::place(std::vector<NodeId>& operands, const std::vector<Strides>& first) {
  for (size_t i = 0; i < operands.size(); ++i)
    if (operands[i] != kNoNode) operands[i] = i < first.size() ? operand(operands[i], first[i]) : operand(operands[i]);
}

NodeId Rewriter::input(NodeId old, std::string name) {
  return map_[old] = to_.input(from_[old].dtype, from_.layout(old), {std::move(name), false});
}

NodeId Rewriter::contract(NodeId old, ContractAttr attr) {
  place(attr.operands);
  to_.set_line(from_[old].line);
  return to_.contract(std::move(attr), from_[old].dtype, from_.layout(old));
}

NodeId Rewriter::call(NodeId old, const std::vector<Strides>& first, const Strides& result) {
  const Node& node = from_[old];
  to_.set_line(node.line);
  if (node.op == Op::Contract) {
    ContractAttr attr = from_.contracts[node.attr];
    place(attr.operands, first);
    map_[old] = to_.contract(std::move(attr), node.dtype, {from_.layout(old).sizes, result});
  } else {
    ExternAttr attr = from_.externs[node.attr];
    place(attr.operands, first);
    map_[old] = to_.external(std::move(attr));
  }
  to_.nodes[map_[old]].again = node.again;
  return map_[old];
}

NodeId Rewriter::copy(NodeId old, std::vector<ir::Dim> strides) {
  Node node = from_[old];
  for (NodeId& in : node.in) in = (*this)[in];
  node.layout = to_.intern({from_.layout(old).sizes, std::move(strides)});
  to_.set_line(node.line);
  return map_[old] = to_.append(node);
}

NodeId Rewriter::loop(NodeId old, std::vector<NodeId> operands) {
  LoopAttr attr = from_.loops[from_[old].attr];
  attr.operands = std::move(operands);
  to_.set_line(from_[old].line);
  const NodeId now = to_.loop(std::move(attr));
  for (uint32_t i = 0; i < from_.loops[from_[old].attr].finals(); ++i) map_[old + 1 + i] = now + 1 + i;
  return map_[old] = now;
}

NodeId Rewriter::copy(NodeId old) {
  Node node = from_[old];
  if (node.op == Op::Contract) return map_[old] = contract(old, from_.contracts[node.attr]);
  if (node.op == Op::Final) return map_[old];  // made with its loop
  if (node.op == Op::Loop) {
    std::vector<NodeId> operands = from_.loops[node.attr].operands;
    for (NodeId& in : operands) in = (*this)[in];
    return loop(old, std::move(operands));
  }
  for (NodeId& in : node.in) in = (*this)[in];
  uint32_t& layout = layouts_[node.layout];
  if (layout == kNoNode) layout = to_.intern(from_.layouts[node.layout]);
  node.layout = layout;
  if (node.op == Op::Cat) {
    ListAttr attr = from_.lists[node.attr];
    for (NodeId& in : attr.operands) in = (*this)[in];
    to_.lists.push_back(std::move(attr));
    node.attr = static_cast<uint32_t>(to_.lists.size() - 1);
  } else if (node.op == Op::Extern) {
    ExternAttr attr = from_.externs[node.attr];
    place(attr.operands);
    to_.externs.push_back(std::move(attr));
    node.attr = static_cast<uint32_t>(to_.externs.size() - 1);
  }
  to_.set_line(node.line);
  node.again |= copies_again;
  const NodeId now = to_.append(node);
  map_[old] = now;
  return now;
}

// A pass may turn an output into an input's value or into another output's; the caller still gets a tensor of its own.
NodeId Rewriter::output(NodeId old) {
  if (const auto known = finished_.find(old); known != finished_.end()) return known->second;  // handed out before
  const NodeId made = make_output(old);
  given_.insert(made);
  return finished_[old] = made;
}

NodeId Rewriter::make_output(NodeId old) {
  const NodeId now = (*this)[old];
  const std::vector<ir::Dim>& strides = from_.layout(old).strides;
  const bool is_final = to_[now].op == Op::Final && !given_.contains(now);  // nobody else has its memory
  if (is_final && ir::identical(to_.layout(now).strides, strides)) return now;
  if (is_tensor(to_[now].op) && !is_tensor(from_[old].op)) return to_.fresh_copy(now, strides);
  if (given_.contains(now)) return to_.fresh_copy(now, strides);
  return to_.with_strides(now, strides);
}

// What a node of a round was has become one that stands elsewhere, and somebody outside of the round reads it.
void Rewriter::find_moves() {
  const auto moves = [&](NodeId id) {
    const TracedRound was = id == kNoNode ? TracedRound() : from_.round_of(id);
    if (was.loop == TracedRound::kNone || map_[id] == kNoNode) return false;
    const TracedRound now = to_.round_of(map_[id]);
    return now.loop != was.loop || now.round != was.round;
  };
  const auto note = [&](NodeId id) {
    if (moves(id)) to_.traced[from_.round_of(id).loop].alike_from = kNeverAlike;
  };
  for (NodeId reader = 0; reader < from_.nodes.size(); ++reader)
    for (const NodeId id : from_.operands(reader)) {
      if (id == kNoNode) continue;
      const TracedRound of = from_.round_of(id), by = from_.round_of(reader);
      if (of.loop != by.loop || of.round != by.round) note(id);
    }
  std::ranges::for_each(from_.outputs, note);
  for (const Store& store : from_.stores) note(store.value);
}

Graph Rewriter::finish() {
  if (!from_.traced.empty()) find_moves();
  for (const NodeId old : from_.outputs) to_.outputs.push_back(output(old));
  for (Store store : from_.stores) {
    store.value = (*this)[store.value];
    to_.stores.push_back(store);
  }
  return std::move(to_);
}

}  // namespace fastjit::pass
