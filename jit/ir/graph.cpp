#include "ir/graph.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <stdexcept>

#include "ir/calls.h"
#include "ir/in_round.h"
#include "ir/regions.h"
#include "support/mix.h"

namespace fastjit::ir {
namespace {

using support::mix;

uint64_t hash_of(Dim dim) { return static_cast<uint64_t>(dim.hint()) ^ static_cast<uint64_t>(dim.expr()) << 40; }

uint64_t hash_of(const Layout& layout) {
  uint64_t hash = layout.sizes.size();
  for (const Dim n : layout.sizes) hash = mix(hash, hash_of(n));
  for (const Dim s : layout.strides) hash = mix(hash, hash_of(s));
  return hash;
}

// The line is for people: equal work on two lines is one node.
uint64_t hash_of(const Node& node) {
  uint64_t hash = static_cast<uint64_t>(node.op) | static_cast<uint64_t>(node.again) << 32;
  hash = mix(hash, static_cast<uint64_t>(node.dtype));
  hash = mix(hash, node.layout);
  hash = mix(hash, node.attr);
  for (NodeId id : node.in) hash = mix(hash, id);
  return hash;
}

bool same_work(const Node& a, const Node& b) {
  return a.op == b.op && a.dtype == b.dtype && a.layout == b.layout && a.attr == b.attr && a.again == b.again &&
         std::equal(a.in, a.in + 4, b.in);
}

uint64_t hash_of(uint64_t value) { return mix(0, value); }

uint64_t hash_of(const std::string& value) { return std::hash<std::string>{}(value); }

uint64_t hash_of(const IndexMap& map) {
  uint64_t hash = map.dims.size();
  for (const Affine& row : map.dims) {
    hash = mix(hash, hash_of(row.offset));
    for (const auto& [dim, coefficient] : row.terms) hash = mix(mix(hash, dim), hash_of(coefficient));
  }
  return hash;
}

uint64_t hash_of(const ReduceAttr& attr) {
  uint64_t hash = static_cast<uint64_t>(attr.kind);
  for (const uint8_t dim : attr.dims) hash = mix(hash, dim);
  return hash;
}

uint64_t hash_of(const ListAttr& attr) {
  uint64_t hash = static_cast<uint64_t>(attr.dim);
  for (const NodeId id : attr.operands) hash = mix(hash, id);
  return hash;
}

Node blank(Op op, DType dtype, uint32_t layout, size_t rank, uint32_t attr = 0) {
  return Node{op, dtype, static_cast<uint8_t>(rank), false, layout, attr, 0, {kNoNode, kNoNode, kNoNode, kNoNode}};
}

[[noreturn]] void refuse(const std::string& why) { throw std::invalid_argument(why); }

DType result_type(Op op, std::span<const DType> in) {
  const std::string name(text(op));
  auto all_equal = [&](size_t from) {
    for (size_t i = from + 1; i < in.size(); ++i)
      if (in[i] != in[from]) refuse(name + ": operand types differ");
  };
  switch (info(op).rule) {
    case TypeRule::Same:
      all_equal(0);
      return in[0];
    case TypeRule::Float:
      all_equal(0);
      if (!is_float(in[0])) refuse(name + ": needs f32 or f64");
      return in[0];
    case TypeRule::Integral:
      all_equal(0);
      if (is_floating(in[0])) refuse(name + ": needs integers or bool");
      return in[0];
    case TypeRule::Compare:
      all_equal(0);
      return DType::Bool;
    case TypeRule::Select:
      if (in[0] != DType::Bool) refuse(name + ": the condition must be bool");
      all_equal(1);
      return in[1];
    case TypeRule::Leaf:
    case TypeRule::Convert:
    case TypeRule::Shaped:
    case TypeRule::Opaque:
      break;
  }
  refuse(name + ": not a pointwise op with an inferred type");
}

}  // namespace

bool is_number_of_python(const Graph& graph, NodeId id) {
  return graph[id].op == Op::Result && graph.externs[graph[graph[id].in[0]].attr].kind == ExternKind::Number;
}

bool has_call(const Graph& graph, NodeId id) {
  if (graph[id].op != Op::Loop) return graph[id].op == Op::Extern;
  const Graph& body = *graph.loops[graph[id].attr].body;
  for (NodeId inner = 0; inner < body.nodes.size(); ++inner)
    if (has_call(body, inner)) return true;
  return false;
}

std::vector<bool> live_nodes(const Graph& graph) {
  std::vector<bool> live(graph.nodes.size(), false);
  for (const NodeId id : graph.outputs) live[id] = true;
  for (const Store& store : graph.stores) live[store.value] = true;
  for (auto id = static_cast<NodeId>(graph.nodes.size()); id-- > 0;) {
    if (!live[id] && !has_call(graph, id) && !is_number_of_python(graph, id)) continue;
    live[id] = true;
    for (const NodeId in : graph.operands(id))
      if (in != kNoNode) live[in] = true;
    if (graph[id].op == Op::Loop)  // ends with all of its values
      for (uint32_t i = 0; i < graph.loops[graph[id].attr].finals(); ++i) live[id + 1 + i] = true;
  }
  return live;
}

Dim Layout::numel() const {
  Dim n = 1;
  for (const Dim size : sizes) n *= size;
  return n;
}

bool Affine::has_terms_of(const Affine& o) const {
  return std::ranges::equal(
      terms, o.terms, [](const auto& a, const auto& b) { return a.first == b.first && identical(a.second, b.second); });
}

bool Affine::operator==(const Affine& o) const { return identical(offset, o.offset) && has_terms_of(o); }

IndexMap identity_map(size_t rank) {
  IndexMap map;
  for (size_t d = 0; d < rank; ++d) map.dims.push_back({0, {{static_cast<uint8_t>(d), 1}}});
  return map;
}

IndexMap composed(const IndexMap& inner, const IndexMap& outer) {
  IndexMap map;
  for (const Affine& row : inner.dims) {
    Affine made{row.offset, {}};
    for (const auto& [dim, coefficient] : row.terms) {
      const Affine& below = outer.dims[dim];
      made.offset += coefficient * below.offset;
      for (const auto& [further, factor] : below.terms) {
        const auto at = std::ranges::lower_bound(made.terms, further, {}, &std::pair<uint8_t, Dim>::first);
        if (at != made.terms.end() && at->first == further)
          at->second += coefficient * factor;
        else
          made.terms.insert(at, {further, coefficient * factor});
      }
    }
    map.dims.push_back(std::move(made));
  }
  return map;
}

std::string_view text(Product kind) {
  static constexpr std::string_view kNames[] = {"mm", "bmm", "addmm", "baddbmm", "convolution"};
  return kNames[static_cast<size_t>(kind)];
}

std::vector<Dim> broadcast(std::span<const Dim> a, std::span<const Dim> b) {
  std::vector<Dim> out(std::max(a.size(), b.size()));
  for (size_t i = 0; i < out.size(); ++i) {
    const Dim x = i < a.size() ? a[a.size() - 1 - i] : 1;
    const Dim y = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (x != 1 && y != 1 && x != y) refuse("sizes " + text(x) + " and " + text(y) + " do not broadcast");
    out[out.size() - 1 - i] = x == 1 ? y : x;
  }
  return out;
}

std::vector<Dim> gathered_sizes(std::span<const Dim> table, std::span<const Dim> index, size_t dim) {
  std::vector<Dim> out(table.begin(), table.end());
  const auto at = out.begin() + static_cast<std::ptrdiff_t>(dim);
  out.insert(out.erase(at), index.begin(), index.end());
  return out;
}

std::vector<Dim> row_major(std::span<const Dim> sizes) {
  std::vector<Dim> strides(sizes.size());
  Dim step = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = step;
    step *= max(sizes[i], 1);
  }
  return strides;
}

