// The cut does not depend on the number of threads, of cores or of multiprocessors: results stay the same bits on every
// machine.
#include "plan/two_stage.h"

#include <algorithm>
#include <cstdlib>

#include "pass/rewrite.h"
#include "plan/maps.h"

namespace fastjit::plan {

namespace {

using ir::NodeId;
using ir::ReduceKind;

constexpr int64_t kLong = 65536;   // reduced points from which a cut pays
constexpr int64_t kFewUnits = 32;  // kernels with more units than this have work for every thread
constexpr int64_t kParts = 128;    // partial results wanted per result
constexpr int64_t kFewestParts = 16, kMostParts = 2048;
constexpr int64_t kTile = 64;  // results per unit where lanes run along a kept dim
// A tile of columns is one unit however tall they are: so many points in all, and in each column, pay a cut too.
constexpr int64_t kTall = 131072, kTallEach = 2048;
// A GPU runs a block a row, or a thread a column: so many of them keep it busy, from so many reduced points each on.
constexpr int64_t kBlocks = 1024, kFewBlocks = 128;
constexpr int64_t kColumns = 1 << 17, kFewColumns = 1 << 15, kColumnEach = 512, kColumnPart = 64;

/// Where to cut: reduced dim `dim` becomes (`parts`, rest); earlier reduced dims stay for the second stage.
struct Cut {
  size_t dim;  // index into the reduced dims
  int64_t parts;
};

/// Partial results for each result.
struct Parts {
  int64_t wanted = kParts, fewest = kFewestParts, most = kMostParts;
};

// Parts of a size that is not known would fit few sizes.
std::optional<Cut> find_cut(std::span<const Dim> sizes, const std::vector<uint8_t>& dims, const Parts& wanted) {
  std::optional<Cut> best;
  int64_t best_distance = 0, before = 1;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (sizes[dims[i]].is_symbolic()) break;
    const int64_t size = sizes[dims[i]].hint();
    for (int64_t parts = 1; parts <= std::min(size, wanted.most); ++parts) {
      const int64_t total = before * parts;
      const bool whole = parts == size && i + 1 == dims.size();
      if (size % parts != 0 || whole || total < wanted.fewest || total > wanted.most) continue;
      const int64_t distance = std::abs(total - wanted.wanted);
      if (best && distance >= best_distance) continue;
      best = Cut{i, parts};
      best_distance = distance;
    }
    before *= size;
    if (before > wanted.most) break;
  }
  return best;
}

// The dim along which the tensors lie that a value of this size is computed from: lanes run along it.
size_t innermost_dim(const ir::Graph& g, NodeId value) {
  constexpr int kMostMet = 64;
  const auto sizes = g.sizes(value);
  std::vector<NodeId> open{value};
  for (int met = 0; met < kMostMet && !open.empty(); ++met) {
    const ir::Node& node = g[open.back()];
    const ir::Layout& layout = g.layout(open.back());
    open.pop_back();
    if (!ir::identical(layout.sizes, sizes)) continue;
    if (ir::is_pointwise(node.op)) {
      for (const NodeId in : node.in)
        if (in != ir::kNoNode) open.push_back(in);
    } else if (ir::is_tensor(node.op)) {
      size_t innermost = sizes.size() - 1;
      for (size_t d = sizes.size(); d-- > 0;)
        if (sizes[d].hint() > 1 && layout.strides[d].hint() < layout.strides[innermost].hint()) innermost = d;
      return innermost;
    }
  }
  return sizes.size() - 1;
}

// For `kept` results of `each` points.
std::optional<Parts> parts_on_gpu(int64_t kept, int64_t each, bool columns) {
  if (!columns)
    return each >= kLong && kept < kFewBlocks ? std::optional(Parts{.wanted = kBlocks / kept}) : std::nullopt;
  if (each < kColumnEach || kept >= kFewColumns) return std::nullopt;
  const int64_t wanted = std::min({kColumns / kept, each / kColumnPart, kMostParts});
  return Parts{.wanted = wanted, .fewest = std::min(wanted, kFewestParts)};
}

std::optional<Cut> wanted(const ir::Graph& g, NodeId id, bool cuda) {
  if (g[id].op != ir::Op::Reduce) return std::nullopt;
  const ir::ReduceAttr& attr = g.reduces[g[id].attr];
  if (ir::gives_position(attr.kind)) return std::nullopt;
  const auto sizes = g.sizes(g[id].in[0]);
  const int64_t kept = g.layout(id).numel().hint(), points = count(sizes).hint();
  if (points == 0) return std::nullopt;
  const size_t innermost = innermost_dim(g, g[id].in[0]);
  const bool inner_is_kept = !std::ranges::binary_search(attr.dims, innermost);
  if (cuda) {
    const auto parts = parts_on_gpu(kept, points / kept, inner_is_kept);
    return parts ? find_cut(sizes, attr.dims, *parts) : std::nullopt;
  }
  const int64_t units = inner_is_kept ? kept / std::min(sizes[innermost].hint(), kTile) : kept;
  const bool is_long = points / kept >= kLong && units < kFewUnits;
  const bool is_tall = inner_is_kept && points >= kTall && points / kept >= kTallEach && units <= 1;
  return is_long || is_tall ? find_cut(sizes, attr.dims, {}) : std::nullopt;
}

NodeId reduce_twice(ir::Graph& g, NodeId in, const ir::ReduceAttr& attr, const Cut& cut, ir::DType dtype) {
  const std::vector<Dim> sizes(g.sizes(in).begin(), g.sizes(in).end());
  std::vector<Dim> cut_sizes;
  std::vector<uint8_t> first, second;  // dims: first of the cut operand, second of the partial results
  uint8_t partial_rank = 0;
  for (size_t d = 0, r = 0; d < sizes.size(); ++d) {
    const bool reduced = r < attr.dims.size() && attr.dims[r] == d;
    const bool is_cut = reduced && r == cut.dim;
    if (is_cut) cut_sizes.emplace_back(cut.parts);
    if (is_cut || (reduced && r < cut.dim)) second.push_back(partial_rank);
    if (reduced && r >= cut.dim) first.push_back(static_cast<uint8_t>(cut_sizes.size()));
    if (!reduced || r <= cut.dim) ++partial_rank;
    cut_sizes.push_back(is_cut ? sizes[d] / cut.parts : sizes[d]);
    r += reduced;
  }
  const NodeId partial = g.reduce(attr.kind, g.reshape(in, cut_sizes), first, dtype);
  const bool widen = dtype == ir::DType::F32 && (attr.kind == ReduceKind::Sum || attr.kind == ReduceKind::Prod);
  const ir::DType wide = widen ? ir::DType::F64 : dtype;
  return g.convert(g.reduce(attr.kind, g.convert(partial, wide), second, wide), dtype);
}

}  // namespace

std::optional<ir::Graph> two_stage(const ir::Graph& graph, bool cuda) {
  bool any = false;
  for (NodeId id = 0; id < graph.nodes.size() && !any; ++id) any = wanted(graph, id, cuda).has_value();
  if (!any) return std::nullopt;
  pass::Rewriter rewriter(graph);
  for (NodeId id = 0; id < graph.nodes.size(); ++id) {
    if (const auto cut = wanted(graph, id, cuda))
      rewriter.set(id, reduce_twice(rewriter.to(), rewriter[graph[id].in[0]], graph.reduces[graph[id].attr], *cut,
                                    graph[id].dtype));
    else
      rewriter.copy(id);
  }
  return rewriter.finish();
}

}  // namespace fastjit::plan
