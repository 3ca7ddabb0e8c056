#include "plan/cats.h"

#include <algorithm>
#include <unordered_map>

#include "plan/late.h"
#include "plan/maps.h"
#include "plan/work.h"
#include "support/mix.h"

namespace fastjit::plan {

namespace {

using support::mix;
using Nodes = std::vector<bool>;

/// The node and what it is a view of.
void mark(const ir::Graph& graph, ir::NodeId id, Nodes& nodes) {
  while (id != ir::kNoNode && !nodes[id]) {
    nodes[id] = true;
    if (ir::is_view(graph[id].op)) id = graph[id].in[0];
  }
}

/// Nodes whose memory somebody else reaches: results, what calls of torch's write or give views of, and what is stored
/// over.
Nodes seen_elsewhere(const ir::Graph& graph) {
  Nodes seen(graph.nodes.size(), false);
  for (const ir::NodeId id : graph.outputs) mark(graph, id, seen);
  for (ir::NodeId id = 0; id < graph.nodes.size(); ++id) mark(graph, graph.stored_over(id), seen);
  for (const ir::ExternAttr& attr : graph.externs) {
    for (const uint32_t index : attr.written) mark(graph, attr.operands[index], seen);
    if (attr.kind != ir::ExternKind::View) continue;
    for (const ir::NodeId id : attr.operands) mark(graph, id, seen);
  }
  return seen;
}

/// Nodes that calls of torch's read.
Nodes given_to_calls(const ir::Graph& graph) {
  Nodes given(graph.nodes.size(), false);
  for (ir::NodeId call = 0; call < graph.nodes.size(); ++call)
    if (graph[call].op == ir::Op::Extern || graph[call].op == ir::Op::Contract)
      for (const ir::NodeId id : graph.operands(call)) mark(graph, id, given);
  return given;
}

class Chains {
 public:
  Chains(const ir::Graph& graph, const Nodes& live)
      : graph_(graph),
        live_(live),
        seen_(seen_elsewhere(graph)),
        given_(given_to_calls(graph)),
        longer_(graph.nodes.size(), ir::kNoNode) {}

  std::vector<ir::NodeId> run() {
    for (ir::NodeId id = 0; id < graph_.nodes.size(); ++id) {
      if (graph_[id].op != ir::Op::Cat || !live_[id] || seen_[id] || graph_.layout(id).numel() == 0) continue;
      if (const ir::NodeId begin = beginning(id); begin != ir::kNoNode) longer_[begin] = id;
      by_parts_.try_emplace(hash(list(id).operands.size(), id), id);
    }
    return std::move(longer_);
  }

 private:
  const ir::ListAttr& list(ir::NodeId cat) const { return graph_.lists[graph_[cat].attr]; }

  uint64_t hash(size_t parts, ir::NodeId cat) const {
    uint64_t result = static_cast<uint64_t>(list(cat).dim);
    for (size_t i = 0; i < parts; ++i) result = mix(result, list(cat).operands[i]);
    return result;
  }

  /// A call that reads the part needs eager's strides. Memory of a size that a run finds is not there before, and the
  /// part may be what it is found in.
  bool may_lie_in(ir::NodeId part, ir::NodeId cat) const {
    if (longer_[part] != ir::kNoNode || graph_[part].dtype != graph_[cat].dtype) return false;
    if ((late_in(graph_, graph_.sizes(cat)) & ~late_in(graph_, graph_.sizes(part))) != 0) return false;
    return !given_[part] || same_strides(graph_.sizes(part), graph_.layout(part).strides, graph_.layout(cat).strides);
  }

  /// The longest Cat of the same first parts, or a Cat that is itself the first part.
  ir::NodeId beginning(ir::NodeId cat) const {
    const ir::ListAttr& all = list(cat);
    if (all.operands.size() < 2) return ir::kNoNode;
    const ir::NodeId first = all.operands[0];
    if (graph_[first].op == ir::Op::Cat && list(first).dim == all.dim && !seen_[first] && live_[first] &&
        graph_.layout(first).numel() > 0 && may_lie_in(first, cat))
      return first;
    ir::NodeId found = ir::kNoNode;
    uint64_t begun = static_cast<uint64_t>(all.dim);
    for (size_t i = 0; i + 1 < all.operands.size(); ++i) {
      work();
      begun = mix(begun, all.operands[i]);
      const auto other = by_parts_.find(begun);
      if (i == 0 || other == by_parts_.end() || !may_lie_in(other->second, cat)) continue;
      const ir::ListAttr& parts = list(other->second);
      if (parts.dim == all.dim && parts.operands.size() == i + 1 &&
          std::equal(parts.operands.begin(), parts.operands.end(), all.operands.begin()))
        found = other->second;
    }
    return found;
  }

  const ir::Graph& graph_;
  const Nodes& live_;
  const Nodes seen_, given_;
  std::vector<ir::NodeId> longer_;
  std::unordered_map<uint64_t, ir::NodeId> by_parts_;
};

}  // namespace

std::vector<ir::NodeId> longer_cats(const ir::Graph& graph, const std::vector<bool>& live) {
  return Chains(graph, live).run();
}

}  // namespace fastjit::plan