std::vector<int64_t> row_major(std::span<const int64_t> sizes) {
  return hints(row_major(std::vector<Dim>(sizes.begin(), sizes.end())));
}

std::span<const NodeId> Graph::operands(NodeId id) const {
  const Node& node = nodes[id];
  if (const int8_t count = info(node.op).arity; count != kVariadic) return {node.in, static_cast<size_t>(count)};
  if (node.op == Op::Contract) return contracts[node.attr].operands;
  if (node.op == Op::Cat) return lists[node.attr].operands;
  return node.op == Op::Extern ? externs[node.attr].operands : loops[node.attr].operands;
}

NodeId Graph::stored_over(NodeId id) const {
  const Node& node = nodes[id];
  if (node.op == Op::Update) return node.in[0];
  if (node.op != Op::Final) return kNoNode;
  const LoopAttr& loop = loops[nodes[node.in[0]].attr];
  const bool is_placed = node.attr >= loop.carried && node.attr < loop.carried + loop.placed;
  return is_placed ? loop.operands[node.attr] : kNoNode;
}

template <class T>
uint32_t Graph::intern_in(Known& known, std::vector<T>& table, T value) {
  for (; known.taken < table.size(); ++known.taken)
    known.entries.add(hash_of(table[known.taken]), static_cast<uint32_t>(known.taken));
  const uint64_t hash = hash_of(value);
  const uint32_t there = known.entries.find(hash, [&](uint32_t id) { return table[id] == value; });
  if (there != support::HashIndex::kNone) return there;
  table.push_back(std::move(value));
  const auto id = static_cast<uint32_t>(known.taken++);
  known.entries.add(hash, id);
  return id;
}

