#include "pass/stacks.h"

#include <algorithm>
#include <map>
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
