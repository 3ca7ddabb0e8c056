#include "pass/number_lists.h"

#include <map>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "pass/rewrite.h"

namespace fastjit::pass {

using namespace ir;

namespace {

// Fewer rounds are compiled as soon each by itself, with the numbers in their code.
constexpr size_t kFewest = 8;

/// Integers are divided by numbers in the code alone (ir/op.def).
bool is_integer_divisor(const Node& reader, size_t k) {
  const bool divides =
      reader.op == Op::Div || reader.op == Op::FloorDiv || reader.op == Op::Remainder || reader.op == Op::Fmod;
  return divides && k == 1 && !is_float(reader.dtype);
}

bool may_be_listed(const Node& number, const Node& reader, size_t k) {
  const bool has_type = is_float(number.dtype) || number.dtype == DType::I64 || number.dtype == DType::I32;
  return number.op == Op::Const && number.rank == 0 && has_type && !is_integer_divisor(reader, k);
}

class Lister {
 public:
  explicit Lister(const Graph& graph) : graph_(graph), rewriter_(graph) {}

  std::optional<NumberLists> run() {
    if (!find_places()) return std::nullopt;
    for (const NumberList& list : lists_)
      inputs_.push_back(
          rewriter_.to().input(list.dtype, {{static_cast<int64_t>(list.bits.size())}, {1}}, {list.name, false}));
    for (NodeId id = 0; id < graph_.nodes.size(); ++id) copy(id);
    return NumberLists{rewriter_.finish(), std::move(lists_)};
  }

 private:
  using Use = std::pair<NodeId, size_t>;  // an operand of a node
  struct Place {
    size_t list;
    int64_t element;
  };

  bool find_places() {
    std::map<std::tuple<uint32_t, Op, DType, size_t>, std::vector<Use>> groups;
    for (NodeId id = 0; id < graph_.nodes.size(); ++id) {
      const Node& node = graph_[id];
      if (!is_pointwise(node.op)) continue;
      for (size_t k = 0; k < static_cast<size_t>(info(node.op).arity); ++k)
        if (const Node& in = graph_[node.in[k]]; may_be_listed(in, node, k))
          groups[{node.line, node.op, in.dtype, is_commutative(node.op) ? 0 : k}].emplace_back(id, k);
    }
    for (const auto& [what, uses] : groups) {
      std::unordered_set<uint64_t> values;
      for (const Use& use : uses) values.insert(bits(use));
      if (values.size() < kFewest) continue;
      NumberList list{std::get<DType>(what), {}, "numbers of " + graph_.lines[std::get<0>(what)]};
      for (const Use& use : uses) {
        places_[use] = {lists_.size(), static_cast<int64_t>(list.bits.size())};
        list.bits.push_back(bits(use));
      }
      lists_.push_back(std::move(list));
    }
    return !lists_.empty();
  }

  uint64_t bits(const Use& use) const { return graph_.constants[graph_[graph_[use.first].in[use.second]].attr]; }

  /// The node, which reads elements of lists in place of its numbers.
  void copy(NodeId id) {
    std::vector<std::pair<NodeId, NodeId>> numbers;  // and what they are to others
    for (auto at = places_.lower_bound({id, 0}); at != places_.end() && at->first.first == id; ++at) {
      const NodeId number = graph_[id].in[at->first.second];
      numbers.emplace_back(number, rewriter_[number]);
      IndexMap element{{Affine{at->second.element, {}}}};
      rewriter_.to().set_line(graph_[id].line);
      rewriter_.set(number, rewriter_.to().view(inputs_[at->second.list], std::move(element), {}));
    }
    rewriter_.copy(id);
    for (const auto& [number, now] : numbers) rewriter_.set(number, now);
  }

  const Graph& graph_;
  Rewriter rewriter_;
  std::vector<NumberList> lists_;
  std::vector<NodeId> inputs_;  // per list
  std::map<Use, Place> places_;
};

}  // namespace

std::optional<NumberLists> list_numbers(const Graph& graph) {
  if (!graph.traced.empty()) return std::nullopt;
  const Symbols::Scope symbols(graph.symbols.get());
  return Lister(graph).run();
}

}  // namespace fastjit::pass