uint32_t Graph::intern(Layout layout) { return intern_in(known_layouts_, layouts, std::move(layout)); }

uint32_t Graph::intern_line(std::string_view file_and_line) {
  return intern_in(known_lines_, lines, std::string(file_and_line));
}

uint32_t Graph::intern_line(std::string_view file_and_line, TracedRound round) {
  const uint32_t line = intern_line(std::string(file_and_line) + " in round " + std::to_string(round.round) +
                                    " of loop " + std::to_string(round.loop));
  if (line_rounds.size() <= line) line_rounds.resize(line + 1);
  line_rounds[line] = round;
  return line;
}

void Graph::ask_in(TracedRound round) const {
  if (traced.empty()) return;
  const bool is_any = round.loop == TracedRound::kNone || round.round + 1 == traced[round.loop].trip.hint();
  if (is_any) return symbols->suppose(0, 0);
  const TracedLoop& loop = traced[round.loop];
  symbols->suppose(loop.trip, int64_t{round.round} + 1 + loop.last_apart);
}

void Graph::reserve(size_t count) {
  nodes.reserve(count);
  interned_.reserve(count);
}

bool Graph::is_position(NodeId id) const {
  const Node& node = nodes[id];
  if (node.op == Op::Reduce) return gives_position(reduces[node.attr].kind);
  if (node.op != Op::Result) return false;
  const ExternAttr& call = externs[nodes[node.in[0]].attr];
  return call.gives_position && node.attr + 1 == call.outputs;
}

void Graph::take_up_nodes() {
  for (; taken_nodes_ < nodes.size(); ++taken_nodes_)
    if (is_pure(nodes[taken_nodes_].op)) interned_.add(hash_of(nodes[taken_nodes_]), static_cast<NodeId>(taken_nodes_));
}

/// Whether the node may be one that is appended on this line, too. What a round has made is not read outside of its
/// loop: another call would read another round.
static bool may_stand_in(const Graph& graph, NodeId id, uint32_t line) {
  const uint32_t loop = graph.round_of(id).loop;
  return loop == TracedRound::kNone || (line < graph.line_rounds.size() && loop == graph.line_rounds[line].loop);
}

NodeId Graph::append(Node node) {
  take_up_nodes();
  if (is_commutative(node.op) && node.in[0] > node.in[1]) std::swap(node.in[0], node.in[1]);
  const uint64_t hash = hash_of(node);
  if (is_pure(node.op) && !is_own_copy(*this, node)) {
    const NodeId known =
        interned_.find(hash, [&](NodeId id) { return same_work(nodes[id], node) && may_stand_in(*this, id, line_); });
    if (known != support::HashIndex::kNone) return known;
  }
  node.line = line_;
  nodes.push_back(node);
  taken_nodes_ = nodes.size();
  const auto id = static_cast<NodeId>(nodes.size() - 1);
  if (is_pure(node.op)) interned_.add(hash, id);
  return id;
}

NodeId Graph::input(DType dtype, Layout layout, InputInfo input_info) {
  inputs.push_back(std::move(input_info));
  const size_t rank = layout.sizes.size();
  return append(blank(Op::Input, dtype, intern(std::move(layout)), rank, static_cast<uint32_t>(inputs.size() - 1)));
}

NodeId Graph::scalar(DType dtype, InputInfo input_info) {
  if (dtype != DType::F64 && dtype != DType::I64) refuse("scalar: run-time scalars are f64 or i64");
  scalars.push_back(std::move(input_info));
  return append(blank(Op::Scalar, dtype, intern({}), 0, static_cast<uint32_t>(scalars.size() - 1)));
}

