// A tensor whose slices along a short dim are used each by itself has for its gradient a sum of tensors that hold one
// slice each among zeros (the query, key and value of an attention). They become one that is put together of all
// slices.
#include <algorithm>
#include <bit>

#include "pass/pass.h"
#include "pass/rewrite.h"
#include "pass/slice.h"

namespace fastjit::pass {

using namespace ir;

namespace {

/// Zeros, without a sign.
bool is_zeros(const Graph& graph, NodeId id) {
  while (is_view(graph[id].op)) id = graph[id].in[0];
  return graph[id].op == Op::Const && graph.constants[graph[id].attr] == 0;
}

bool is_sum(const Node& node) { return node.op == Op::Add && is_float(node.dtype); }

class Finder {
 public:
  explicit Finder(const Graph& graph) : graph_(graph), uses_(graph.nodes.size(), 0) {
    for (NodeId id = 0; id < graph.nodes.size(); ++id)
      for (const NodeId in : graph.operands(id))
        if (in != kNoNode) ++uses_[in];
    for (const NodeId id : graph.outputs) ++uses_[id];
    for (const Store& store : graph.stores) ++uses_[store.value];
  }

  /// The dim, and per index along it the value in that slice of the sum; kNoNode: zeros. Nothing: it is another sum.
  struct Sum {
    uint8_t dim = 0;
    std::vector<NodeId> values;
  };
  std::optional<Sum> sum_of(NodeId id) const {
    if (!is_sum(graph_[id])) return std::nullopt;
    std::vector<NodeId> todo{graph_[id].in[0], graph_[id].in[1]};
    std::optional<Sum> sum;
    for (size_t i = 0; i < todo.size(); ++i) {
      const Node& part = graph_[todo[i]];
      if (todo.size() > 2 * kMostSlices || uses_[todo[i]] != 1 || !identical(graph_.sizes(todo[i]), graph_.sizes(id)))
        return std::nullopt;
      if (is_sum(part))
        todo.insert(todo.end(), {part.in[0], part.in[1]});
      else if (!take(part, sum))
        return std::nullopt;
    }
    return sum;
  }

 private:
  bool take(const Node& part, std::optional<Sum>& sum) const {
    if (part.op != Op::Update || !is_zeros(graph_, part.in[0])) return false;
    const auto slice = written_slice(graph_, part);
    if (!slice) return false;
    if (!sum) {
      const Dim length = graph_.sizes(part.in[0])[slice->dim];
      if (length.is_symbolic() || length.hint() > kMostSlices) return false;
      sum = Sum{slice->dim, std::vector<NodeId>(static_cast<size_t>(length.hint()), kNoNode)};
    }
    if (slice->dim != sum->dim) return false;
    NodeId& value = sum->values[static_cast<size_t>(slice->index)];
    if (value != kNoNode) return false;
    value = part.in[1];
    return true;
  }

  const Graph& graph_;
  std::vector<uint32_t> uses_;
};

NodeId put_together(Rewriter& rewriter, NodeId id, const Finder::Sum& sum) {
  Graph& to = rewriter.to();
  const Graph& from = rewriter.from();
  to.set_line(from[id].line);
  const NodeId zero = to.constant(from[id].dtype, 0);
  std::vector<Dim> sizes(from.sizes(id).begin(), from.sizes(id).end());
  sizes[sum.dim] = 1;
  std::vector<NodeId> slices;
  for (const NodeId value : sum.values)  // -0 and a zero are 0
    slices.push_back(value == kNoNode ? to.expand(zero, sizes)
                                      : to.reshape(to.pointwise(Op::Add, {rewriter[value], zero}), sizes));
  return to.with_strides(to.cat(std::move(slices), sum.dim), from.layout(id).strides);
}

}  // namespace

Changed sums(const Graph& graph, const PassContext&) {
  if (std::ranges::none_of(graph.nodes, [](const Node& node) { return node.op == Op::Update; })) return {};
  const Finder finder(graph);
  std::vector<std::pair<NodeId, Finder::Sum>> found;
  for (auto id = static_cast<NodeId>(graph.nodes.size()); id-- > 0;)
    if (auto sum = finder.sum_of(id)) found.emplace_back(id, std::move(*sum));
  if (found.empty()) return {};
  Rewriter rewriter(graph);
  for (NodeId id = 0; id < graph.nodes.size(); ++id) {
    if (found.empty() || found.back().first != id) {
      rewriter.copy(id);
      continue;
    }
    rewriter.set(id, put_together(rewriter, id, found.back().second));
    found.pop_back();
  }
  return rewriter.finish();
}

}  // namespace fastjit::pass
