#pragma once
// Rebuilding a graph node by node: what every pass does around its own rule.
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ir/graph.h"

namespace fastjit::pass {

bool is_guard(const ir::Graph& graph, const ir::Node& node);
/// A guard, a number of Python's, or a loop with guards: a run may end there.
bool may_end(const ir::Graph& graph, const ir::Node& node);

/// Per node: a guard depends on it, so that it keeps eager's bits. Which element was picked is a result like any other,
/// which hangs on a rounding at a tie alone.
std::vector<bool> decides_guard(const ir::Graph& graph);

/// The tensor in whose memory the value lies, if it lies in one's.
ir::NodeId memory_of(const ir::Graph& graph, ir::NodeId id);

/// What calls write: a value that was read there before is not what a later reader finds.
std::vector<bool> overwritten(const ir::Graph& graph);

/// TracedLoop::alike_from of a loop with a round that hands on a value as it got it: which one that is hangs on how
/// many rounds there are.
inline constexpr uint32_t kNeverAlike = 0xFFFFFFFFu;

/// Copies nodes of one graph into a fresh one, remembering where each went.
class Rewriter {
 public:
  explicit Rewriter(const ir::Graph& from)
      : from_(from), map_(from.nodes.size(), ir::kNoNode), layouts_(from.layouts.size(), ir::kNoNode) {
    to_.symbols = from.symbols;
    to_.lines = from.lines;
    to_.line_rounds = from.line_rounds;
    to_.traced = from.traced;
    to_.inputs = from.inputs;
    to_.scalars = from.scalars;
    to_.constants = from.constants;
    to_.maps = from.maps;
    to_.reduces = from.reduces;
    to_.layouts = {};
    to_.reserve(from.nodes.size());
    to_.contracts.reserve(from.contracts.size());
    to_.externs.reserve(from.externs.size());
  }

  const ir::Graph& from() const { return from_; }
  ir::Graph& to() { return to_; }
  bool copies_again = false;  // what it copies is made once more (Node::again)
  ir::NodeId operator[](ir::NodeId old) const { return old == ir::kNoNode ? old : map_[old]; }
  void set(ir::NodeId old, ir::NodeId now) { map_[old] = now; }

  /// An input of the new graph in place of this node: the next one of its inputs.
  ir::NodeId input(ir::NodeId old, std::string name);

  /// The same node with its operands where they went.
  ir::NodeId copy(ir::NodeId old);
  /// The same pure node with other strides.
  ir::NodeId copy(ir::NodeId old, std::vector<ir::Dim> strides);
  using Strides = std::vector<ir::Dim>;
  /// A call of torch's with other strides of its first operands and, a product, of its result.
  ir::NodeId call(ir::NodeId old, const std::vector<Strides>& first, const Strides& result = {});
  /// A product in place of the old one; `attr` names operands of the old graph.
  ir::NodeId contract(ir::NodeId old, ir::ContractAttr attr);

  /// A loop with these operands, of the new graph.
  ir::NodeId loop(ir::NodeId old, std::vector<ir::NodeId> operands);

  /// What the caller is given for an output of the old graph: a tensor of its own.
  ir::NodeId output(ir::NodeId old);

  /// Outputs and stores, carried over; call once after all nodes.
  ir::Graph finish();

 private:
  ir::NodeId operand(ir::NodeId old);  // of a call
  ir::NodeId operand(ir::NodeId old, const Strides& strides);
  /// Where the operands of a call went, the first ones with these strides.
  void place(std::vector<ir::NodeId>& operands, const std::vector<Strides>& first = {});
  ir::NodeId make_output(ir::NodeId old);
  void find_moves();

  const ir::Graph& from_;
  ir::Graph to_;
  std::vector<ir::NodeId> map_;
  std::vector<uint32_t> layouts_;                        // where they went, once one of their nodes did
  std::unordered_map<ir::NodeId, ir::NodeId> finished_;  // by output of the old graph
  std::unordered_set<ir::NodeId> given_;                 // outputs of the new one
};

}  // namespace fastjit::pass
