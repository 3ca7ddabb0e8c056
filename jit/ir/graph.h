#pragma once
// The graph of one captured call: an append-only list of 32-byte nodes in execution order. Operands are earlier
// indices, equal pure nodes are one node (interned on append), and shapes, maps and attributes stand in side tables.
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/dim.h"
#include "ir/dtype.h"
#include "ir/op.h"
#include "support/hash_index.h"

namespace fastjit::ir {

using NodeId = uint32_t;
inline constexpr NodeId kNoNode = 0xFFFFFFFFu;

/// Sizes, and the strides (in elements) that eager's tensor has; `strides` matter only where a value is stored.
struct Layout {
  std::vector<Dim> sizes;
  std::vector<Dim> strides;
  bool operator==(const Layout& o) const { return identical(sizes, o.sizes) && identical(strides, o.strides); }
  int rank() const { return static_cast<int>(sizes.size()); }
  Dim numel() const;
};

struct Node {
  Op op;
  DType dtype;
  uint8_t rank;     // of the layout, for quick checks
  bool again;       // it is made once more, on purpose: no node that is not has its value
  uint32_t layout;  // index into Graph::layouts
  uint32_t attr;    // meaning per op, see op.def
  uint32_t line;    // index into Graph::lines: where the user wrote it (0: unknown)
  NodeId in[4];     // kNoNode where unused
};
static_assert(sizeof(Node) == 32);

/// One input index as an affine function of the output indices: offset + sum(coef * out[dim]).
struct Affine {
  Dim offset = 0;
  std::vector<std::pair<uint8_t, Dim>> terms;  // (output dim, coefficient), dims ascending
  bool operator==(const Affine& o) const;
  bool has_terms_of(const Affine& o) const;
};
/// One Affine per dimension of the operand. Every index it gives lies inside the operand.
struct IndexMap {
  std::vector<Affine> dims;
  bool operator==(const IndexMap&) const = default;
};

IndexMap identity_map(size_t rank);

/// The map from the dims that `outer` maps from to those that `inner` maps to.
IndexMap composed(const IndexMap& inner, const IndexMap& outer);

enum class ReduceKind : uint8_t {
#define REDUCE(name, text) name,
#include "ir/reduce.def"
#undef REDUCE
};
inline constexpr std::array kReductions{
#define REDUCE(name, text) std::string_view(text),
#include "ir/reduce.def"
#undef REDUCE
};
constexpr std::string_view text(ReduceKind kind) { return kReductions[static_cast<size_t>(kind)]; }
/// Of an element, not its value (Graph::is_position).
constexpr bool gives_position(ReduceKind kind) { return kind == ReduceKind::ArgMax || kind == ReduceKind::ArgMin; }

/// Reduces `dims` (ascending) of the operand; the result has the other dims, in order (no keepdim).
/// Sum and Prod: operand and result have one type (F32, F64 or I64). Max and Min: any type but halves become F32 first;
/// NaN wins. ArgMax and ArgMin: result I64, index along the one reduced dim (row-major over all if `dims` is every
/// dim); first NaN, else first hit, wins. Any and All: Bool. Dot, of Op::Dot alone: two operands of one shape and type,
/// F32 or F64, which the result and the running sums have too: each product is added with one rounding.
struct ReduceAttr {
  ReduceKind kind;
  std::vector<uint8_t> dims;
  bool operator==(const ReduceAttr&) const = default;
};

struct ListAttr {
  int64_t dim = 0;
  std::vector<NodeId> operands;
  bool operator==(const ListAttr&) const = default;
};

/// What a product is. Mm, Bmm: factors a, b. Addmm, Baddbmm: bias, a, b. Their result is row-major and may be given.
enum class Product : uint8_t { Mm, Bmm, Addmm, Baddbmm, Convolution };
std::string_view text(Product kind);

/// How a convolution goes over each dim of its images: from one result to the next, beyond their ends on either side
/// (zeros are there), from tap to tap. All channels are one group, and it is not transposed.
struct Window {
  std::vector<int64_t> stride, padding, dilation;
  bool operator==(const Window&) const = default;
};

/// A product that torch's library computes from `operands`, without any effect. The node has the type and layout of the
/// result. `call` is the index of the capture's call template with what else the operator is given (alpha and beta,
/// strides and padding).
struct ContractAttr {
  Product kind = Product::Mm;
  uint32_t call = 0;
  std::string name;  // "aten::mm", for people
  std::vector<NodeId> operands;
  bool unscaled = false;              // Addmm, Baddbmm: alpha and beta are 1
  bool keeps_layout = false;          // Convolution: as ExternAttr's
  std::optional<Window> window = {};  // Convolution: of (images, weight) or (images, weight, bias)
};

enum class ExternKind : uint8_t {
  Op,      // any operator, run as it is
  View,    // an operator whose outputs alias its first tensor operand (torch's own view op)
  Guard,   // no call: the program goes on only if the operand holds what it held when it was recorded; no outputs
  Number,  // no call: one operation of Python on numbers, 0-dim f64 operands and result; it may refuse to go on
};
/// A call that torch runs. `call` is the index of the call template that the capture keeps (operator handle and
/// arguments with holes); `operands` fill the holes in order, as real tensors with eager's strides. Of a Guard, `call`
/// is the index of the value that the capture keeps, `name` says where it was read; of a Number, that of the operation.
struct ExternAttr {
  ExternKind kind = ExternKind::Op;
  uint32_t call = 0;
  std::string name;  // "aten::mm", for people
  std::vector<NodeId> operands;
  std::vector<uint32_t> written;  // operands that the call writes: their storage is read by nothing fused afterwards
  uint32_t outputs = 1;
  std::vector<uint32_t> sizes = {};  // Graph::scalars that it is given beside its operands, which are sizes
  // Its result lies as its first operand does, computed as well either way. A call for the gradients of a
  // convolution, of (gradient, image, weight): those of image and weight lie as the image does.
  bool keeps_layout = false;
  std::optional<Window> window = {};  // of the convolution that it gives the gradients of
  bool gives_position = false;        // its last result: which element of its operand it has picked
};

class Graph;

/// `body`, `trip` times, at least once; where that is no number there are no tables. What is equal in all rounds but
/// for an index reads it from the last symbol of the body, which is kFirstRound in the first round and one more in
/// each; the others are those of the graph.
///
/// Inputs of the body, and what they are in a round: `carried` values, in the first round operands of the Loop, then
/// what the round before gave as output of that number; `placed` values, which begin with an operand too, and each
/// round stores another one over (one Store each); `fixed` operands; `tables`, each with an operand for every round.
/// Operands of the Loop stand in this order, those of a table one after another, round by round. Outputs of the body:
/// the carried values, then `lasts`, which only count in the last round. The Finals stand right behind the Loop: of the
/// carried, the placed and the last ones.
struct LoopAttr {
  static constexpr int64_t kFirstRound = 2;
  Dim trip = 0;
  uint32_t carried = 0, placed = 0, fixed = 0, tables = 0, lasts = 0;
  Dim scratch = 0;  // bytes that its rounds take beside what they are given
  std::shared_ptr<const Graph> body;
  std::vector<NodeId> operands;