NodeId Graph::size(Dim size) {
  if (!size.is_symbolic()) return constant_int(DType::I64, size.hint());
  const auto known = std::ranges::find(sizes_, size.expr(), &std::pair<uint32_t, NodeId>::first);
  if (known != sizes_.end()) return known->second;
  const NodeId id = scalar(DType::I64, {text(size), true, size});
  sizes_.emplace_back(size.expr(), id);
  return id;
}

NodeId Graph::constant(DType dtype, double value) {
  if (!is_float(dtype))
    return is_half(dtype) ? (refuse("constant: halves are converted from f32"), kNoNode)
                          : constant_int(dtype, static_cast<int64_t>(value));
  if (dtype == DType::F32) value = static_cast<double>(static_cast<float>(value));
  return append(
      blank(Op::Const, dtype, intern({}), 0, intern_in(known_constants_, constants, std::bit_cast<uint64_t>(value))));
}

NodeId Graph::constant_int(DType dtype, int64_t value) {
  if (is_floating(dtype)) refuse("constant_int: needs an integer type");
  switch (dtype) {
    case DType::Bool:
      value = value != 0;
      break;
    case DType::I8:
      value = static_cast<int8_t>(value);
      break;
    case DType::U8:
      value = static_cast<uint8_t>(value);
      break;
    case DType::I16:
      value = static_cast<int16_t>(value);
      break;
    case DType::I32:
      value = static_cast<int32_t>(value);
      break;
    default:
      break;
  }
  return append(
      blank(Op::Const, dtype, intern({}), 0, intern_in(known_constants_, constants, static_cast<uint64_t>(value))));
}

NodeId Graph::iota(Layout layout, int dim) {
  const size_t rank = layout.sizes.size();
  if (dim < 0 || static_cast<size_t>(dim) >= rank) refuse("iota: no such dim");
  layout.strides = row_major(layout.sizes);
  return append(blank(Op::Iota, DType::I64, intern(std::move(layout)), rank, static_cast<uint32_t>(dim)));
}

NodeId Graph::undef(DType dtype, Layout layout) {
  const size_t rank = layout.sizes.size();
  return append(blank(Op::Undef, dtype, intern(std::move(layout)), rank));
}

NodeId Graph::pointwise(Op op, std::initializer_list<NodeId> values) {
  if (!is_pointwise(op) || op == Op::Convert) refuse(std::string(text(op)) + ": not made by pointwise()");
  if (values.size() != static_cast<size_t>(info(op).arity))
    refuse(std::string(text(op)) + ": wrong number of operands");
  DType types[4];
  std::vector<Dim> shape;
  size_t count = 0;
  Node node = blank(op, DType::F32, 0, 0);
  for (NodeId id : values) {
    types[count] = nodes[id].dtype;
    node.in[count++] = id;
    shape = count == 1 ? std::vector<Dim>(sizes(id).begin(), sizes(id).end()) : broadcast(shape, sizes(id));
  }
  node.dtype = result_type(op, {types, count});
  node.rank = static_cast<uint8_t>(shape.size());
  std::vector<Dim> strides = row_major(shape);
  node.layout = intern({std::move(shape), std::move(strides)});
  return append(node);
}

NodeId Graph::convert(NodeId value, DType to) {
  if (nodes[value].dtype == to) return value;
  const Layout& from = layout(value);
  Node node = blank(Op::Convert, to, intern({from.sizes, row_major(from.sizes)}), from.sizes.size());
  node.in[0] = value;
  return append(node);
}

NodeId Graph::view(NodeId value, IndexMap map, std::vector<Dim> out_sizes) {
  if (map.dims.size() != sizes(value).size()) refuse("view: the map needs one row per dimension of the operand");
  std::vector<Dim> strides = row_major(out_sizes);
  const size_t rank = out_sizes.size();
  Node node = blank(Op::View, nodes[value].dtype, intern({std::move(out_sizes), std::move(strides)}), rank,
                    intern_in(known_maps_, maps, std::move(map)));
  node.in[0] = value;
  return append(node);
}

