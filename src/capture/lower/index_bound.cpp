#include "capture/lower/index_bound.h"

#include <algorithm>
#include <string_view>

namespace fastjit::capture {
namespace {

using ir::Dim;
using ir::NodeId;
using ir::Op;
using Bound = std::optional<Dim>;

constexpr int kMostNodes = 64;  // that are looked at

/// Views that show elements of their operand, and no others that lie in its storage.
constexpr std::string_view kParts[] = {"aten::alias",       "aten::select.int", "aten::slice.Tensor",
                                       "aten::squeeze.dim", "aten::unsqueeze",  "aten::view"};

/// Where in a value the elements lie that are asked for: their index along some dims.
using Place = std::vector<std::optional<int64_t>>;

class Finder {
 public:
  Finder(const ir::Graph& graph, const PickedOf& picked) : graph_(graph), picked_(picked) {}

  Bound find(NodeId id, const Place& place) {
    const ir::Node& node = graph_[id];
    if (++seen_ > kMostNodes || node.dtype != ir::DType::I64) return std::nullopt;
    switch (node.op) {
      case Op::Const: {
        const auto value = static_cast<int64_t>(graph_.constants[node.attr]);
        return value < 0 || value == INT64_MAX ? Bound() : Bound(value + 1);
      }
      case Op::Iota:
        return graph_.sizes(id)[node.attr];
      case Op::View:
        return find(node.in[0], seen_through(graph_.maps[node.attr], place));
      case Op::Reshape:
        return find(node.in[0], Place(graph_[node.in[0]].rank));
      case Op::Gather:
        return find(node.in[0], in_table(id, place));
      case Op::Cat:
        return of_parts(id, place);
      case Op::Where: {
        const auto broadcast = [&](NodeId in) { return find(in, Place(graph_[in].rank)); };
        return both(broadcast(node.in[1]), broadcast(node.in[2]));
      }
      case Op::FloorDiv:
      case Op::Remainder:
        return divided(node);
      case Op::Reduce:
        return reduced(node);
      case Op::Result:
        return given(id, place);
      default:
        return std::nullopt;
    }
  }

 private:
  static Place seen_through(const ir::IndexMap& map, const Place& place) {
    Place below;
    for (const ir::Affine& row : map.dims) {
      std::optional<int64_t>& at = below.emplace_back();
      if (row.offset.is_symbolic() || row.terms.size() > 1) continue;
      if (row.terms.empty())
        at = row.offset.hint();
      else if (const auto& [dim, factor] = row.terms[0]; place[dim] && !factor.is_symbolic())
        at = row.offset.hint() + *place[dim] * factor.hint();
    }
    return below;
  }

  Place in_table(NodeId gather, const Place& place) const {
    const ir::Node& node = graph_[gather];
    const size_t dim = node.attr, taken = graph_[node.in[1]].rank;
    Place below(graph_[node.in[0]].rank);
    for (size_t d = 0; d < below.size(); ++d)
      if (d != dim) below[d] = place[d < dim ? d : d + taken - 1];
    return below;
  }

  /// Of what is one or the other.
  static Bound both(Bound a, Bound b) {
    if (!a || !b) return std::nullopt;
    if (is_within(*a, *b)) return b;
    return is_within(*b, *a) ? a : std::nullopt;
  }

  Bound of_parts(NodeId id, Place place) {
    const ir::ListAttr& list = graph_.lists[graph_[id].attr];
    place[static_cast<size_t>(list.dim)].reset();
    Bound all;
    for (const NodeId part : list.operands) {
      const Bound own = find(part, place);
      all = part == list.operands[0] ? own : both(all, own);
      if (!all) return std::nullopt;
    }
    return all;
  }

  /// By a positive number.
  Bound divided(const ir::Node& node) {
    if (graph_[node.in[1]].op != Op::Const) return std::nullopt;
    const auto by = static_cast<int64_t>(graph_.constants[graph_[node.in[1]].attr]);
    if (by < 1) return std::nullopt;
    if (node.op == Op::Remainder) return Dim(by);
    const Bound whole = find(node.in[0], Place(graph_[node.in[0]].rank));
    return whole ? Bound(ir::divide_up(*whole, by)) : std::nullopt;
  }

  Bound reduced(const ir::Node& node) const {
    const ir::ReduceAttr& attr = graph_.reduces[node.attr];
    if (!ir::gives_position(attr.kind) || attr.dims.size() != 1) return std::nullopt;
    return graph_.sizes(node.in[0])[attr.dims[0]];
  }

  /// By a call of torch's, or a view of what it gave.
  Bound given(NodeId id, const Place& place) {
    if (const auto picked = picked_.find(id); picked != picked_.end()) {
      const std::vector<Dim>& columns = picked->second;
      if (columns.size() == 1) return columns[0];
      if (place.empty() || !place.back() || *place.back() < 0) return std::nullopt;
      const auto column = static_cast<size_t>(*place.back());
      return column < columns.size() ? Bound(columns[column]) : std::nullopt;
    }
    const ir::ExternAttr& call = graph_.externs[graph_[graph_[id].in[0]].attr];
    const bool shows_part =
        call.kind == ir::ExternKind::View && std::ranges::find(kParts, call.name) != std::end(kParts);
    if (!shows_part || graph_[call.operands[0]].op != Op::Result) return std::nullopt;
    return find(call.operands[0], Place(graph_[call.operands[0]].rank));
  }

  const ir::Graph& graph_;
  const PickedOf& picked_;
  int seen_ = 0;
};

}  // namespace

std::optional<ir::Dim> index_bound(const ir::Graph& graph, const PickedOf& picked, ir::NodeId node) {
  Place place;
  for (const ir::Dim size : graph.sizes(node))
    place.push_back(ir::identical(size, 1) ? std::optional<int64_t>(0) : std::nullopt);
  return Finder(graph, picked).find(node, place);
}

bool is_within(ir::Dim bound, ir::Dim size) {
  if (ir::identical(bound, size)) return true;
  if (bound.hint() == size.hint()) return bound == size;
  return bound.hint() < size.hint() && bound < size;
}

}  // namespace fastjit::capture
