// A tensor whose every slice along a short dim was written is often another one, seen otherwise: the colours of an
// image in reverse order, or one of them three times. Such a chain of updates becomes a view, which kernels read in
// place of a copy.
#include <algorithm>

#include "pass/pass.h"
#include "pass/rewrite.h"
#include "pass/slice.h"

namespace fastjit::pass {

using namespace ir;

namespace {

/// A view of something that is no view by a map.
struct Seen {
  NodeId source;
  IndexMap map;
};

NodeId source_of(const Graph& graph, NodeId id) {
  while (graph[id].op == Op::View) id = graph[id].in[0];
  return id;
}

Seen below(const Graph& graph, Seen seen) {
  while (graph[seen.source].op == Op::View) {
    const Node& node = graph[seen.source];
    seen = {node.in[0], composed(graph.maps[node.attr], seen.map)};
  }
  return seen;
}

/// The map of one slice, as a map of the whole: dims from `dim` on are one further.
IndexMap moved(IndexMap map, uint8_t dim) {
  for (Affine& row : map.dims)
    for (auto& [at, coefficient] : row.terms) at = static_cast<uint8_t>(at + (at >= dim));
  return map;
}

/// What all slices of one source together are a view of, where slice i begins i steps behind slice 0 along one dim of
/// it.
std::optional<Seen> joined(const std::vector<Seen>& slices, uint8_t dim) {
  if (slices.empty()) return std::nullopt;
  Seen whole{slices[0].source, moved(slices[0].map, dim)};
  const size_t rank = whole.map.dims.size();
  size_t moving = rank;
  for (size_t d = 0; d < rank; ++d)
    if (slices.size() > 1 && !identical(slices[0].map.dims[d].offset, slices[1].map.dims[d].offset)) {
      if (moving != rank) return std::nullopt;
      moving = d;
    }
  const Dim step = moving == rank ? Dim(0) : slices[1].map.dims[moving].offset - slices[0].map.dims[moving].offset;
  for (size_t i = 0; i < slices.size(); ++i) {
    for (size_t d = 0; d < rank; ++d) {
      Affine expected = slices[0].map.dims[d];
      if (d == moving) expected.offset += step * static_cast<int64_t>(i);
      if (!(expected == slices[i].map.dims[d])) return std::nullopt;
    }
  }
  if (moving == rank) return whole;
  auto& terms = whole.map.dims[moving].terms;
  const auto at = std::ranges::lower_bound(terms, dim, {}, &std::pair<uint8_t, Dim>::first);
  terms.insert(at, {dim, step});
  return whole;
}

/// What the update, and those before it, make of the tensor.
std::optional<Seen> whole_of(const Graph& graph, NodeId update) {
  const auto last = written_slice(graph, graph[update]);
  if (!last) return std::nullopt;
  const Dim length = graph.sizes(update)[last->dim];
  if (length.is_symbolic() || length.hint() > kMostSlices) return std::nullopt;
  std::vector<NodeId> values(static_cast<size_t>(length.hint()), kNoNode);
  const NodeId source = source_of(graph, graph[update].in[1]);  // most chains put together what different nodes made
  NodeId base = update;
  for (int64_t seen = 0; graph[base].op == Op::Update && seen < 2 * kMostSlices; ++seen, base = graph[base].in[0]) {
    const auto slice = written_slice(graph, graph[base]);
    if (!slice || slice->dim != last->dim) break;
    NodeId& value = values[static_cast<size_t>(slice->index)];
    if (value != kNoNode) continue;
    value = graph[base].in[1];
    if (source_of(graph, value) != source) return std::nullopt;
  }
  const bool needs_base = std::ranges::find(values, kNoNode) != values.end();
  if (needs_base && (graph[base].op == Op::Undef || source_of(graph, base) != source)) return std::nullopt;
  std::vector<Seen> slices;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] != kNoNode) {
      slices.push_back(below(graph, {values[i], identity_map(graph.sizes(values[i]).size())}));
      continue;
    }
    slices.push_back(below(graph, {base, slice_map(graph.sizes(base).size() - 1, last->dim, static_cast<int64_t>(i))}));
  }
  return joined(slices, last->dim);
}

}  // namespace

Changed slices(const Graph& graph, const PassContext&) {
  if (std::ranges::none_of(graph.nodes, [](const Node& node) { return node.op == Op::Update; })) return {};
  std::vector<bool> stays(graph.nodes.size(), false);  // what an argument gets is written where it lies
  for (const Store& store : graph.stores) stays[store.value] = true;
  const std::vector<bool> changes = overwritten(graph);
  std::vector<std::pair<NodeId, Seen>> found;
  for (NodeId id = 0; id < graph.nodes.size(); ++id) {
    auto whole = graph[id].op == Op::Update && !stays[id] ? whole_of(graph, id) : std::nullopt;
    if (whole && !changes[memory_of(graph, whole->source)]) found.emplace_back(id, std::move(*whole));
  }
  if (found.empty()) return {};
  Rewriter rewriter(graph);
  auto next = found.begin();
  for (NodeId id = 0; id < graph.nodes.size(); ++id) {
    if (next == found.end() || next->first != id) {
      rewriter.copy(id);
      continue;
    }
    const auto sizes = graph.sizes(id);
    rewriter.to().set_line(graph[id].line);
    const Seen& whole = (next++)->second;
    const NodeId view = rewriter.to().view(rewriter[whole.source], whole.map, {sizes.begin(), sizes.end()});
    rewriter.set(id, rewriter.to().with_strides(view, graph.layout(id).strides));
  }
  return rewriter.finish();
}

}  // namespace fastjit::pass
