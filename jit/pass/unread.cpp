// What a call writes to a part of a tensor is often read as the value that was written, and the rest of the tensor as
// it was before: the gates of a cell, each made in its own quarter of one product. Where nobody reads more, those views
// are views of what was updated, and the update is none.
#include <algorithm>
#include <utility>

#include "ir/regions.h"
#include "pass/keep.h"
#include "pass/pass.h"
#include "pass/rewrite.h"
#include "support/work.h"

namespace fastjit::pass {

using namespace ir;

namespace {

constexpr size_t kMostViews = 64;  // that are carried from an update to the one before

class Finder {
 public:
  explicit Finder(const Graph& graph)
      : graph_(graph),
        changes_(overwritten(graph)),
        views_(graph.nodes.size()),
        next_(graph.nodes.size(), kNoNode),
        is_read_(graph.nodes.size(), false),
        live_(graph.nodes.size(), false),
        base_(graph.nodes.size(), kNoNode) {}

  /// The graph in which views see what they are to be views of; nothing: all do.
  Changed run() {
    for (const NodeId id : graph_.outputs) is_read_[id] = true;
    for (const Store& store : graph_.stores) is_read_[store.value] = true;
    for (auto id = static_cast<NodeId>(graph_.nodes.size()); id-- > 0;) {
      is_read_[id] = is_read_[id] || stays(graph_, id);
      if (!is_read_[id] && views_[id].count == 0) continue;
      const Node& node = graph_[id];
      if (node.op == Op::Update && !is_read_[id] && pass_on(id)) continue;
      live_[id] = true;
      take_finals(graph_, id, live_);
      for (const NodeId in : graph_.operands(id)) {
        if (in == kNoNode) continue;
        if (node.op == Op::View)
          add(in, id);
        else
          is_read_[in] = true;
      }
    }
    if (std::ranges::all_of(base_, [](NodeId id) { return id == kNoNode; })) return {};
    return kept(graph_, live_, base_);
  }

 private:
  struct Views {
    NodeId first = kNoNode;  // of next_
    uint32_t count = 0;
  };

  void add(NodeId of, NodeId view) {
    next_[view] = std::exchange(views_[of].first, view);
    ++views_[of].count;
  }

  // Nobody reads what the update wrote: its views see what it updated.
  bool pass_on(NodeId id) {
    const Node& update = graph_[id];
    if (views_[id].count > kMostViews) return false;
    for (NodeId view = views_[id].first; view != kNoNode; view = next_[view]) {
      support::count_work();
      if (!are_apart(graph_.maps[graph_[view].attr], graph_.sizes(view), graph_.maps[update.attr],
                     graph_.sizes(update.in[1])))
        return false;
    }
    if (changes_[memory_of(graph_, update.in[0])]) return false;  // by a call, before somebody reads it there
    for (NodeId view = std::exchange(views_[id].first, kNoNode); view != kNoNode;) {
      base_[view] = update.in[0];
      add(update.in[0], std::exchange(view, next_[view]));
    }
    return true;
  }

  const Graph& graph_;
  const std::vector<bool> changes_;  // per node: a call writes it
  std::vector<Views> views_;         // per node: views of it, and of updates of it that nobody reads
  std::vector<NodeId> next_;         // per view: the next one of the same node
  std::vector<bool> is_read_;        // per node: as it is, not through views
  std::vector<bool> live_;
  std::vector<NodeId> base_;  // per View: what it is to be a view of; kNoNode: what it is
};

}  // namespace

Changed unread(const Graph& graph, const PassContext&) {
  if (std::ranges::none_of(graph.nodes, [](const Node& node) { return node.op == Op::Update; })) return {};
  return Finder(graph).run();
}

}  // namespace fastjit::pass
