// Constants, identities that keep every bit, and pairs of conversions. Common subexpressions merge by interning.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "pass/pass.h"
#include "pass/rewrite.h"

namespace fastjit::pass {

using namespace ir;

namespace {

std::optional<double> float_const(const Graph& graph, NodeId id) {
  const Node& node = graph[id];
  if (node.op != Op::Const || !is_float(node.dtype)) return std::nullopt;
  return std::bit_cast<double>(graph.constants[node.attr]);
}

std::optional<int64_t> int_const(const Graph& graph, NodeId id) {
  const Node& node = graph[id];
  if (node.op != Op::Const || is_floating(node.dtype)) return std::nullopt;
  return static_cast<int64_t>(graph.constants[node.attr]);
}

template <class T>
std::optional<double> evaluate(Op op, double x, double y) {
  const T a = static_cast<T>(x), b = static_cast<T>(y);
  switch (op) {
    case Op::Add:
      return a + b;
    case Op::Sub:
      return a - b;
    case Op::Mul:
      return a * b;
    case Op::Div:
      return a / b;
    case Op::Neg:
      return -a;
    case Op::Abs:
      return std::abs(a);
    case Op::Sqrt:
      return std::sqrt(a);
    default:
      return std::nullopt;
  }
}

std::optional<int64_t> evaluate_int(Op op, int64_t a, int64_t b) {
  const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
  switch (op) {
    case Op::Add:
      return static_cast<int64_t>(x + y);
    case Op::Sub:
      return static_cast<int64_t>(x - y);
    case Op::Mul:
      return static_cast<int64_t>(x * y);
    case Op::Neg:
      return static_cast<int64_t>(0 - x);
    default:
      return std::nullopt;
  }
}

// Makes the nodes that others become; without a graph it says of each that there would be one.
struct Maker {
  Graph* to;
  NodeId constant(DType dtype, double value) const { return to ? to->constant(dtype, value) : 0; }
  NodeId constant_int(DType dtype, int64_t value) const { return to ? to->constant_int(dtype, value) : 0; }
  NodeId convert(NodeId value, DType dtype) const { return to ? to->convert(value, dtype) : 0; }
  NodeId reshape(NodeId value, const std::vector<Dim>& sizes) const { return to ? to->reshape(value, sizes) : 0; }
};

// The value of a pointwise node whose operands are constants, where this file knows how to compute it exactly.
NodeId fold_constant(const Graph& to, const Node& node, Maker make) {
  const size_t arity = static_cast<size_t>(info(node.op).arity);
  if (arity > 2 || info(node.op).rule == TypeRule::Compare) return kNoNode;
  if (is_float(node.dtype)) {
    const auto a = float_const(to, node.in[0]);
    const auto b = arity == 2 ? float_const(to, node.in[1]) : std::optional<double>(0);
    if (!a || !b) return kNoNode;
    const auto value = node.dtype == DType::F32 ? evaluate<float>(node.op, *a, *b) : evaluate<double>(node.op, *a, *b);
    return value ? make.constant(node.dtype, *value) : kNoNode;
  }
  if (is_integer(node.dtype)) {
    const auto a = int_const(to, node.in[0]);
    const auto b = arity == 2 ? int_const(to, node.in[1]) : std::optional<int64_t>(0);
    if (!a || !b) return kNoNode;
    const auto value = evaluate_int(node.op, *a, *b);
    return value ? make.constant_int(node.dtype, *value) : kNoNode;
  }
  return kNoNode;
}

// `x op constant` where the result is x, bit for bit, for every x (NaN payloads aside).
bool is_identity(const Graph& to, const Node& node, NodeId constant) {
  if (const auto c = float_const(to, constant)) {
    const bool plus_zero = *c == 0 && !std::signbit(*c), minus_zero = *c == 0 && std::signbit(*c);
    return (node.op == Op::Mul && *c == 1) || (node.op == Op::Div && *c == 1) || (node.op == Op::Sub && plus_zero) ||
           (node.op == Op::Add && minus_zero);
  }
  if (const auto c = int_const(to, constant)) {
    if (node.dtype == DType::Bool) return false;
    return ((node.op == Op::Mul || node.op == Op::Div) && *c == 1) ||
           ((node.op == Op::Add || node.op == Op::Sub) && *c == 0);
  }
  return false;
}

NodeId fold_binary(const Graph& to, const Node& node, const Layout& layout) {
  for (int side : {1, 0}) {
    if (side == 0 && !is_commutative(node.op)) continue;
    const NodeId kept = node.in[1 - side];
    if (is_identity(to, node, node.in[side]) && identical(to.sizes(kept), layout.sizes)) return kept;
  }
  return kNoNode;
}

// Every value of `from` is a value of `to`.
bool widens(DType from, DType to) {
  if (from == DType::Bool) return true;
  if (is_half(from)) return to == DType::F32 || to == DType::F64;
  if (from == DType::F32) return to == DType::F64;
  if (!is_integer(from) || !is_integer(to)) return false;
  return size_of(to) > size_of(from) && (is_signed(to) || !is_signed(from));
}

// True if every value of `id`, a float, is a value of the half type (or NaN), so that rounding to it changes nothing.
bool fits_half(const Graph& graph, NodeId id, DType half) {
  const Node& node = graph[id];
  switch (node.op) {
    case Op::Convert:
      return graph[node.in[0]].dtype == half;
    case Op::Neg:
    case Op::Abs:
      return fits_half(graph, node.in[0], half);
    case Op::Mul: {  // by a power of two from 1: bfloat16 overflows where float does
      const auto c = float_const(graph, node.in[1]);
      int exponent = 0;
      return half == DType::BF16 && c && std::frexp(std::fabs(*c), &exponent) == 0.5 && exponent >= 1 &&
             fits_half(graph, node.in[0], half);
    }
    default:
      return false;
  }
}

NodeId fold_convert(const Graph& to, const Node& node, const PassContext& context, Maker make) {
  const Node& inner = to[node.in[0]];
  if (inner.op == Op::Const && is_float(node.dtype)) {
    if (const auto c = float_const(to, node.in[0])) return make.constant(node.dtype, *c);
    if (const auto c = int_const(to, node.in[0]); c && std::abs(*c) < (int64_t{1} << 24))
      return make.constant(node.dtype, static_cast<double>(*c));
  }
  if (inner.op == Op::Const && is_integer(node.dtype))
    if (const auto c = int_const(to, node.in[0])) return make.constant_int(node.dtype, *c);
  if (inner.op != Op::Convert) return kNoNode;
  const NodeId source = inner.in[0];
  const DType first = to[source].dtype, middle = inner.dtype;
  if (node.dtype == first && widens(first, middle)) return source;
  const bool rounds_to_half = first == DType::F32 && is_half(middle) && node.dtype == DType::F32;
  if (rounds_to_half && (context.numerics != Numerics::Eager || fits_half(to, source, middle))) return source;
  if (widens(first, middle) && widens(middle, node.dtype)) return make.convert(source, node.dtype);
  return kNoNode;
}

// What a node of this layout, whose operands are nodes of `to`, becomes; kNoNode: it stays.
NodeId fold_node(const Graph& to, const Node& node, const Layout& layout, const PassContext& context, Maker make) {
  if (node.op == Op::Convert) return fold_convert(to, node, context, make);
  if (node.op == Op::Reshape) {
    const NodeId source = to[node.in[0]].op == Op::Reshape ? to[node.in[0]].in[0] : kNoNode;
    return source == kNoNode ? kNoNode : make.reshape(source, layout.sizes);
  }
  if (!is_pointwise(node.op)) return kNoNode;
  if (node.op == Op::Neg && to[node.in[0]].op == Op::Neg) return to[node.in[0]].in[0];
  if (node.op == Op::Where && node.in[1] == node.in[2] && identical(to.sizes(node.in[1]), layout.sizes))
    return node.in[1];
  const auto arity = static_cast<size_t>(info(node.op).arity);
  const auto is_constant = [&](NodeId in) { return to[in].op == Op::Const; };
  if (std::none_of(node.in, node.in + arity, is_constant)) return kNoNode;
  const NodeId constant = fold_constant(to, node, make);
  if (constant != kNoNode && node.rank == 0) return constant;
  return arity == 2 ? fold_binary(to, node, layout) : kNoNode;
}

// Whether the value that a node became is read from some of these.
bool is_read_from(const Graph& to, NodeId now, const std::vector<NodeId>& tensors) {
  while (to[now].op == Op::Convert) now = to[now].in[0];
  const NodeId memory = memory_of(to, now);
  return std::ranges::find(tensors, memory) != tensors.end();
}

}  // namespace

Changed fold(const Graph& graph, const PassContext& context) {
  // Until one folds, all nodes are as they were.
  const auto folds = [&](const Node& node) {
    return fold_node(graph, node, graph.layouts[node.layout], context, Maker{nullptr}) != kNoNode;
  };
  if (std::ranges::none_of(graph.nodes, folds)) return {};
  Rewriter rewriter(graph);
  const std::vector<bool> written = overwritten(graph);
  std::vector<NodeId> changing;
  for (NodeId id = 0; id < graph.nodes.size(); ++id) {
    rewriter.to().set_line(graph[id].line);
    Node node = graph[id];
    for (NodeId& in : node.in) in = rewriter[in];
    const NodeId now = fold_node(rewriter.to(), node, graph.layout(id), context, Maker{&rewriter.to()});
    if (now == kNoNode || is_read_from(rewriter.to(), now, changing))
      rewriter.copy(id);
    else
      rewriter.set(id, now);
    if (written[id]) changing.push_back(rewriter[id]);
  }
  return rewriter.finish();
}

}  // namespace fastjit::pass
