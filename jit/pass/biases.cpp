// addmm copies its bias into the result and accumulates onto that: two more passes over the result than mm makes. Where
// only kernels read the sum, they add the bias. What torch or the caller gets of an addmm, and what decides a guard,
// stays torch's, bit for bit.
#include <algorithm>

#include "pass/pass.h"
#include "pass/rewrite.h"

namespace fastjit::pass {

using namespace ir;

namespace {

/// Per node: only pointwise work and reductions read it, through views or not, and no guard depends on it.
std::vector<bool> read_by_kernels(const Graph& graph) {
  const std::vector<bool> guarded = decides_guard(graph);
  std::vector<bool> only(graph.nodes.size(), true);
  for (const NodeId id : graph.outputs) only[id] = false;
  for (const Store& store : graph.stores) only[store.value] = false;
  for (NodeId id = static_cast<NodeId>(graph.nodes.size()); id-- > 0;) {
    const Node& node = graph[id];
    const bool computes = is_pointwise(node.op) || node.op == Op::Reduce;
    const bool moves = ir::is_view(node.op);
    if (guarded[id]) only[id] = false;
    for (const NodeId in : graph.operands(id))
      if (in != kNoNode && !computes && !(moves && only[id])) only[in] = false;
  }
  return only;
}

/// A sum of a product of matrices of floats and a bias for each column, both as they are.
bool has_plain_bias(const Graph& graph, NodeId id) {
  const Node& node = graph[id];
  if (node.op != Op::Contract || !is_float(node.dtype)) return false;
  const ContractAttr& attr = graph.contracts[node.attr];
  return attr.kind == Product::Addmm && attr.unscaled && graph.sizes(attr.operands[0]).size() == 1;
}

}  // namespace

Changed biases(const Graph& graph, const PassContext&) {
  const auto is_biased = [](const ContractAttr& attr) { return attr.kind == Product::Addmm && attr.unscaled; };
  if (std::ranges::none_of(graph.contracts, is_biased)) return {};
  const std::vector<bool> only = read_by_kernels(graph);
  Rewriter rewriter(graph);
  Graph& to = rewriter.to();
  for (NodeId id = 0; id < graph.nodes.size(); ++id) {
    if (!only[id] || !has_plain_bias(graph, id)) {
      rewriter.copy(id);
      continue;
    }
    const ContractAttr& sum = graph.contracts[graph[id].attr];
    const NodeId product =
        rewriter.contract(id, {Product::Mm, sum.call, "aten::mm", {sum.operands[1], sum.operands[2]}});
    const NodeId bias = rewriter[sum.operands[0]];
    const auto sizes = graph.sizes(id);
    rewriter.set(id, to.pointwise(Op::Add, {product, to.expand(bias, {sizes.begin(), sizes.end()})}));
  }
  return rewriter.finish();
}

}  // namespace fastjit::pass