// The map of a reshape that only adds or drops dims of size 1, or nothing.
static std::optional<IndexMap> unit_dims_map(std::span<const Dim> from, std::span<const Dim> to) {
  IndexMap map;
  size_t next = 0;
  for (const Dim size : from) {
    map.dims.emplace_back();
    if (size == 1) continue;
    while (next < to.size() && to[next] == 1) ++next;
    if (next == to.size() || to[next] != size) return std::nullopt;
    map.dims.back().terms.emplace_back(static_cast<uint8_t>(next++), 1);
  }
  while (next < to.size() && to[next] == 1) ++next;
  return next == to.size() ? std::optional(std::move(map)) : std::nullopt;
}

NodeId Graph::reshape(NodeId value, std::vector<Dim> out_sizes) {
  if (std::ranges::equal(out_sizes, sizes(value))) return value;
  std::vector<Dim> strides = row_major(out_sizes);
  Layout to{std::move(out_sizes), std::move(strides)};
  if (to.numel() != layout(value).numel()) refuse("reshape: the number of elements differs");
  if (auto map = unit_dims_map(sizes(value), to.sizes)) return view(value, std::move(*map), std::move(to.sizes));
  const size_t rank = to.sizes.size();
  Node node = blank(Op::Reshape, nodes[value].dtype, intern(std::move(to)), rank);
  node.in[0] = value;
  return append(node);
}

NodeId Graph::expand(NodeId value, std::vector<Dim> out_sizes) {
  const auto from = sizes(value);
  if (std::ranges::equal(from, out_sizes)) return value;
  if (from.size() > out_sizes.size()) refuse("expand: fewer dimensions than the operand");
  const size_t lead = out_sizes.size() - from.size();
  IndexMap map;
  for (size_t k = 0; k < from.size(); ++k) {
    const Dim to = out_sizes[lead + k];
    if (from[k] != 1 && from[k] != to) refuse("expand: size " + text(from[k]) + " cannot become " + text(to));
    Affine row;
    if (from[k] != 1) row.terms.emplace_back(static_cast<uint8_t>(lead + k), 1);
    map.dims.push_back(std::move(row));
  }
  return view(value, std::move(map), std::move(out_sizes));
}

NodeId Graph::update(NodeId base, NodeId value, IndexMap map) {
  if (nodes[base].dtype != nodes[value].dtype) refuse("update: the value has another type than what it is written to");
  if (map.dims.size() != sizes(base).size()) refuse("update: the map needs one row per dimension of the base");
  Node node = blank(Op::Update, nodes[base].dtype, nodes[base].layout, nodes[base].rank,
                    intern_in(known_maps_, maps, std::move(map)));
  node.in[0] = base;
  node.in[1] = value;
  return append(node);
}

NodeId Graph::cat(std::vector<NodeId> values, int64_t dim) {
  Dim length = 0;
  for (const NodeId id : values)
    if (dim >= 0 && dim < nodes[id].rank) length += sizes(id)[static_cast<size_t>(dim)];
  return cat(std::move(values), dim, length);
}

NodeId Graph::cat(std::vector<NodeId> values, int64_t dim, Dim length) {
  if (values.empty()) refuse("cat: no operands");
  Layout to = layout(values[0]);
  if (dim < 0 || dim >= to.rank()) refuse("cat: no such dim");
  to.sizes[static_cast<size_t>(dim)] = length;
  for (const NodeId id : values)
    if (nodes[id].dtype != nodes[values[0]].dtype || nodes[id].rank != nodes[values[0]].rank)
      refuse("cat: operand types or ranks differ");
  to.strides = row_major(to.sizes);
  const DType dtype = nodes[values[0]].dtype;
  const size_t rank = to.sizes.size();
  return append(blank(Op::Cat, dtype, intern(std::move(to)), rank,
                      intern_in(known_lists_, lists, ListAttr{dim, std::move(values)})));
}

Node Graph::reduction(Op op, DType dtype, NodeId value, ReduceAttr attr) {
  Layout to;
  const std::vector<uint8_t>& dims = attr.dims;
  for (size_t k = 0; k < sizes(value).size(); ++k)
    if (std::ranges::find(dims, k) == dims.end()) to.sizes.push_back(sizes(value)[k]);
  if (to.sizes.size() + dims.size() != sizes(value).size() || !std::ranges::is_sorted(dims))
    refuse("reduce: dims must be distinct, ascending and in range");
  to.strides = row_major(to.sizes);
  const size_t rank = to.sizes.size();
  Node node = blank(op, dtype, intern(std::move(to)), rank, intern_in(known_reduces_, reduces, std::move(attr)));
  node.in[0] = value;
  return node;
}

