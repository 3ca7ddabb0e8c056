#include "pass/constants.h"

#include <algorithm>

#include "pass/pass.h"
#include "pass/rewrite.h"

namespace fastjit::pass {

using namespace ir;

namespace {

// What a program may keep from call to call.
constexpr int64_t kMostBytes = 1 << 20;       // of one value
constexpr int64_t kMostBytesInAll = 4 << 20;  // of all of them
constexpr int64_t kFewTimes = 4;  // a value so many times as large as what it is made of is made anew from that

class Folder {
 public:
  Folder(const Graph& graph, const std::vector<bool>& constant)
      : graph_(graph),
        is_constant_(graph.nodes.size(), false),
        is_heavy_(graph.nodes.size(), false),
        is_asked_(graph.nodes.size(), false),
        is_kept_(graph.nodes.size(), false),
        is_shown_(shown(graph)) {
    for (NodeId id = 0; id < graph.nodes.size(); ++id) {
      is_constant_[id] = follows(id, constant);
      is_heavy_[id] = is_constant_[id] && is_heavy(id);
    }
  }

  std::optional<ConstantParts> run() {
    for (NodeId id = 0; id < graph_.nodes.size(); ++id)
      if (!is_constant_[id]) ask_for_operands(id);
    for (const NodeId id : graph_.outputs) ask_for_operands(id);
    for (const Store& store : graph_.stores) ask_for_operands(store.value);
    if (std::ranges::find(is_kept_, true) == is_kept_.end()) return std::nullopt;
    return ConstantParts{part(), rest()};
  }

 private:
  /// Per node: somebody outside of the graph, or a call that writes, reaches the memory it may lie in.
  static std::vector<bool> shown(const Graph& graph) {
    std::vector<bool> out = overwritten(graph);
    const auto show = [&](NodeId id) { out[id] = out[memory_of(graph, id)] = true; };
    std::ranges::for_each(graph.outputs, show);
    std::vector<bool> is_stored(graph.inputs.size(), false);
    for (const Store& store : graph.stores) {
      show(store.value);
      is_stored[store.input] = true;
    }
    for (NodeId id = 0; id < graph.nodes.size(); ++id)
      if (graph[id].op == Op::Input && is_stored[graph[id].attr]) show(id);
    return out;
  }

  bool follows(NodeId id, const std::vector<bool>& constant) const {
    const Node& node = graph_[id];
    const bool is_made =
        (info(node.op).flags & Pure) && node.op != Op::Input && node.op != Op::Scalar && node.op != Op::Contract;
    const bool is_given = node.op == Op::Input && constant[node.attr] && !is_shown_[id];
    if ((!is_made && !is_given) || node.again || is_raw(node.dtype)) return false;
    const Layout& layout = graph_.layout(id);
    if (std::ranges::any_of(layout.sizes, &Dim::is_symbolic) || std::ranges::any_of(layout.strides, &Dim::is_symbolic))
      return false;
    return std::ranges::all_of(graph_.operands(id), [&](NodeId in) { return in == kNoNode || is_constant_[in]; });
  }

  /// A kernel that reads it would compute more, or would have to be more than one.
  bool is_heavy(NodeId id) const {
    const Op op = graph_[id].op;
    const bool is_leaf = op == Op::Input || op == Op::Const || op == Op::Iota;
    if (!(is_leaf || is_pointwise(op) || is_view(op)) || (info(op).flags & Expensive)) return true;
    return std::ranges::any_of(graph_.operands(id), [&](NodeId in) { return in != kNoNode && is_heavy_[in]; });
  }

  int64_t bytes(NodeId id) const { return graph_.layout(id).numel().hint() * size_of(graph_[id].dtype); }

  bool is_worth_it(NodeId id) const {
    if (!is_heavy_[id] || is_shown_[id] || is_view(graph_[id].op) || bytes(id) > kMostBytes) return false;
    int64_t read = 0;
    for (const NodeId in : graph_.operands(id)) read += in == kNoNode ? 0 : bytes(in);
    return bytes(id) <= kFewTimes * read || (info(graph_[id].op).flags & Expensive);
  }

  void ask_for_operands(NodeId id) {
    std::vector<NodeId> todo(graph_.operands(id).begin(), graph_.operands(id).end());
    while (!todo.empty()) {
      const NodeId next = todo.back();
      todo.pop_back();
      if (next == kNoNode || !is_constant_[next] || is_asked_[next]) continue;
      is_asked_[next] = true;
      if (is_worth_it(next) && bytes_ + bytes(next) <= kMostBytesInAll) {
        is_kept_[next] = true;
        bytes_ += bytes(next);
        continue;
      }
      todo.insert(todo.end(), graph_.operands(next).begin(), graph_.operands(next).end());
    }
  }

  Graph part() const {
    std::vector<bool> needed = is_kept_;
    for (auto id = static_cast<NodeId>(graph_.nodes.size()); id-- > 0;)
      if (needed[id])
        for (const NodeId in : graph_.operands(id))
          if (in != kNoNode) needed[in] = true;
    Rewriter rewriter(graph_);
    for (NodeId id = 0; id < graph_.nodes.size(); ++id)
      if (needed[id] || graph_[id].op == Op::Input) rewriter.copy(id);
    Graph& to = rewriter.to();
    to.scalars.clear();
    forget_symbols(to);
    for (NodeId id = 0; id < graph_.nodes.size(); ++id)
      if (is_kept_[id]) to.outputs.push_back(rewriter.output(id));
    return std::move(to);
  }

  /// Sizes that differ from call to call are those of inputs that the part does not read: any numbers do.
  static void forget_symbols(Graph& part) {
    const auto forget = [](std::vector<Dim>& dims) {
      for (Dim& dim : dims) dim = dim.hint();
    };
    for (Node& node : part.nodes) {
      Layout layout = part.layouts[node.layout];
      forget(layout.sizes);
      forget(layout.strides);
      node.layout = part.intern(std::move(layout));
    }
    part.symbols = nullptr;
  }

  Graph rest() const {
    Rewriter rewriter(graph_);
    for (NodeId id = 0; id < graph_.nodes.size(); ++id)
      if (is_kept_[id])
        rewriter.input(id, "constant at " + graph_.lines[graph_[id].line]);
      else
        rewriter.copy(id);
    Graph made = rewriter.finish();
    if (Changed changed = dead(made, {})) return std::move(*changed);
    return made;
  }

  const Graph& graph_;
  std::vector<bool> is_constant_, is_heavy_, is_asked_, is_kept_;
  const std::vector<bool> is_shown_;
  int64_t bytes_ = 0;
};

}  // namespace

std::optional<ConstantParts> fold_constants(const Graph& graph, const std::vector<bool>& constant) {
  if (!graph.traced.empty()) return std::nullopt;
  const Symbols::Scope symbols(graph.symbols.get());
  return Folder(graph, constant).run();
}

}  // namespace fastjit::pass