  uint32_t finals() const { return carried + placed + lasts; }
};

/// `value` is written into input `input` (same sizes) when the call ends.
struct Store {
  uint32_t input;
  NodeId value;
  uint32_t bumps;  // by how much eager moved the input's version counter
};

struct InputInfo {
  std::string name;     // "x", "arg1[0]", "model.fc1.weight": for people
  bool scalar = false;  // a run-time scalar, not a tensor
  Dim size = {};        // symbolic: of a scalar that is this size, and not given
};

/// A loop of the caller's, of which another call may run more or fewer rounds. The graph has those of the recorded
/// call. What a round hands on it has made, or all rounds share it: none gives on what it got in another place. In the
/// last round what follows from its index is an expression, in the others it is the number; a Cat that lists values of
/// all rounds is as long as they are many.
struct TracedLoop {
  Dim trip;                 // how many rounds there are
  uint32_t alike_from = 0;  // the rounds from this number on do the same
  bool last_apart = false;  // but the last one
};

/// Where a node stands in such a loop.
struct TracedRound {
  static constexpr uint32_t kNone = 0xFFFFFFFFu;
  uint32_t loop = kNone;  // of Graph::traced
  uint32_t round = 0;
};

class Graph {
 public:
  std::shared_ptr<Symbols> symbols;  // of its sizes; null: all are numbers
  std::vector<Node> nodes;
  std::vector<Layout> layouts;
  std::vector<uint64_t> constants;
  std::vector<IndexMap> maps;
  std::vector<ReduceAttr> reduces;
  std::vector<ListAttr> lists;
  std::vector<ContractAttr> contracts;
  std::vector<ExternAttr> externs;
  std::vector<LoopAttr> loops;
  std::vector<std::string> lines{""};
  std::vector<TracedRound> line_rounds;  // by line, as far as they go: in which round that line was run
  std::vector<TracedLoop> traced;
  std::vector<InputInfo> inputs;   // tensors, by Input's attr
  std::vector<InputInfo> scalars;  // by Scalar's attr
  std::vector<NodeId>
      outputs;  // values the caller gets, each a fresh tensor unless the node is an Input or an Extern View result
  std::vector<Store> stores;

