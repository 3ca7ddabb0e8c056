#include "pass/recompute.h"

#include <unordered_map>
#include <utility>
#include <vector>

#include "pass/rewrite.h"

namespace fastjit::pass {

using namespace ir;

namespace {

class Recompute {
 public:
  Recompute(const Graph& graph, const Checkpoints& checkpoints)
      : graph_(graph), checkpoints_(checkpoints), to_(graph), once_(made_once()) {}

  Graph run() {
    for (NodeId id = 0; id < graph_.nodes.size(); ++id) {
      const uint32_t back_of = checkpoints_.back_of[id];
      if (back_of) make_again(id, back_of);
      copy(id, back_of);
    }
    return to_.finish();
  }

 private:
  // What is there anyway, and what would not be the same again.
  std::vector<bool> made_once() const {
    std::vector<bool> once = checkpoints_.draws;
    const std::vector<bool> written = overwritten(graph_);
    for (NodeId id = 0; id < graph_.nodes.size(); ++id) {
      const Op op = graph_[id].op;
      bool is_effect = false;
      if (op == Op::Extern) {
        const ExternAttr& call = graph_.externs[graph_[id].attr];
        is_effect = (call.kind != ExternKind::Op && call.kind != ExternKind::View) || !call.written.empty();
      }
      const bool is_leaf = op == Op::Input || op == Op::Scalar || op == Op::Const || op == Op::Iota;
      once[id] = once[id] || is_leaf || is_effect || written[memory_of(graph_, id)] ||
                 (op == Op::Result && once[graph_[id].in[0]]);
    }
    return once;
  }

  bool is_made_in(NodeId id, uint32_t checkpoint) const {
    return id != kNoNode && checkpoint && checkpoints_.made_in[id] == checkpoint && !once_[id];
  }

  // A copy of the node that reads what is made again in the checkpoint, where that is.
  void copy(NodeId id, uint32_t checkpoint) {
    std::vector<std::pair<NodeId, NodeId>> were;
    for (const NodeId in : graph_.operands(id))
      if (const auto again = again_.find(in); is_made_in(in, checkpoint) && again != again_.end()) {
        were.emplace_back(in, to_[in]);
        to_.set(in, again->second);
      }
    to_.copy(id);
    for (auto was = were.rbegin(); was != were.rend(); ++was) to_.set(was->first, was->second);
  }

  // What the node reads, and what that follows from, up to what the checkpoint was given.
  void make_again(NodeId reader, uint32_t checkpoint) {
    std::vector<NodeId> todo;
    const auto add_operands = [&](NodeId id) {
      for (const NodeId in : graph_.operands(id))
        if (is_made_in(in, checkpoint) && !again_.contains(in)) todo.push_back(in);
    };
    add_operands(reader);
    while (!todo.empty()) {
      const NodeId id = todo.back();
      const size_t before = todo.size();
      if (!again_.contains(id)) add_operands(id);
      if (todo.size() > before) continue;
      todo.pop_back();
      if (!again_.contains(id)) copy_again(id, checkpoint);
    }
  }

  void copy_again(NodeId id, uint32_t checkpoint) {
    const NodeId was = to_[id];
    to_.copies_again = true;
    copy(id, checkpoint);
    to_.copies_again = false;
    again_.emplace(id, to_[id]);
    to_.set(id, was);
    // What a call gives stands right behind it.
    for (NodeId result = id + 1; graph_[id].op == Op::Extern && result < graph_.nodes.size(); ++result)
      if (graph_[result].op == Op::Result && graph_[result].in[0] == id)
        copy_again(result, checkpoint);
      else
        break;
  }

  const Graph& graph_;
  const Checkpoints& checkpoints_;
  Rewriter to_;
  const std::vector<bool> once_;
  std::unordered_map<NodeId, NodeId> again_;  // node -> where it is made again
};

}  // namespace

Graph recompute(const Graph& graph, const Checkpoints& checkpoints) { return Recompute(graph, checkpoints).run(); }

}  // namespace fastjit::pass
