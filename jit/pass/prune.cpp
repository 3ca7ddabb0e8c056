#include <algorithm>

#include "ir/constants.h"
#include "pass/follow.h"
#include "pass/rewrite.h"
#include "pass/split.h"

namespace fastjit::pass {

using namespace ir;

namespace {

/// The graph without what nobody is given or wants.
class Pruner {
 public:
  Pruner(const Graph& graph, const std::vector<bool>& late, const std::vector<bool>& missing)
      : graph_(graph),
        half_(graph),
        missing_(followers(graph, missing)),
        there_(followers(graph, present(late, missing))) {
    half_.to().inputs.clear();
  }

  Pruned run(const std::vector<bool>& wanted) {
    find_needed(wanted);
    Pruned out;
    for (NodeId id = 0; id < graph_.nodes.size(); ++id) {
      if (!needed_[id] || is_nothing(id)) continue;
      if (graph_[id].op != Op::Input) {
        make(id);
        continue;
      }
      out.inputs.push_back(graph_[id].attr);
      half_.input(id, graph_.inputs[graph_[id].attr].name);
    }
    for (size_t i = 0; i < graph_.outputs.size(); ++i) {
      const NodeId id = graph_.outputs[i];
      out.outputs.push_back(wanted[i] ? static_cast<int>(half_.to().outputs.size()) : -1);
      if (wanted[i]) half_.to().outputs.push_back(is_nothing(id) ? zeros(id) : half_.output(id));
    }
    out.graph = std::move(half_.to());
    return out;
  }

 private:
  static std::vector<bool> present(std::vector<bool> late, const std::vector<bool>& missing) {
    for (size_t i = 0; i < late.size(); ++i) late[i] = late[i] && !missing[i];
    return late;
  }

  bool is_nothing(NodeId id) const { return missing_[id] && !there_[id]; }

  // Calls that write are needed for what they write.
  void find_needed(const std::vector<bool>& wanted) {
    needed_.assign(graph_.nodes.size(), false);
    const bool writes =
        std::ranges::any_of(graph_.externs, [](const ExternAttr& call) { return !call.written.empty(); });
    for (size_t i = 0; i < graph_.outputs.size(); ++i)
      if (wanted[i]) needed_[graph_.outputs[i]] = true;
    for (auto id = static_cast<NodeId>(graph_.nodes.size()); id-- > 0;) {
      if (writes && graph_[id].op == Op::Extern) needed_[id] = true;
      if (!needed_[id] || is_nothing(id)) continue;
      for (const NodeId in : graph_.operands(id))
        if (in != kNoNode) needed_[in] = true;
    }
  }

  void make(NodeId id) {
    const Node& node = graph_[id];
    const auto same = [&](NodeId in) { return identical(graph_.sizes(in), graph_.sizes(id)); };
    if (node.op == Op::Add)
      for (const int other : {0, 1})
        if (is_nothing(node.in[1 - other]) && same(node.in[other]))
          return half_.set(id, half_.to().with_strides(half_[node.in[other]], graph_.layout(id).strides));
    for (const NodeId in : graph_.operands(id))
      if (in != kNoNode && is_nothing(in)) half_.set(in, zeros(in));
    half_.copy(id);
  }

  NodeId zeros(NodeId like) {
    Graph& to = half_.to();
    const Layout& layout = graph_.layout(like);
    return to.fresh_copy(to.expand(zero(to, graph_[like].dtype), layout.sizes), layout.strides);
  }

  const Graph& graph_;
  Rewriter half_;
  const std::vector<bool> missing_, there_;
  std::vector<bool> needed_;
};

}  // namespace

Pruned prune(const Graph& graph, const std::vector<bool>& late, const std::vector<bool>& missing,
             const std::vector<bool>& wanted) {
  return Pruner(graph, late, missing).run(wanted);
}

}  // namespace fastjit::pass
