// In place where no older value is wanted afterwards (Cytron et al. 1991 speak of the copies that leaving SSA form
// needs; here they are the fresh copies below an Update).
#include "plan/updates.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "ir/regions.h"
#include "pass/rewrite.h"
#include "plan/work.h"

namespace fastjit::plan {

using ir::NodeId;
using ir::Op;

namespace {

constexpr size_t kMostNodes = 64;  // of a value that are looked at

/// The views of `base` that computing `value` reads, as far as they are looked at.
std::vector<NodeId> views_read(const ir::Graph& graph, NodeId value, NodeId base) {
  std::vector<NodeId> views, stack{value};
  for (size_t seen = 0; !stack.empty() && seen < kMostNodes; ++seen) {
    work();
    const NodeId id = stack.back();
    stack.pop_back();
    const ir::Node& node = graph[id];
    if (node.op == Op::View && node.in[0] == base) {
      views.push_back(id);
      continue;
    }
    if (!ir::is_pointwise(node.op) && !ir::is_view(node.op)) continue;
    for (const NodeId in : graph.operands(id)) stack.push_back(in);
  }
  return views;
}

/// Whether computing `value` reads `base` elsewhere than where `map` writes it, so that it cannot be written there as
/// it is computed.
bool reads_beside(const ir::Graph& graph, NodeId value, NodeId base, uint32_t map) {
  const ir::IndexMap& written = graph.maps[map];
  return std::ranges::any_of(views_read(graph, value, base), [&](NodeId view) {
    const ir::IndexMap& read = graph.maps[graph[view].attr];
    return !(read == written) && !are_apart(read, graph.sizes(view), written, graph.sizes(value));
  });
}

/// Each dim of the base is indexed by one of the value's, all of them by others (a diagonal is no box), or by a number.
bool is_box(const ir::IndexMap& map) {
  uint64_t taken = 0;
  return std::ranges::all_of(map.dims, [&](const ir::Affine& row) {
    if (row.terms.empty()) return true;
    const uint64_t bit = uint64_t{1} << row.terms[0].first;
    const bool is_new = !(taken & bit);
    taken |= bit;
    return is_new && row.terms.size() == 1 && row.terms[0].second == 1;
  });
}

/// Half of the base or more, and a box in it.
bool is_large_box(const ir::Graph& graph, NodeId update) {
  const ir::Node& node = graph[update];
  const auto count = [&](NodeId id) { return graph.layout(id).numel(); };
  const bool is_known = !count(update).is_symbolic() && !count(node.in[1]).is_symbolic();
  return is_known && count(node.in[1]).hint() * 2 >= count(update).hint() && is_box(graph.maps[node.attr]);
}

/// The update in memory of its own: the value, then around it what the base holds there.
NodeId beside(pass::Rewriter& rewriter, NodeId update) {
  const ir::Graph& from = rewriter.from();
  const ir::Node& node = from[update];
  ir::Graph& to = rewriter.to();
  const NodeId base = rewriter[node.in[0]];
  const ir::IndexMap region = from.maps[node.attr];
  const std::vector<ir::Dim> written(from.sizes(node.in[1]).begin(), from.sizes(node.in[1]).end());
  NodeId now = to.update(to.undef(node.dtype, from.layout(update)), rewriter[node.in[1]], region);
  std::vector<ir::Dim> size(from.sizes(update).begin(), from.sizes(update).end());
  std::vector<ir::Dim> start(size.size(), 0);
  const auto fill = [&] {
    ir::IndexMap map;
    for (size_t d = 0; d < size.size(); ++d) map.dims.push_back({start[d], {{static_cast<uint8_t>(d), 1}}});
    if (std::ranges::none_of(size, [](ir::Dim length) { return length == 0; }))
      now = to.update(now, to.view(base, map, size), map);
  };
  for (size_t d = 0; d < size.size(); ++d) {
    const ir::Affine& row = region.dims[d];
    const ir::Dim whole = size[d], low = row.offset,
                  length = row.terms.empty() ? ir::Dim(1) : written[row.terms[0].first];
    size[d] = low;
    fill();
    start[d] = low + length;
    size[d] = whole - low - length;
    fill();
    start[d] = low;
    size[d] = length;
  }
  return now;
}

bool is_call(const ir::Graph& graph, const ir::Node& node, ir::ExternKind kind) {
  return node.op == Op::Extern && graph.externs[node.attr].kind == kind;
}

/// Per node the last one that reads it itself; kNoNode: the caller does. Views are readers like others: what they give
/// is read before the next write, or stored before it (Former::mark_before_write). An input's memory is the caller's
/// in any case.
std::vector<NodeId> last_readers(const ir::Graph& graph) {
  std::vector<NodeId> last(graph.nodes.size(), 0);
  for (NodeId id = 0; id < graph.nodes.size(); ++id)
    for (const NodeId in : graph.operands(id))
      if (in != ir::kNoNode) last[in] = id;
  const auto keep = [&](NodeId id) {
    if (graph[id].op != Op::Input) last[id] = ir::kNoNode;
  };
  for (NodeId id = 0; id < graph.nodes.size(); ++id) {  // a view of torch's stays where it is
    const ir::Node& node = graph[id];
    if (node.op != Op::Result || !is_call(graph, graph[node.in[0]], ir::ExternKind::View)) continue;
    NodeId base = graph.operands(node.in[0])[0];
    for (; ir::is_view(graph[base].op); base = graph[base].in[0]) keep(base);
    keep(base);
    if (last[id] != 0) last[base] = ir::kNoNode;  // a step reads it, of an input too
  }
  for (const NodeId id : graph.outputs) keep(id);
  for (const ir::Store& store : graph.stores) last[store.value] = ir::kNoNode;
  return last;
}

/// The node whose step stores this one, an Update or a Final.
NodeId writer(const ir::Graph& graph, NodeId id) { return graph[id].op == Op::Final ? graph[id].in[0] : id; }

std::vector<bool> made_in_inputs(const ir::Graph& graph, Inputs inputs, const std::vector<NodeId>& last) {
  std::vector<bool> made(graph.nodes.size(), false);
  const auto may_end = [&](const ir::Node& node) { return pass::may_end(graph, node); };
  if (inputs == Inputs::OfCaller && std::ranges::any_of(graph.nodes, may_end)) return made;
  const std::unordered_set<NodeId> outputs(graph.outputs.begin(), graph.outputs.end());
  for (const ir::Store& store : graph.stores) {
    std::vector<NodeId> chain;
    NodeId at = store.value;
    for (NodeId base; (base = graph.stored_over(at)) != ir::kNoNode && last[base] == writer(graph, at); at = base)
      chain.push_back(at);
    const bool is_whole = graph[at].op == Op::Input && graph[at].attr == store.input;
    if (!is_whole || outputs.contains(store.value)) continue;
    for (const NodeId id : chain) made[id] = true;
  }
  return made;
}

/// What may be stored over: the program's own memory, which is there to be written to, or an input's that may be.
struct Writable {
  Writable(const ir::Graph& graph, Inputs inputs)
      : graph(graph), last(last_readers(graph)), in_inputs(made_in_inputs(graph, inputs, last)) {}
  /// `base`, of which `made` is stored over some elements.
  bool is_memory(NodeId base, NodeId made) const {
    const Op op = graph[base].op;
    return in_inputs[made] || op == Op::Undef || op == Op::Cat || graph.stored_over(base) != ir::kNoNode;
  }
  /// The memory is there, and nobody wants what it holds.
  bool takes(NodeId base, NodeId made, NodeId writer) const { return is_memory(base, made) && last[base] == writer; }

