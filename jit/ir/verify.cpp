// The rules of a legal graph.
#include <algorithm>

#include "ir/graph.h"

namespace fastjit::ir {
namespace {

std::string type_fault(const Graph& graph, NodeId id) {
  const Node& node = graph[id];
  const auto in = graph.operands(id);
  auto type = [&](size_t i) { return graph[in[i]].dtype; };
  auto equal_from = [&](size_t first) {
    return std::all_of(in.begin() + first, in.end(), [&](NodeId x) { return graph[x].dtype == type(first); });
  };
  switch (info(node.op).rule) {
    case TypeRule::Same:
      return equal_from(0) && node.dtype == type(0) && !is_half(node.dtype)
                 ? ""
                 : "operands and result must have one type that is not a half";
    case TypeRule::Float:
      return equal_from(0) && node.dtype == type(0) && is_float(node.dtype) ? ""
                                                                            : "operands and result must be f32 or f64";
    case TypeRule::Integral:
      return equal_from(0) && node.dtype == type(0) && !is_floating(node.dtype)
                 ? ""
                 : "operands and result must be one integer type or bool";
    case TypeRule::Compare:
      return equal_from(0) && node.dtype == DType::Bool && !is_half(type(0))
                 ? ""
                 : "operands must have one type that is not a half, the result is bool";
    case TypeRule::Select:
      return type(0) == DType::Bool && type(1) == type(2) && node.dtype == type(1) ? "" : "needs (bool, T, T) -> T";
    case TypeRule::Shaped:
      return equal_from(0) && node.dtype == type(0) ? "" : "operand and result types differ";
    case TypeRule::Leaf:
    case TypeRule::Convert:
    case TypeRule::Opaque:
      return "";
  }
  return "";
}

/// Whether an index map leads from a value of sizes `to` into one of sizes `from`.
std::string map_fault(const IndexMap& map, std::span<const Dim> from, std::span<const Dim> to) {
  if (map.dims.size() != from.size()) return "the map needs one row per operand dimension";
  if (std::ranges::any_of(to, [](Dim size) { return size == 0; })) return "";
  for (size_t k = 0; k < from.size(); ++k) {
    Dim low = map.dims[k].offset, high = low;
    for (auto [dim, coef] : map.dims[k].terms) {
      if (dim >= to.size()) return "the map names a dimension the result lacks";
      (coef.hint() < 0 ? low : high) += coef * (to[dim] - 1);
    }
    if (low < 0 || high >= from[k]) return "the map leaves the operand";
  }
  return "";
}

std::string update_fault(const Graph& graph, NodeId id) {
  const Node& node = graph[id];
  const IndexMap& map = graph.maps[node.attr];
  if (!std::ranges::equal(graph.sizes(id), graph.sizes(node.in[0]))) return "the sizes differ from what is written to";
  const auto written = graph.sizes(node.in[1]);
  // Each dim of the value moves along one dim of its own, so that no element is written twice.
  std::vector<bool> moves(written.size(), false);
  for (const Affine& row : map.dims) {
    if (row.terms.size() > 1) return "a row of the map has several terms";
    for (const auto& [dim, coefficient] : row.terms)
      if (dim < moves.size() && coefficient != 0) moves[dim] = true;
  }
  for (size_t d = 0; d < moves.size(); ++d)
    if (!moves[d] && written[d] != 1) return "elements of the value are written to one place";
  return map_fault(map, graph.sizes(id), written);
}

std::string gather_fault(const Graph& graph, NodeId id) {
  const Node& node = graph[id];
  const auto [table, index] = std::pair(node.in[0], node.in[1]);
  if (node.dtype != graph[table].dtype || graph[index].dtype != DType::I64) return "needs (T, i64) -> T";
  if (node.attr >= graph.sizes(table).size()) return "its table has no such dim";
  return std::ranges::equal(gathered_sizes(graph.sizes(table), graph.sizes(index), node.attr), graph.sizes(id))
             ? ""
             : "the result's sizes are not the table's with those of the index";
}

std::string shape_fault(const Graph& graph, NodeId id) {
  const Node& node = graph[id];
  if (node.op == Op::Gather) return gather_fault(graph, id);
  if (node.op == Op::View) return map_fault(graph.maps[node.attr], graph.sizes(node.in[0]), graph.sizes(id));
  if (node.op == Op::Update) return update_fault(graph, id);
  if (node.op == Op::Reshape && graph.layout(id).numel() != graph.layout(node.in[0]).numel())
    return "the number of elements differs";
  if (!is_pointwise(node.op)) return "";
  std::vector<Dim> shape;
  try {
    for (NodeId in : graph.operands(id)) shape = broadcast(shape, graph.sizes(in));
  } catch (const std::exception& error) {
    return error.what();
  }
  return std::ranges::equal(shape, graph.sizes(id)) ? ""
                                                    : "the result's sizes are not the broadcast sizes of the operands";
}

/// Their expressions may be of other symbols.
bool is_alike(const Graph& a, NodeId in_a, const Graph& b, NodeId in_b) {
  return in_a != kNoNode && a[in_a].dtype == b[in_b].dtype && hints(a.sizes(in_a)) == hints(b.sizes(in_b));
}

/// What each round is given has the type and sizes that the body's inputs have.
std::string loop_operands_fault(const Graph& graph, const LoopAttr& loop, std::span<const NodeId> inputs) {
  const Graph& body = *loop.body;
  const uint32_t single = loop.carried + loop.placed + loop.fixed;
  for (size_t i = 0; i < loop.operands.size(); ++i) {
    const size_t input = i < single ? i : single + (i - single) / static_cast<size_t>(loop.trip.hint());
    if (inputs[input] != kNoNode && !is_alike(graph, loop.operands[i], body, inputs[input]))
      return "operand %" + std::to_string(loop.operands[i]) + " is not what the body's input " + std::to_string(input) +
             " is";
  }
  for (uint32_t i = 0; i < loop.carried; ++i)
    if (inputs[i] != kNoNode && !is_alike(body, body.outputs[i], body, inputs[i])) return "a carried value changes";
  for (uint32_t i = 0; i < loop.placed; ++i) {
    const Store& store = body.stores[i];
    const NodeId input = inputs[loop.carried + i];
    if (store.input != loop.carried + i || input == kNoNode || !is_alike(body, store.value, body, input))
      return "a placed value is not stored over what it was";
  }
  return "";
}

std::string loop_fault(const Graph& graph, NodeId id) {
  const LoopAttr& loop = graph.loops[graph[id].attr];
  const uint32_t single = loop.carried + loop.placed + loop.fixed;
  if (loop.trip.hint() < 1 || (loop.trip.is_symbolic() && loop.tables > 0) || !loop.body)
    return "a loop has a body and runs once at least";
  const Graph& body = *loop.body;
  if (loop.operands.size() != single + static_cast<size_t>(loop.trip.hint()) * loop.tables)
    return "wrong number of operands";
  if (body.inputs.size() != single + loop.tables || body.outputs.size() != loop.carried + loop.lasts ||
      body.stores.size() != loop.placed ||
      (body.symbols && body.symbols->size() > 1 + (graph.symbols ? graph.symbols->size() : 0)))
    return "the body has other inputs, outputs, stores or symbols";
  std::vector<NodeId> inputs(body.inputs.size(), kNoNode);
  for (NodeId in = 0; in < body.nodes.size(); ++in) {
    const Op op = body[in].op;
    if (op == Op::Extern || op == Op::Contract || op == Op::Loop) return "its body calls torch, or holds a loop";
    if (op == Op::Input) inputs[body[in].attr] = in;
  }
  const Symbols::Scope round(body.symbols.get());
  if (std::string fault = verify(body); !fault.empty()) return "in its body, " + fault;
  for (uint32_t which = 0; which < loop.finals(); ++which) {
    const NodeId final = id + 1 + which;
    if (final >= graph.nodes.size() || graph[final].op != Op::Final || graph[final].in[0] != id ||
        graph[final].attr != which)
      return "its final values do not stand behind it";
  }
  return loop_operands_fault(graph, loop, inputs);
}

std::string node_fault(const Graph& graph, NodeId id) {
  const Node& node = graph[id];
  const Layout& layout = graph.layouts[node.layout];
  if (layout.sizes.size() != layout.strides.size() || layout.sizes.size() != node.rank)
    return "sizes, strides and rank disagree";
  for (NodeId in : graph.operands(id)) {
    if (in == kNoNode && node.op == Op::Extern) continue;
    if (in >= id) return "operand %" + std::to_string(in) + " is not an earlier node";
    const bool is_call = graph[in].op == Op::Extern || graph[in].op == Op::Loop;
    if (is_call && node.op != Op::Result && node.op != Op::Final)
      return "operand %" + std::to_string(in) + " is a call; only its results are values";
  }
  if (node.op == Op::Extern && graph.externs[node.attr].kind == ExternKind::Guard) {
    const ExternAttr& attr = graph.externs[node.attr];
    if (attr.operands.size() != 1 || attr.operands[0] == kNoNode || attr.outputs || !attr.written.empty())
      return "a guard has one operand and no outputs";
  }
  if (node.op == Op::Extern && graph.externs[node.attr].kind == ExternKind::Number) {
    const ExternAttr& attr = graph.externs[node.attr];
    const auto is_number = [&](NodeId in) { return in != kNoNode && graph[in].dtype == DType::F64 && !graph[in].rank; };
    if (attr.outputs != 1 || !attr.written.empty() || !std::ranges::all_of(attr.operands, is_number))
      return "a number has one output, and 0-dim f64 operands";
  }
  if (node.op == Op::Result && graph[node.in[0]].op != Op::Extern) return "its operand is not an extern call";
  if (node.op == Op::Final && graph[node.in[0]].op != Op::Loop) return "its operand is not a loop";
  if (node.op == Op::Loop) return loop_fault(graph, id);
  if (node.op == Op::Reduce && graph.reduces[node.attr].kind == ReduceKind::Dot) return "a dot has two operands";
  if (node.op == Op::Dot) {
    const auto is_like = [&](NodeId in) { return graph[in].dtype == node.dtype && is_float(node.dtype); };
    if (!is_like(node.in[0]) || !is_like(node.in[1])) return "operands and result must be f32 or f64, all alike";
    if (!std::ranges::equal(graph.sizes(node.in[0]), graph.sizes(node.in[1]))) return "its operands differ in sizes";
  }
  if (node.op == Op::Contract) {
    const size_t operands = graph.operands(id).size();
    const Product kind = graph.contracts[node.attr].kind;
    const bool biased = kind == Product::Addmm || kind == Product::Baddbmm;
    if (kind != Product::Convolution && operands != (biased ? 3 : 2)) return "wrong number of operands";
  }
  if (is_raw(node.dtype) && node.op != Op::Input && node.op != Op::Result) return "computes with a raw type";
  for (NodeId in : graph.operands(id))
    if (in != kNoNode && is_raw(graph[in].dtype) && node.op != Op::Extern) return "an operand has a raw type";
  std::string fault = type_fault(graph, id);
  return fault.empty() ? shape_fault(graph, id) : fault;
}

}  // namespace

std::string verify(const Graph& graph) {
  for (NodeId id = 0; id < graph.nodes.size(); ++id) {
    graph.ask_in(graph.round_of(id));
    const std::string fault = node_fault(graph, id);
    graph.ask_in();
    if (!fault.empty()) return "node %" + std::to_string(id) + " " + std::string(text(graph[id].op)) + ": " + fault;
  }
  for (NodeId id : graph.outputs)
    if (id >= graph.nodes.size() || graph[id].op == Op::Extern || graph[id].op == Op::Loop || graph[id].op == Op::Undef)
      return "output %" + std::to_string(id) + " is not a value";
  for (const Store& store : graph.stores)
    if (store.input >= graph.inputs.size() || store.value >= graph.nodes.size())
      return "store into input " + std::to_string(store.input) + " names no input or no value";
  return "";
}

}  // namespace fastjit::ir