  /// Makes room for so many nodes.
  void reserve(size_t count);
  const Node& operator[](NodeId id) const { return nodes[id]; }
  const Layout& layout(NodeId id) const { return layouts[nodes[id].layout]; }
  std::span<const Dim> sizes(NodeId id) const { return layout(id).sizes; }
  /// Whether Python computes it out of numbers (ExternKind::Number).
  bool is_number(NodeId id) const {
    const Node& node = nodes[id];
    return node.op == Op::Result && externs[nodes[node.in[0]].attr].kind == ExternKind::Number;
  }

  /// Whether the value says which element was picked. The others say what they are.
  bool is_position(NodeId id) const;
  /// Operands of any node, variadic ones included.
  std::span<const NodeId> operands(NodeId id) const;
  /// What the node, an Update or a Final, is stored over; else kNoNode.
  NodeId stored_over(NodeId id) const;

  uint32_t intern(Layout layout);
  uint32_t intern_line(std::string_view file_and_line);
  uint32_t intern_line(std::string_view file_and_line, TracedRound round);
  TracedRound round_of(NodeId id) const {
    return nodes[id].line < line_rounds.size() ? line_rounds[nodes[id].line] : TracedRound();
  }
  /// What is asked of sizes from now on is asked in this round of a traced loop, so that there are that many; in the
  /// last one it is asked of any number. Without an argument: in none.
  void ask_in(TracedRound round = {}) const;

