#include <algorithm>
#include <array>

#include "ir/constants.h"
#include "pass/follow.h"
#include "pass/split.h"

namespace fastjit::pass {

using namespace ir;

namespace {

// Calls of torch's whose results are linear in the first operand.
constexpr std::array<std::string_view, 5> kLinearInFirst{
    "aten::convolution_backward", "aten::max_pool2d_with_indices_backward", "aten::avg_pool2d_backward",
    "aten::_adaptive_avg_pool2d_backward", "aten::embedding_dense_backward"};

/// Of each node, what it is of the late inputs.
class Linearity {
 public:
  Linearity(const Graph& graph, const std::vector<bool>& late)
      : graph_(graph), follows_(followers(graph, late)), linear_(graph.nodes.size(), false) {
    for (NodeId id = 0; id < graph.nodes.size(); ++id) linear_[id] = follows_[id] ? combines(id) : is_zero(id);
  }

  bool of(NodeId id) const { return linear_[id]; }

 private:
  bool is_zero(NodeId id) const {
    const Node& node = graph_[id];
    if (ir::is_view(node.op) || node.op == Op::Convert) return linear_[node.in[0]];
    return node.op == Op::Const && graph_.constants[node.attr] == 0;  // the bits of +0
  }

  bool is_sum(std::span<const NodeId> terms) const {
    return std::ranges::all_of(terms, [&](NodeId in) { return linear_[in]; });
  }

  // One operand, with factors or choices that the late inputs have no part in.
  bool is_scaled(std::span<const NodeId> operands, size_t which) const {
    for (size_t i = 0; i < operands.size(); ++i)
      if (i != which && operands[i] != kNoNode && follows_[operands[i]]) return false;
    return linear_[operands[which]];
  }

  bool is_product(std::span<const NodeId> factors) const {
    return factors.size() == 2 && is_scaled(factors, follows_[factors[0]] ? 0 : 1);
  }

  bool combines(NodeId id) const {
    const Node& node = graph_[id];
    const auto in = graph_.operands(id);
    switch (node.op) {
      case Op::Input:
        return true;
      case Op::Add:
      case Op::Sub:
      case Op::Neg:
      case Op::View:
      case Op::Reshape:
      case Op::Update:
      case Op::Cat:
        return is_sum(in);
      case Op::Convert:
        return is_floating(node.dtype) && is_floating(graph_[in[0]].dtype) && is_sum(in);
      case Op::Mul:
      case Op::Dot:
        return is_product(in);
      case Op::Div:
      case Op::Gather:
        return is_scaled(in, 0);
      case Op::Where:
        return !follows_[in[0]] && is_sum(in.subspan(1));
      case Op::Reduce:
        return graph_.reduces[node.attr].kind == ReduceKind::Sum && is_sum(in);
      case Op::Contract:
        return is_product(in);  // one with a bias is a sum of another kind
      case Op::Extern:
        return is_linear_call(graph_.externs[node.attr]);
      case Op::Result:
        return linear_[in[0]];
      default:
        return false;
    }
  }

  bool is_linear_call(const ExternAttr& call) const {
    return call.kind == ExternKind::Op && call.written.empty() &&
           std::ranges::find(kLinearInFirst, call.name) != kLinearInFirst.end() && is_scaled(call.operands, 0);
  }

  const Graph& graph_;
  const std::vector<bool> follows_;  // from late inputs
  std::vector<bool> linear_;         // in them, or zero
};

}  // namespace

bool is_linear(const Graph& graph, const std::vector<bool>& late) {
  const Linearity linear(graph, late);
  return std::ranges::all_of(graph.outputs, [&](NodeId id) { return linear.of(id); });
}

}  // namespace fastjit::pass