  const ir::Graph& graph;
  const std::vector<NodeId> last;
  const std::vector<bool> in_inputs;
};

/// What is computed, and is kept in memory in any case to be updated in part, is there for the update to read as well,
/// so that it is in memory once. Per view of such a base that an update replaces element by element: the base.
std::unordered_map<NodeId, NodeId> views_of_memory(const ir::Graph& graph, const std::vector<NodeId>& last) {
  std::unordered_map<NodeId, NodeId> base_of;
  for (NodeId id = 0; id < graph.nodes.size(); ++id) {
    const ir::Node& node = graph[id];
    if (node.op != Op::Update || last[node.in[0]] != id) continue;
    if (!ir::is_pointwise(graph[node.in[0]].op)) continue;
    const std::vector<NodeId> views = views_read(graph, node.in[1], node.in[0]);
    const auto is_replaced = [&](NodeId view) { return graph.maps[graph[view].attr] == graph.maps[node.attr]; };
    if (!std::ranges::all_of(views, is_replaced)) continue;
    for (const NodeId view : views) base_of.emplace(view, node.in[0]);
  }
  return base_of;
}

/// What a loop places is stored over its operand, or over a copy of that.
void copy_loop(pass::Rewriter& rewriter, NodeId loop, const Writable& writable) {
  const ir::Graph& graph = rewriter.from();
  const ir::LoopAttr& attr = graph.loops[graph[loop].attr];
  std::vector<NodeId> operands;
  for (const NodeId in : attr.operands) operands.push_back(rewriter[in]);
  rewriter.to().set_line(graph[loop].line);
  for (uint32_t which = attr.carried; which < attr.carried + attr.placed; ++which) {
    const NodeId base = attr.operands[which], final = loop + 1 + which;
    const bool is_alone = std::ranges::count(attr.operands, base) == 1;
    if (!writable.takes(base, final, loop) || !is_alone)
      operands[which] = rewriter.to().fresh_copy(operands[which], graph.layout(final).strides);
  }
  rewriter.loop(loop, std::move(operands));
}

/// Copies the graph with its updates in place.
class InPlace {
 public:
  InPlace(const ir::Graph& graph, Inputs inputs)
      : graph_(graph), rewriter_(graph), writable_(graph, inputs), base_of_(views_of_memory(graph, writable_.last)) {}