NodeId Graph::gather(NodeId table, NodeId index, size_t dim) {
  if (dim >= sizes(table).size() || nodes[index].dtype != DType::I64) refuse("gather: needs a dim, and I64 indices");
  Layout to{gathered_sizes(sizes(table), sizes(index), dim), {}};
  to.strides = row_major(to.sizes);
  const size_t rank = to.sizes.size();
  Node node = blank(Op::Gather, nodes[table].dtype, intern(std::move(to)), rank, static_cast<uint32_t>(dim));
  node.in[0] = table;
  node.in[1] = index;
  return append(node);
}

NodeId Graph::reduce(ReduceKind kind, NodeId value, std::vector<uint8_t> dims, DType result) {
  return append(reduction(Op::Reduce, result, value, {kind, std::move(dims)}));
}

NodeId Graph::dot(NodeId a, NodeId b, std::vector<uint8_t> dims) {
  const DType dtype = nodes[a].dtype;
  if (!is_float(dtype) || nodes[b].dtype != dtype || !std::ranges::equal(sizes(a), sizes(b)))
    refuse("dot: needs two operands of one shape, both f32 or both f64");
  Node node = reduction(Op::Dot, dtype, a, {ReduceKind::Dot, std::move(dims)});
  node.in[1] = b;
  return append(node);
}

NodeId Graph::contract(ContractAttr attr, DType dtype, Layout to) {
  contracts.push_back(std::move(attr));
  const size_t rank = to.sizes.size();
  return append(blank(Op::Contract, dtype, intern(std::move(to)), rank, static_cast<uint32_t>(contracts.size() - 1)));
}

NodeId Graph::external(ExternAttr attr) {
  externs.push_back(std::move(attr));
  return append(blank(Op::Extern, DType::F32, intern({}), 0, static_cast<uint32_t>(externs.size() - 1)));
}

NodeId Graph::result(NodeId external, uint32_t which, DType dtype, Layout to) {
  const size_t rank = to.sizes.size();
  Node node = blank(Op::Result, dtype, intern(std::move(to)), rank, which);
  node.in[0] = external;
  return append(node);
}

NodeId Graph::loop(LoopAttr attr) {
  const std::shared_ptr<const Graph> body = attr.body;
  const uint32_t carried = attr.carried, placed = attr.placed;
  const NodeId id = static_cast<NodeId>(nodes.size());
  Node node = blank(Op::Loop, DType::U8, intern({{attr.scratch}, {1}}), 1, static_cast<uint32_t>(loops.size()));
  const uint32_t finals = attr.finals();
  loops.push_back(std::move(attr));
  append(node);
  for (uint32_t which = 0; which < finals; ++which) {
    const bool is_placed = which >= carried && which < carried + placed;
    const NodeId of =
        is_placed ? body->stores[which - carried].value : body->outputs[which < carried ? which : which - placed];
    Layout to = around_body(*this, *body, body->layout(of));
    const size_t rank = to.sizes.size();
    Node final = blank(Op::Final, (*body)[of].dtype, intern(std::move(to)), rank, which);
    final.in[0] = id;
    append(final);
  }
  return id;
}

Node Graph::identity_view(NodeId value, std::vector<Dim> strides) {
  const std::vector<Dim> to = layout(value).sizes;
  if (strides.size() != to.size()) refuse("with_strides: one stride per dimension");
  const size_t rank = to.size();
  Node node = blank(Op::View, nodes[value].dtype, intern({to, std::move(strides)}), rank,
                    intern_in(known_maps_, maps, identity_map(rank)));
  node.in[0] = value;
  return node;
}

NodeId Graph::with_strides(NodeId value, std::vector<Dim> strides) {
  return identical(layout(value).strides, strides) ? value : append(identity_view(value, std::move(strides)));
}

NodeId Graph::fresh_copy(NodeId value, std::vector<Dim> strides) {
  Node node = identity_view(value, std::move(strides));
  take_up_nodes();
  node.line = line_;
  nodes.push_back(node);
  taken_nodes_ = nodes.size();
  return static_cast<NodeId>(nodes.size() - 1);
}

}  // namespace fastjit::ir
