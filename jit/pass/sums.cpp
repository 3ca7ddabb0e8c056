// A tensor whose slices along a dim are used each by itself has for its gradient a sum of tensors that hold one slice
// each among zeros (the query, key and value of an attention, the steps of a sequence). They become one that is put
// together of all slices, where each is written once.
#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "pass/pass.h"
#include "pass/rewrite.h"
#include "pass/slice.h"
#include "support/work.h"

namespace fastjit::pass {

using namespace ir;

namespace {

/// Zeros, without a sign.
bool is_zeros(const Graph& graph, NodeId id) {
  while (is_view(graph[id].op)) id = graph[id].in[0];
  return graph[id].op == Op::Const && graph.constants[graph[id].attr] == 0;
}

bool is_sum(const Node& node) { return node.op == Op::Add && is_float(node.dtype); }

constexpr uint32_t kNone = 0xFFFFFFFFu;

/// What is added up in one slice: a value, or two such sums.
struct Term {
  NodeId value = kNoNode;
  uint32_t left = kNone, right = kNone;
  uint32_t count = 1;  // values
};

/// A sum of tensors that are zeros but for a slice, and at most one other tensor.
struct SliceSum {
  uint8_t dim = 0;
  NodeId whole = kNoNode;
  uint32_t count = 0;                 // slices
  std::map<int64_t, uint32_t> terms;  // by index along the dim
};

/// Finds the largest such sums. Of each only the least part is copied: O(n log n).
class Finder {
 public:
  explicit Finder(const Graph& graph) : graph_(graph), uses_(graph.nodes.size(), 0), sums_(graph.nodes.size()) {
    for (NodeId id = 0; id < graph.nodes.size(); ++id)
      for (const NodeId in : graph.operands(id))
        if (in != kNoNode) ++uses_[in];
    for (const NodeId id : graph.outputs) ++uses_[id];
    for (const Store& store : graph.stores) ++uses_[store.value];
    for (NodeId id = 0; id < graph.nodes.size(); ++id) {
      support::count_work();
      if (graph[id].op == Op::Update) sums_[id] = slice_at(id);
      if (is_sum(graph[id])) sums_[id] = sum_at(id);
    }
  }

  /// The sum at a node that is none of a larger one; null: there is none, or nothing is gained.
  const SliceSum* at(NodeId id) const {
    return sums_[id] && is_sum(graph_[id]) && sums_[id]->count > 1 ? sums_[id].get() : nullptr;
  }
  bool any() const {
    for (NodeId id = 0; id < graph_.nodes.size(); ++id)
      if (at(id)) return true;
    return false;
  }
  const Term& term(uint32_t which) const { return terms_[which]; }

 private:
  using Owned = std::unique_ptr<SliceSum>;

  Owned slice_at(NodeId id) {
    const Node& part = graph_[id];
    const auto slice = is_zeros(graph_, part.in[0]) ? written_slice(graph_, part) : std::nullopt;
    if (!slice || graph_.sizes(id)[slice->dim].is_symbolic()) return nullptr;
    auto made = std::make_unique<SliceSum>(SliceSum{slice->dim, kNoNode, 1, {}});
    made->terms[slice->index] = add({part.in[1]});
    return made;
  }

  Owned sum_at(NodeId id) {
    const NodeId left = graph_[id].in[0], right = graph_[id].in[1];
    const auto is_part = [&](NodeId in) { return sums_[in] && uses_[in] == 1; };
    const auto is_alike = [&](NodeId in) { return identical(graph_.sizes(in), graph_.sizes(id)); };
    if (!is_alike(left) || !is_alike(right) || (!is_part(left) && !is_part(right))) return nullptr;
    if (is_part(left) && is_part(right)) return both(sums_[left], sums_[right]);
    return with_whole(sums_[is_part(left) ? left : right], is_part(left) ? right : left);
  }

  /// The order of what is added counts from three values on.
  bool may_have_whole(const SliceSum& sum) const { return sum.count == sum.terms.size(); }

  Owned with_whole(Owned& sum, NodeId whole) {
    if (sum->whole != kNoNode || !may_have_whole(*sum)) return nullptr;
    sum->whole = whole;
    return std::move(sum);
  }