  ir::Graph run() {
    for (NodeId id = 0; id < graph_.nodes.size(); ++id) {
      work();
      if (const auto view = base_of_.find(id); view != base_of_.end())
        move(id, view->second);
      else if (graph_[id].op == Op::Loop)
        copy_loop(rewriter_, id, writable_);
      else if (graph_[id].op == Op::Update)
        update(id);
      else
        rewriter_.copy(id);
    }
    return rewriter_.finish();
  }

 private:
  /// The memory that the base is computed into, of its own.
  NodeId memory_of(NodeId base) {
    const auto [known, is_new] = memory_.try_emplace(base, ir::kNoNode);
    if (is_new) known->second = rewriter_.to().fresh_copy(rewriter_[base], graph_.layout(base).strides);
    return known->second;
  }

  void move(NodeId view, NodeId base) {
    rewriter_.to().set_line(graph_[view].line);
    const std::span<const ir::Dim> sizes = graph_.sizes(view);
    rewriter_.set(view,
                  rewriter_.to().view(memory_of(base), graph_.maps[graph_[view].attr], {sizes.begin(), sizes.end()}));
  }

  void update(NodeId id) {
    const ir::Node& node = graph_[id];
    const NodeId over = node.in[0];
    const bool is_last = writable_.last[over] == id;
    rewriter_.to().set_line(node.line);
    if (!writable_.in_inputs[id] && graph_[over].op != Op::Undef && is_large_box(graph_, id) &&
        (!is_last || reads_beside(graph_, node.in[1], over, node.attr)))
      return rewriter_.set(id, beside(rewriter_, id));
    NodeId base = rewriter_[over];
    if (is_last && memory_.contains(over))
      base = memory_of(over);
    else if (!writable_.takes(over, id, id))
      base = rewriter_.to().fresh_copy(base, graph_.layout(id).strides);
    rewriter_.set(id, rewriter_.to().update(base, rewriter_[node.in[1]], graph_.maps[node.attr]));
  }

  const ir::Graph& graph_;
  pass::Rewriter rewriter_;
  const Writable writable_;
  const std::unordered_map<NodeId, NodeId> base_of_;  // see views_of_memory
  std::unordered_map<NodeId, NodeId> memory_;         // by what is computed into it
};

}  // namespace

std::vector<NodeId> memory_of_updates(const ir::Graph& graph) {
  std::vector<NodeId> memory(graph.nodes.size(), ir::kNoNode);
  for (NodeId id = 0; id < graph.nodes.size(); ++id) {
    const NodeId base = graph.stored_over(id);
    if (base == ir::kNoNode) continue;
    memory[id] = memory[base] == ir::kNoNode ? base : memory[base];
  }
  return memory;
}

bool is_sweep(const ir::Graph& graph, NodeId update) {
  const ir::Node& node = graph[update];
  return is_large_box(graph, update) && reads_beside(graph, node.in[1], node.in[0], node.attr);
}

std::vector<bool> made_in_inputs(const ir::Graph& graph, Inputs inputs) {
  return made_in_inputs(graph, inputs, last_readers(graph));
}

std::optional<ir::Graph> in_place(const ir::Graph& graph, Inputs inputs) {
  if (std::ranges::none_of(graph.nodes,
                           [](const ir::Node& node) { return node.op == Op::Update || node.op == Op::Loop; }))
    return std::nullopt;
  return InPlace(graph, inputs).run();
}

}  // namespace fastjit::plan
