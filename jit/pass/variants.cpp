// Which variant of a function an operation takes follows from what the operation is: e^x, or n / (1 + e^x), rounded to
// bfloat16. Who else reads its parts, and which kernel it stands in, do not count: they have e^x itself.
#include <algorithm>
#include <bit>

#include "pass/pass.h"
#include "pass/rewrite.h"

namespace fastjit::pass {

using namespace ir;

namespace {

bool is_float_exp(const Graph& graph, NodeId id) { return graph[id].op == Op::Exp && graph[id].dtype == DType::F32; }

bool is_one(const Graph& graph, NodeId id) {
  const Node& node = graph[id];
  return node.op == Op::Const && is_float(node.dtype) && std::bit_cast<double>(graph.constants[node.attr]) == 1;
}

/// `exp` with the same operand, to 2^-18: 0.501 ulp of bfloat16.
NodeId rough(Graph& graph, NodeId exp) { return graph.pointwise(Op::ExpRough, {graph[exp].in[0]}); }

/// The float that `value` becomes where it is rounded to bfloat16 next; `value` where it stays.
NodeId about_to_be_rounded(Graph& graph, NodeId value) {
  if (is_float_exp(graph, value)) return rough(graph, value);
  const Node quotient = graph[value];
  if (quotient.op != Op::Div || quotient.dtype != DType::F32) return value;
  const Node sum = graph[quotient.in[1]];
  if (sum.op != Op::Add) return value;
  for (const int side : {0, 1})
    if (is_one(graph, sum.in[side]) && is_float_exp(graph, sum.in[1 - side])) {
      const NodeId exp = rough(graph, sum.in[1 - side]);
      const NodeId made = graph.pointwise(Op::Add, {sum.in[side], exp});
      return graph.pointwise(Op::Div, {quotient.in[0], made});
    }
  return value;
}

}  // namespace

Changed variants(const Graph& graph, const PassContext&) {
  const auto rounds = [](const Node& node) { return node.op == Op::Convert && node.dtype == DType::BF16; };
  if (std::ranges::none_of(graph.nodes, rounds)) return {};
  Rewriter rewriter(graph);
  Graph& to = rewriter.to();
  for (NodeId id = 0; id < graph.nodes.size(); ++id) {
    to.set_line(graph[id].line);
    const Node& node = graph[id];
    const NodeId value = rewriter[node.in[0]];
    if (rounds(node)) rewriter.set(node.in[0], about_to_be_rounded(to, value));
    rewriter.copy(id);
    if (rounds(node)) rewriter.set(node.in[0], value);
  }
  return rewriter.finish();
}

}  // namespace fastjit::pass
