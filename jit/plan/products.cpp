// Of each element only the sum's last bits may differ from the library's, which itself adds in another order on every
// CPU.
#include "plan/products.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "pass/rewrite.h"
#include "plan/convolutions.h"

namespace fastjit::plan {

namespace {

using ir::NodeId;
using ir::Product;

bool has_bias(const ir::ContractAttr& attr) { return attr.kind == Product::Addmm || attr.kind == Product::Baddbmm; }

/// The left factor; the right one follows it.
NodeId left_of(const ir::ContractAttr& attr) { return attr.operands[has_bias(attr) ? 1 : 0]; }
NodeId right_of(const ir::ContractAttr& attr) { return attr.operands[has_bias(attr) ? 2 : 1]; }

/// The product as a kernel would compute it. Nothing: no dim lies so in both factors that vectors run along it.
std::optional<ProductSize> size_of(const ir::Graph& graph, NodeId id, const ir::ContractAttr& attr) {
  const auto sizes = graph.sizes(id);
  const ir::Layout &left = graph.layout(left_of(attr)), &right = graph.layout(right_of(attr));
  const size_t column = sizes.size() - 1, row = column - 1;
  const auto is_next = [](const ir::Layout& layout, size_t dim) {
    return layout.sizes[dim].hint() == 1 || ir::identical(layout.strides[dim], 1);
  };
  const bool across = is_next(right, column) || is_next(left, row);
  const bool along = is_next(left, column) && is_next(right, row);
  if (!across && !along) return std::nullopt;
  return ProductSize{.batch = row > 0 ? sizes[0].hint() : 1,
                     .rows = sizes[row].hint(),
                     .columns = sizes[column].hint(),
                     .inner = left.sizes[column].hint(),
                     .bytes = ir::size_of(graph[id].dtype),
                     .across = !along};
}

/// `value` with the result's dims and the inner one: along `missing` it stands still.
NodeId spread(ir::Graph& graph, NodeId value, const std::vector<ir::Dim>& sizes, size_t missing, bool inner_first) {
  const auto inner = static_cast<uint8_t>(sizes.size() - 1);
  std::vector<uint8_t> dims;
  for (uint8_t dim = 0; dim < inner; ++dim)
    if (dim != missing) dims.push_back(dim);
  dims.insert(inner_first ? dims.end() - 1 : dims.end(), inner);
  ir::IndexMap map;
  for (const uint8_t dim : dims) map.dims.push_back({0, {{dim, 1}}});
  return graph.view(value, std::move(map), sizes);
}

NodeId own_product(pass::Rewriter& rewriter, NodeId id) {
  const ir::Graph& from = rewriter.from();
  const ir::ContractAttr& attr = from.contracts[from[id].attr];
  ir::Graph& to = rewriter.to();
  to.set_line(from[id].line);
  const std::vector<ir::Dim> result(from.sizes(id).begin(), from.sizes(id).end());
  std::vector<ir::Dim> sizes = result;
  sizes.push_back(from.sizes(left_of(attr)).back());
  const size_t rank = result.size();
  const NodeId left = spread(to, rewriter[left_of(attr)], sizes, rank - 1, false);
  const NodeId right = spread(to, rewriter[right_of(attr)], sizes, rank - 2, true);
  const NodeId dot = to.dot(left, right, {static_cast<uint8_t>(rank)});
  if (!has_bias(attr)) return dot;
  return to.pointwise(ir::Op::Add, {dot, to.expand(rewriter[attr.operands[0]], result)});
}

}  // namespace

bool is_own_product(const ir::Graph& graph, NodeId id, const Costs& costs, bool no_library, bool by_rows) {
  const ir::Node& node = graph[id];
  if (node.op != ir::Op::Contract || !ir::is_float(node.dtype)) return false;
  const ir::ContractAttr& attr = graph.contracts[node.attr];
  if (attr.kind == Product::Convolution || (has_bias(attr) && !attr.unscaled)) return false;
  auto size = size_of(graph, id, attr);
  if (size && by_rows) size->across = true;
  return size && (no_library || costs.own(*size) < costs.library(*size));
}

namespace {

/// Which nodes kernels compute: Contracts, and results of calls for the gradients of convolutions, which are not made.
class Own {
 public:
  Own(const ir::Graph& graph, const PlanOptions& options) : graph_(graph), options_(options) {
    const std::vector<bool> guarded = pass::decides_guard(graph);
    std::unordered_map<NodeId, std::vector<NodeId>> gradients;  // by call
    for (NodeId id = 0; id < graph.nodes.size(); ++id) {
      const ir::Node& node = graph[id];
      if (node.op == ir::Op::Contract && !guarded[id] && is_own(id)) chosen_.insert(id);
      if (node.op == ir::Op::Result && graph.externs[graph[node.in[0]].attr].window && !guarded[node.in[0]])
        gradients[node.in[0]].push_back(id);
    }
    for (const auto& [call, results] : gradients) {
      if (!are_own_gradients(graph, call, results, options)) continue;
      chosen_.insert(call);
      chosen_.insert(results.begin(), results.end());
    }
  }

  bool any() const { return !chosen_.empty(); }
  /// The node in the new graph; a call whose results kernels compute is not there.
  void put(pass::Rewriter& rewriter, OwnConvolutions& convolutions, NodeId id) const {
    const ir::Op op = graph_[id].op;
    if (!chosen_.contains(id))
      rewriter.copy(id);
    else if (op == ir::Op::Result)
      rewriter.set(id, convolutions.gradient(id));
    else if (op == ir::Op::Contract)
      rewriter.set(id, convolves(id) ? convolutions.convolution(id) : own_product(rewriter, id));
  }

 private:
  bool convolves(NodeId id) const { return graph_.contracts[graph_[id].attr].kind == Product::Convolution; }
  bool is_own(NodeId id) const {
    return convolves(id) ? is_own_convolution(graph_, id, options_)
                         : is_own_product(graph_, id, options_.costs, options_.no_library);
  }

  const ir::Graph& graph_;
  const PlanOptions& options_;
  std::unordered_set<NodeId> chosen_;
};

}  // namespace

std::optional<ir::Graph> own_products(const ir::Graph& graph, const PlanOptions& options) {
  const auto has_window = [](const ir::ExternAttr& call) { return call.window.has_value(); };
  if (graph.contracts.empty() && std::ranges::none_of(graph.externs, has_window)) return std::nullopt;
  const Own own(graph, options);
  if (!own.any()) return std::nullopt;
  pass::Rewriter rewriter(graph);
  OwnConvolutions convolutions(rewriter, options.lanes);
  for (NodeId id = 0; id < graph.nodes.size(); ++id) own.put(rewriter, convolutions, id);
  return rewriter.finish();
}

}  // namespace fastjit::plan
