#include "pass/stacks.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "pass/slice.h"

namespace fastjit::pass {

using namespace ir;

std::vector<std::vector<NodeId>> stacks(const Graph& graph, const std::vector<NodeId>& values) {
  constexpr int64_t kLargest = 64 << 10;  // bytes
  constexpr size_t kFewest = 16;
  using Kind = std::tuple<uint32_t, DType, Op>;  // of one operation: not every round saves its state
  std::map<Kind, std::vector<NodeId>> alike;
  for (const NodeId id : values) {
    const Layout& layout = graph.layout(id);
    const int64_t bytes = layout.numel().hint() * size_of(graph[id].dtype);
    const bool is_by_rows = identical(layout.strides, row_major(layout.sizes));
    const bool is_written = is_pointwise(graph[id].op) || graph[id].op == Op::View;  // by a kernel
    if (is_written && is_by_rows && bytes > 0 && bytes <= kLargest)
      alike[{graph[id].layout, graph[id].dtype, graph[id].op}].push_back(id);
  }
  std::vector<uint32_t> calls{0};  // before each node
  for (const Node& node : graph.nodes)
    calls.push_back(calls.back() + (node.op == Op::Extern && graph.externs[node.attr].kind == ExternKind::Op));
  std::vector<std::vector<NodeId>> made;
  for (auto& [kind, of] : alike)
    if (of.size() >= kFewest && calls[of.front()] == calls[of.back()]) made.push_back(std::move(of));
  return made;
}

namespace {

/// What the node is with one more dim at the front; kNoNode: it is something else.
NodeId below_first_dim(const Graph& graph, NodeId id) {
  const Node& node = graph[id];
  if (!is_view(node.op) || !identical(graph.sizes(id)[0], 1)) return kNoNode;
  const auto below = graph.sizes(node.in[0]);
  if (!std::ranges::equal(graph.sizes(id).subspan(1), below, [](Dim a, Dim b) { return identical(a, b); }))
    return kNoNode;
  if (node.op == Op::Reshape) return node.in[0];
  IndexMap map = identity_map(below.size());
  for (Affine& row : map.dims) ++row.terms[0].first;
  return graph.maps[node.attr] == map ? node.in[0] : kNoNode;
}

/// The slices that the part of a Cat along its first dim gives: one of the values, or others.
void add_slices(const Graph& graph, NodeId part, const std::vector<NodeId>& values, std::vector<NodeId>& slices) {
  const NodeId below = below_first_dim(graph, part);
  if (std::ranges::binary_search(values, below))
    slices.push_back(below);
  else
    slices.resize(slices.size() + static_cast<size_t>(graph.sizes(part)[0].hint()), kNoNode);
}

/// Whether it is a Cat along its first dim, by rows, and not much longer than `count`, whatever the sizes are.
bool may_hold(const Graph& graph, NodeId id, int64_t count) {
  if (graph[id].op != Op::Cat || graph.lists[graph[id].attr].dim != 0) return false;
  const Layout& layout = graph.layout(id);
  const auto is_symbolic = [&](NodeId part) { return graph.sizes(part)[0].is_symbolic(); };
  return layout.sizes[0].hint() <= 2 * count && std::ranges::none_of(graph.operands(id), is_symbolic) &&
         identical(layout.strides, row_major(layout.sizes));
}

}  // namespace

std::optional<Held> held_together(const Graph& graph, const std::vector<NodeId>& values) {
  for (NodeId id = values.back(); id < graph.nodes.size(); ++id) {
    if (graph[id].dtype != graph[values[0]].dtype || !may_hold(graph, id, std::ssize(values))) continue;
    Held held{id, {}};
    for (const NodeId part : graph.operands(id)) add_slices(graph, part, values, held.slices);
    const std::set<NodeId> found(held.slices.begin(), held.slices.end());
    if (std::ranges::all_of(values, [&](NodeId value) { return found.contains(value); })) return held;
  }
  return std::nullopt;
}

NodeId stacked(Graph& graph, const std::vector<NodeId>& slices) {
  std::vector<NodeId> parts;
  for (const NodeId slice : slices) {
    const auto each = graph.sizes(slice);
    std::vector<Dim> sizes{1};
    sizes.insert(sizes.end(), each.begin(), each.end());
    parts.push_back(graph.reshape(slice, std::move(sizes)));
  }
  return graph.cat(std::move(parts), 0);
}

NodeId slice_of(Graph& graph, NodeId stack, int64_t index) {
  const auto all = graph.sizes(stack);
  return graph.view(stack, slice_map(all.size() - 1, 0, index), {all.begin() + 1, all.end()});
}

}  // namespace fastjit::pass
