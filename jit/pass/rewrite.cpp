#include "pass/rewrite.h"

namespace fastjit::pass {

using namespace ir;

NodeId Rewriter::copy(NodeId old) {
  Node node = from_[old];
  for (NodeId& in : node.in) in = (*this)[in];
  node.layout = to_.intern(from_.layouts[node.layout]);
  if (node.op == Op::Cat) {
    ListAttr attr = from_.lists[node.attr];
    for (NodeId& in : attr.operands) in = (*this)[in];
    to_.lists.push_back(std::move(attr));
    node.attr = static_cast<uint32_t>(to_.lists.size() - 1);
  } else if (node.op == Op::Extern) {
    ExternAttr attr = from_.externs[node.attr];
    for (NodeId& in : attr.operands) in = (*this)[in];
    to_.externs.push_back(std::move(attr));
    node.attr = static_cast<uint32_t>(to_.externs.size() - 1);
  }
  to_.set_line(node.line);
  const NodeId now = to_.append(node);
  map_[old] = now;
  return now;
}

Graph Rewriter::finish() {
  for (NodeId id : from_.outputs) to_.outputs.push_back((*this)[id]);
  for (Store store : from_.stores) {
    store.value = (*this)[store.value];
    to_.stores.push_back(store);
  }
  return std::move(to_);
}

}  // namespace fastjit::pass