  Owned both(Owned& left, Owned& right) {
    if (left->dim != right->dim || (left->whole != kNoNode && right->whole != kNoNode)) return nullptr;
    Owned &most = left->terms.size() < right->terms.size() ? right : left, &least = &most == &left ? right : left;
    const bool has_whole = most->whole != kNoNode || least->whole != kNoNode;
    const auto is_there = [&](const auto& entry) { return most->terms.contains(entry.first); };
    if (has_whole && std::ranges::any_of(least->terms, is_there)) return nullptr;
    if (has_whole && (!may_have_whole(*most) || !may_have_whole(*least))) return nullptr;
    for (const auto& [index, term] : least->terms) {
      support::count_work();
      const auto [found, fresh] = most->terms.try_emplace(index, term);
      if (!fresh) found->second = add({kNoNode, found->second, term, terms_[found->second].count + terms_[term].count});
    }
    if (least->whole != kNoNode) most->whole = least->whole;
    most->count += least->count;
    least.reset();
    return std::move(most);
  }

  uint32_t add(Term term) {
    terms_.push_back(term);
    return static_cast<uint32_t>(terms_.size() - 1);
  }

  const Graph& graph_;
  std::vector<uint32_t> uses_;
  std::vector<Owned> sums_;  // per node; null: it is none, or a part of one
  std::vector<Term> terms_;
};

class Builder {
 public:
  Builder(Rewriter& rewriter, const Finder& finder) : rewriter_(rewriter), finder_(finder) {}

  NodeId put_together(NodeId id, const SliceSum& sum) {
    const Graph& from = rewriter_.from();
    to().set_line(from[id].line);
    sizes_.assign(from.sizes(id).begin(), from.sizes(id).end());
    zero_ = to().constant(from[id].dtype, 0);
    const int64_t length = sizes_[sum.dim].hint();
    std::vector<NodeId> slices;
    int64_t at = 0;
    for (const auto& [index, term] : sum.terms) {
      if (at < index) slices.push_back(zeros(sum.dim, index - at));
      slices.push_back(slice(sum, term));
      at = index + 1;
    }
    if (at < length) slices.push_back(zeros(sum.dim, length - at));
    const NodeId made = to().cat(std::move(slices), sum.dim);
    const NodeId all = sum.whole == kNoNode ? made : to().pointwise(Op::Add, {rewriter_[sum.whole], made});
    return to().with_strides(all, from.layout(id).strides);
  }

 private:
  Graph& to() { return rewriter_.to(); }

  NodeId zeros(uint8_t dim, int64_t length) {
    std::vector<Dim> sizes = sizes_;
    sizes[dim] = length;
    return to().expand(zero_, std::move(sizes));
  }

  /// With the zeros that the others have there: -0 and a zero are 0.
  NodeId slice(const SliceSum& sum, uint32_t term) {
    NodeId value = sum_of(term);
    if (finder_.term(term).count < sum.count) value = to().pointwise(Op::Add, {value, zero_});
    std::vector<Dim> sizes = sizes_;
    sizes[sum.dim] = 1;
    return to().reshape(value, std::move(sizes));
  }

  /// Not by recursion: a long sum is as deep.
  NodeId sum_of(uint32_t root) {
    std::vector<std::pair<uint32_t, bool>> todo{{root, false}};
    std::vector<NodeId> made;
    while (!todo.empty()) {
      const auto [which, are_there] = todo.back();
      todo.pop_back();
      const Term& term = finder_.term(which);
      if (term.left == kNone) {
        made.push_back(rewriter_[term.value]);
      } else if (are_there) {
        const NodeId right = made.back();
        made.pop_back();
        made.back() = to().pointwise(Op::Add, {made.back(), right});
      } else {
        todo.insert(todo.end(), {{which, true}, {term.right, false}, {term.left, false}});
      }
    }
    return made.back();
  }

  Rewriter& rewriter_;
  const Finder& finder_;
  std::vector<Dim> sizes_;  // of the sum
  NodeId zero_ = kNoNode;
};

}  // namespace

Changed sums(const Graph& graph, const PassContext&) {
  const auto is_slice = [&](NodeId id) { return graph[id].op == Op::Update && is_zeros(graph, graph[id].in[0]); };
  const auto has_slice = [&](const Node& node) {
    return is_sum(node) && (is_slice(node.in[0]) || is_slice(node.in[1]));
  };
  if (std::ranges::none_of(graph.nodes, has_slice)) return {};
  const Finder finder(graph);
  if (!finder.any()) return {};
  Rewriter rewriter(graph);
  Builder builder(rewriter, finder);
  for (NodeId id = 0; id < graph.nodes.size(); ++id) {
    if (const SliceSum* sum = finder.at(id))
      rewriter.set(id, builder.put_together(id, *sum));
    else
      rewriter.copy(id);
  }
  return rewriter.finish();
}

}  // namespace fastjit::pass
