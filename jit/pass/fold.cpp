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

// The value of a pointwise node whose operands are constants, where this file knows how to compute it exactly.
NodeId fold_constant(Graph& to, const Node& node) {
  const size_t arity = static_cast<size_t>(info(node.op).arity);
  if (arity > 2 || info(node.op).rule == TypeRule::Compare) return kNoNode;
  if (is_float(node.dtype)) {
    const auto a = float_const(to, node.in[0]);
    const auto b = arity == 2 ? float_const(to, node.in[1]) : std::optional<double>(0);
    if (!a || !b) return kNoNode;
    const auto value = node.dtype == DType::F32 ? evaluate<float>(node.op, *a, *b) : evaluate<double>(node.op, *a, *b);
    return value ? to.constant(node.dtype, *value) : kNoNode;
  }
  if (is_integer(node.dtype)) {
    const auto a = int_const(to, node.in[0]);
    const auto b = arity == 2 ? int_const(to, node.in[1]) : std::optional<int64_t>(0);
    if (!a || !b) return kNoNode;
    const auto value = evaluate_int(node.op, *a, *b);
    return value ? to.constant_int(node.dtype, *value) : kNoNode;
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

NodeId fold_binary(const Graph& from, Rewriter& rewriter, NodeId id, const Node& node) {
  Graph& to = rewriter.to();
  const Layout& layout = from.layout(id);
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

NodeId fold_convert(Rewriter& rewriter, const Node& node, const PassContext& context) {
  Graph& to = rewriter.to();
  const Node& inner = to[node.in[0]];
  if (inner.op == Op::Const && is_float(node.dtype)) {
    if (const auto c = float_const(to, node.in[0])) return to.constant(node.dtype, *c);
    if (const auto c = int_const(to, node.in[0]); c && std::abs(*c) < (int64_t{1} << 24))
      return to.constant(node.dtype, static_cast<double>(*c));
  }
  if (inner.op == Op::Const && is_integer(node.dtype))
    if (const auto c = int_const(to, node.in[0])) return to.constant_int(node.dtype, *c);
  if (inner.op != Op::Convert) return kNoNode;
  const NodeId source = inner.in[0];
  const DType first = to[source].dtype, middle = inner.dtype;
  if (node.dtype == first && widens(first, middle)) return source;
  const bool rounds_to_half = first == DType::F32 && is_half(middle) && node.dtype == DType::F32;
  if (rounds_to_half && (context.numerics != Numerics::Eager || fits_half(to, source, middle))) return source;
  if (widens(first, middle) && widens(middle, node.dtype)) return to.convert(source, node.dtype);
  return kNoNode;
}

NodeId fold_node(Rewriter& rewriter, NodeId id, const PassContext& context) {
  const Graph& from = rewriter.from();
  Graph& to = rewriter.to();
  Node node = from[id];
  if (!is_pointwise(node.op) && node.op != Op::Reshape) return kNoNode;
  for (NodeId& in : node.in) in = rewriter[in];
  if (node.op == Op::Convert) return fold_convert(rewriter, node, context);
  if (node.op == Op::Reshape) {
    const NodeId source = to[node.in[0]].op == Op::Reshape ? to[node.in[0]].in[0] : kNoNode;
    return source == kNoNode ? kNoNode : to.reshape(source, from.layout(id).sizes);
  }
  if (node.op == Op::Neg && to[node.in[0]].op == Op::Neg) return to[node.in[0]].in[0];
  if (node.op == Op::Where && node.in[1] == node.in[2] && identical(to.sizes(node.in[1]), from.sizes(id)))
    return node.in[1];
  const NodeId constant = fold_constant(to, node);
  if (constant != kNoNode && from[id].rank == 0) return constant;
  return info(node.op).arity == 2 ? fold_binary(from, rewriter, id, node) : kNoNode;
}

// Whether the value that a node became is read from some of these.
bool is_read_from(const Graph& to, NodeId now, const std::vector<NodeId>& tensors) {
  while (to[now].op == Op::Convert) now = to[now].in[0];
  const NodeId memory = memory_of(to, now);
  return std::ranges::find(tensors, memory) != tensors.end();
}

}  // namespace

Changed fold(const Graph& graph, const PassContext& context) {
  Rewriter rewriter(graph);
  const std::vector<bool> written = overwritten(graph);
  std::vector<NodeId> changing;
  for (NodeId id = 0; id < graph.nodes.size(); ++id) {
    rewriter.to().set_line(graph[id].line);
    const NodeId now = fold_node(rewriter, id, context);
    if (now == kNoNode || is_read_from(rewriter.to(), now, changing))
      rewriter.copy(id);
    else
      rewriter.set(id, now);
    if (written[id]) changing.push_back(rewriter[id]);
  }
  return rewriter.finish();
}

}  // namespace fastjit::pass