  /// Makers. Each returns an existing node where an equal pure one stands already. Shapes are inferred; `strides` of
  /// inferred layouts are row-major. The line given by `set_line` is attached to new nodes.
  void set_line(uint32_t line) { line_ = line; }
  NodeId input(DType dtype, Layout layout, InputInfo info);
  NodeId scalar(DType dtype, InputInfo info);
  NodeId size(Dim size);                            // an I64: of a symbolic one a run-time scalar
  NodeId constant(DType dtype, double value);       // floats (value rounded to dtype for F32; halves not allowed)
  NodeId constant_int(DType dtype, int64_t value);  // integers and Bool
  NodeId iota(Layout layout, int dim);
  NodeId undef(DType dtype, Layout layout);                         // each is a node of its own
  NodeId pointwise(Op op, std::initializer_list<NodeId> operands);  // result type by the op's rule
  NodeId convert(NodeId value, DType to);                           // the value itself when nothing changes
  NodeId view(NodeId value, IndexMap map, std::vector<Dim> sizes);
  NodeId reshape(NodeId value, std::vector<Dim> sizes);
  NodeId expand(NodeId value, std::vector<Dim> sizes);  // numpy broadcasting to `sizes`
  NodeId cat(std::vector<NodeId> values, int64_t dim);
  /// So long along that dim: with values of all rounds of a traced loop, of which the graph has the recorded ones.
  NodeId cat(std::vector<NodeId> values, int64_t dim, Dim length);
  /// `base` with the elements at map(i) replaced by value[i]; the layout is base's. The map has one row per dim of
  /// `base`, and is injective.
  NodeId update(NodeId base, NodeId value, IndexMap map);
  /// `table` with the dims of `index` in place of `dim`. Whoever asks for it knows that every index is in range.
  NodeId gather(NodeId table, NodeId index, size_t dim);
  NodeId reduce(ReduceKind kind, NodeId value, std::vector<uint8_t> dims, DType result);
  NodeId dot(NodeId a, NodeId b, std::vector<uint8_t> dims);
  NodeId contract(ContractAttr attr, DType dtype, Layout layout);  // each is a node, and a tensor, of its own
  NodeId external(ExternAttr attr);
  /// The Loop; its Finals stand behind it.
  NodeId loop(LoopAttr attr);
  NodeId result(NodeId external, uint32_t which, DType dtype, Layout layout);
  /// The same value with other strides (eager's); does not intern with the original.
  NodeId with_strides(NodeId value, std::vector<Dim> strides);

  /// The same value as a tensor of its own, with these strides: an identity View that is never interned. For outputs
  /// that are equal values but different tensors. The planner gives each output that is not an Input or Extern result
  /// its own memory.
  NodeId fresh_copy(NodeId value, std::vector<Dim> strides);

  /// Adds a node whose side-table entries exist already; for passes and the parser.
  NodeId append(Node node);

 private:
  Node identity_view(NodeId value, std::vector<Dim> strides);
  Node reduction(Op op, DType dtype, NodeId value, ReduceAttr attr);
  /// Entries of one side table by hash; those that others appended are taken up at the next question.
  struct Known {
    support::HashIndex entries;
    size_t taken = 0;
  };
  template <class T>
  static uint32_t intern_in(Known& known, std::vector<T>& table, T value);
  Known known_layouts_, known_constants_, known_maps_, known_reduces_, known_lists_, known_lines_;
  /// Nodes that others put into `nodes` are taken up too.
  void take_up_nodes();
  support::HashIndex interned_;
  size_t taken_nodes_ = 0;
  std::vector<std::pair<uint32_t, NodeId>> sizes_;  // scalars that are sizes, by expression
  uint32_t line_ = 0;
};

/// The same graph, with symbols of its own, where these were their sizes in the recorded call: choices are made for
/// them. The guards let them in.
Graph at_sizes(const Graph& graph, std::span<const int64_t> sizes);

/// Sizes of what a Gather along `dim` gives.
std::vector<Dim> gathered_sizes(std::span<const Dim> table, std::span<const Dim> index, size_t dim);
/// Broadcast shape of two shapes; throws std::invalid_argument where torch would refuse.
std::vector<Dim> broadcast(std::span<const Dim> a, std::span<const Dim> b);
std::vector<Dim> row_major(std::span<const Dim> sizes);
std::vector<int64_t> row_major(std::span<const int64_t> sizes);

/// Text form: one node a line, printed and parsed back without loss (`parse(print(g)) == g` up to side-table order).
std::string print(const Graph& graph);
Graph parse(std::string_view text);  // throws std::invalid_argument naming the line

/// Nodes that are drawn in one box.
struct Cluster {
  std::string label;
  std::vector<NodeId> nodes;
};
std::string dot(const Graph& graph, std::span<const Cluster> clusters = {});  // GraphViz

/// Per node: outputs, stores or calls need it.
std::vector<bool> live_nodes(const Graph& graph);
/// A number that Python computes, which may raise: it stays where nobody reads it.
bool is_number_of_python(const Graph& graph, NodeId id);

/// Empty when the graph is legal, else one sentence naming the node and the rule it breaks.
std::string verify(const Graph& graph);

}  // namespace fastjit::ir
