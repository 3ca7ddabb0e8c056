#include "pass/split.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "pass/follow.h"
#include "pass/recurrences.h"
#include "pass/rewrite.h"
#include "pass/stacks.h"
#include "support/error.h"

namespace fastjit::pass {

using namespace ir;

namespace {

constexpr const char* kAdvice = "call it under torch.no_grad() where no gradient is needed";

// Behind what makes a tensor of its own of it.
NodeId value_of(const Graph& graph, NodeId id) {
  while (graph[id].op == Op::View && identical(graph.sizes(id), graph.sizes(graph[id].in[0])) &&
         graph.maps[graph[id].attr] == identity_map(graph[id].rank))
    id = graph[id].in[0];
  return id;
}

ExternKind kind_of(const Graph& graph, NodeId id) { return graph.externs[graph[id].attr].kind; }

/// Decides where each node is made.
class Splitter {
 public:
  Splitter(const Graph& graph, const SplitAt& at)
      : graph_(graph),
        at_(at),
        writes_(graph),
        late_(followers(graph, at.late_inputs)),
        first_(graph.nodes.size(), false),
        second_(graph.nodes.size(), false),
        recomputed_(graph.nodes.size(), false) {}

  Halves run() {
    find_writes();
    find_first();
    find_second();
    if (find_recomputed()) find_second();
    refuse_writes();
    hand_over_parts();
    return {make_first(), first_inputs_, make_second(), std::move(handed_)};
  }

 private:
  // What the results need, and all that has an effect and was there before the way back began.
  void find_first() {
    NodeId begin = 0;
    while (begin < graph_.nodes.size() && !late_[begin]) ++begin;
    for (size_t i = 0; i < graph_.outputs.size(); ++i)
      if (!at_.late_outputs[i]) first_[graph_.outputs[i]] = true;
    for (const Store& store : graph_.stores) first_[store.value] = true;
    for (NodeId id = 0; id < graph_.nodes.size(); ++id) first_[id] = first_[id] || (!late_[id] && lists_rounds(id));
    for (auto id = static_cast<NodeId>(graph_.nodes.size()); id-- > 0;) {
      const bool is_before = id < begin && !graph_[id].again;
      const bool is_call = graph_[id].op == Op::Extern && (is_before || kind_of(graph_, id) == ExternKind::Guard);
      first_[id] = first_[id] || is_call || (graph_[id].op == Op::Input && !at_.late_inputs[graph_[id].attr]);
      if (!first_[id]) continue;
      if (late_[id] && graph_[id].op == Op::Extern && kind_of(graph_, id) == ExternKind::Guard)
        throw support::Unable("autograd reads a value that follows from a gradient", kAdvice);
      if (late_[id]) throw support::Unable("a result or a write depends on its own gradient", kAdvice);
      for (const NodeId in : graph_.operands(id))
        if (in != kNoNode) first_[in] = true;
    }
  }

  // What all rounds of a loop have made, however many there are, is handed over as one.
  bool lists_rounds(NodeId id) const {
    const auto is_of_round = [&](NodeId in) {
      while (!is_in_round(in) && is_view(graph_[in].op)) in = graph_[in].in[0];
      return is_in_round(in);
    };
    return graph_[id].op == Op::Cat && !graph_.traced.empty() && std::ranges::any_of(graph_.operands(id), is_of_round);
  }
  // Each round of a loop is to do what the others do.
  bool is_in_round(NodeId id) const { return graph_.round_of(id).loop != TracedRound::kNone; }

  // What memory of the program's own holds after a call has written it is handed over as it lies.
  bool is_written_to(NodeId id) const {
    const NodeId memory = writes_.memory(id);
    if (memory == kNoNode || graph_[memory].op == Op::Input || is_shown_[memory]) return false;
    const auto write = first_writes_.find(memory);
    return write != first_writes_.end() && write->second < id && graph_[id].op == Op::Result;
  }

  // Views and numbers cost nothing where they are used.
  bool is_free(NodeId id) const {
    const Op op = graph_[id].op;
    if (recomputed_[id]) return true;
    if (is_written_to(id)) return false;
    if (op == Op::Result) return kind_of(graph_, graph_[id].in[0]) == ExternKind::View;
    if (op == Op::Extern) return kind_of(graph_, id) == ExternKind::View;
    return op == Op::Const || op == Op::Iota || op == Op::Scalar || is_view(op);
  }

  // Decides which of its values the second half is handed, and which it makes.
  void find_second() {
    second_.assign(graph_.nodes.size(), false);
    for (size_t i = 0; i < graph_.outputs.size(); ++i)
      if (at_.late_outputs[i]) second_[graph_.outputs[i]] = true;
    handed_over_.assign(graph_.nodes.size(), false);
    for (auto id = static_cast<NodeId>(graph_.nodes.size()); id-- > 0;) {
      if (graph_[id].op == Op::Extern && late_[id]) second_[id] = true;
      if (!second_[id]) continue;
      if (graph_[id].op == Op::Result && first_[graph_[id].in[0]] && !is_free(id))
        first_[id] = true;  // made there anyway
      handed_over_[id] = !late_[id] && first_[id] && !is_free(id);
      if (handed_over_[id]) continue;
      for (const NodeId in : graph_.operands(id))
        if (in != kNoNode) second_[in] = true;
    }
  }

  // The first call of the first half that writes to each memory, and which memory the caller sees.
  void find_writes() {
    is_shown_.assign(graph_.nodes.size(), false);
    for (size_t i = 0; i < graph_.outputs.size(); ++i)
      if (const NodeId memory = writes_.memory(graph_.outputs[i]); memory != kNoNode && !at_.late_outputs[i])
        is_shown_[memory] = true;
    for (NodeId id = 0; id < graph_.nodes.size(); ++id)
      if (!late_[id]) writes_.of(id, [&](NodeId memory) { first_writes_.emplace(memory, id); });
  }

  // What a call writes lies in one memory: in the half that makes it, unless nothing reads there what was written.
  void refuse_writes() const {
    std::unordered_set<NodeId> handed;  // memory
    const auto refuse = [&](NodeId writer) {
      throw support::Unable("the way back needs memory that " + graph_.externs[graph_[writer].attr].name + " writes to",
                            kAdvice);
    };
    for (NodeId id = 0; id < graph_.nodes.size(); ++id) {
      const NodeId memory = writes_.memory(id);
      if (handed_over_[id] && memory != kNoNode) handed.insert(memory);
    }
    for (NodeId id = 0; id < graph_.nodes.size(); ++id) {
      if (!second_[id] || handed_over_[id]) continue;
      for (const NodeId in : graph_.operands(id)) {
        if (in == kNoNode || handed_over_[in]) continue;
        const auto write = first_writes_.find(writes_.memory(in));
        if (write != first_writes_.end() && write->second < id) refuse(write->second);
      }
      writes_.of(id, [&](NodeId memory) {
        if (handed.contains(memory)) refuse(id);
      });
    }
  }

  // Memory is what a long chain of pointwise operations takes between the halves: where it follows from what is handed
  // over anyway, the second half computes it again. In order, since one that is handed over serves the next ones.
  bool find_recomputed() {
    constexpr size_t kLongest = 32;
    std::vector<bool> there = handed_over_;
    std::unordered_set<NodeId> kept, others;  // in tensors of the caller's: they take no memory, or need a copy
    for (size_t i = 0, output = 0; i < graph_.outputs.size(); ++i)
      if (!at_.late_outputs[i])
        (at_.kept_outputs[output++] ? kept : others).insert(value_of(graph_, graph_.outputs[i]));
    const std::vector<bool> given = given_to_calls(), carried = recurrences(graph_, handed_over_);
    bool any = false;
    for (NodeId id = 0; id < graph_.nodes.size(); ++id) {
      if (!handed_over_[id] || !is_pointwise(graph_[id].op) || kept.contains(id) || carried[id]) continue;
      std::vector<NodeId> chain, sources;
      if (!chain_of(id, there, kLongest, chain, sources)) continue;
      if (std::ranges::any_of(chain, [&](NodeId made) { return is_in_round(made); })) continue;
      int64_t bytes = 0;
      for (const NodeId source : sources) bytes += bytes_of(source);
      if (bytes >= bytes_of(id) && (given[id] || !is_as_cheap(id, chain, sources, others))) continue;
      for (const NodeId made : chain) recomputed_[made] = true;
      for (const NodeId source : sources) there[source] = true;
      there[id] = false;
      any = true;
    }
    return any;
  }

  // Where the second half looks at half of a value or less, it is handed those parts.
  void hand_over_parts() {
    std::vector<std::vector<NodeId>> parts(graph_.nodes.size());
    std::vector<bool> stays(graph_.nodes.size(), false);
    for (size_t i = 0, output = 0; i < graph_.outputs.size(); ++i)
      if (at_.late_outputs[i] || at_.kept_outputs[output++]) stays[value_of(graph_, graph_.outputs[i])] = true;
    for (NodeId id = 0; id < graph_.nodes.size(); ++id) {
      if (!second_[id] || handed_over_[id]) continue;
      for (const NodeId in : graph_.operands(id)) {
        if (in == kNoNode || !handed_over_[in]) continue;
        if (graph_[id].op == Op::View && !is_in_round(id))
          parts[in].push_back(id);
        else
          stays[in] = true;
      }
    }
    for (NodeId id = 0; id < graph_.nodes.size(); ++id) {
      int64_t bytes = 0;
      for (const NodeId part : parts[id]) bytes += bytes_of(part);
      if (bytes == 0 || 2 * bytes > bytes_of(id) || stays[id] || stays[value_of(graph_, id)]) continue;
      if (graph_[id].op == Op::Input || writes_.memory(id) != kNoNode) continue;
      handed_over_[id] = second_[id] = false;
      for (const NodeId part : parts[id]) first_[part] = handed_over_[part] = true;
    }
  }

  // Calls of the first half are given it as a tensor.
  std::vector<bool> given_to_calls() const {
    std::vector<bool> given(graph_.nodes.size(), false);
    for (auto id = static_cast<NodeId>(graph_.nodes.size()); id-- > 0;) {
      const Op op = graph_[id].op;
      const bool gives = (first_[id] && (op == Op::Extern || op == Op::Contract)) || (given[id] && is_view(op));
      for (const NodeId in : graph_.operands(id))
        if (gives && in != kNoNode) given[in] = true;
    }
    return given;
  }

  // Whether a few operations make it of as much memory that a call of torch's has written: the first half need not
  // write it as well.
  bool is_as_cheap(NodeId id, const std::vector<NodeId>& chain, const std::vector<NodeId>& sources,
                   const std::unordered_set<NodeId>& shown) const {
    constexpr int64_t kFew = 16, kOperations = 4;  // a part of the bytes that does not matter; of the value's size
    const int64_t bytes = bytes_of(id);
    int64_t written = 0, there = 0, operations = 0;
    for (const NodeId source : sources) {
      const Op op = graph_[source].op;
      const bool is_there = (op == Op::Contract || op == Op::Result) && writes_.memory(source) == kNoNode;
      (is_there && !shown.contains(source) ? there : written) += bytes_of(source);
    }
    for (const NodeId made : chain) {
      const Op op = graph_[made].op;
      if (!is_pointwise(op) || bytes_of(made) * kFew <= bytes) continue;
      if (is_expensive(op)) return false;
      ++operations;
    }
    return there <= bytes && written * kFew <= bytes && operations <= kOperations;
  }

  // The operations that make it of what is there, and of the `sources` that would have to be there too. False: they are
  // too many.
  bool chain_of(NodeId id, const std::vector<bool>& there, size_t longest, std::vector<NodeId>& chain,
                std::vector<NodeId>& sources) const {
    std::vector<NodeId> todo{id};
    std::unordered_set<NodeId> met{id};
    while (!todo.empty()) {
      const NodeId at = todo.back();
      todo.pop_back();
      const bool is_end = at != id && there[at];
      const bool is_made = !is_end && (is_pointwise(graph_[at].op) || is_free(at));
      if (is_made) chain.push_back(at);
      const bool is_kept = graph_[at].op == Op::Input && at_.kept_inputs[graph_[at].attr];
      if (!is_made && !is_end && !is_kept) sources.push_back(at);
      if (chain.size() > longest) return false;
      for (const NodeId in : graph_.operands(at))
        if (is_made && in != kNoNode && met.insert(in).second) todo.push_back(in);
    }
    return true;
  }

  int64_t bytes_of(NodeId id) const { return graph_.layout(id).numel().hint() * size_of(graph_[id].dtype); }

  Graph make_first() {
    Rewriter half(graph_);
    half.to().inputs.clear();
    std::vector<uint32_t> moved(graph_.inputs.size(), kNoNode);
    for (NodeId id = 0; id < graph_.nodes.size(); ++id) {
      if (!first_[id]) continue;
      if (graph_[id].op != Op::Input) {
        half.copy(id);
        continue;
      }
      const uint32_t input = graph_[id].attr;
      moved[input] = static_cast<uint32_t>(first_inputs_.size());
      first_inputs_.push_back(input);
      half.input(id, graph_.inputs[input].name);
    }
    Graph& to = half.to();
    std::map<NodeId, uint32_t> given;  // values that the caller gets in a tensor that may be kept
    for (size_t i = 0; i < graph_.outputs.size(); ++i) {
      if (at_.late_outputs[i]) continue;
      const auto output = static_cast<uint32_t>(to.outputs.size());
      to.outputs.push_back(half.output(graph_.outputs[i]));
      if (at_.kept_outputs[output]) given.emplace(value_of(graph_, graph_.outputs[i]), output);
    }
    given_.insert(to.outputs.begin(), to.outputs.end());
    for (Store store : graph_.stores) {
      store.value = half[store.value];
      store.input = moved[store.input];
      to.stores.push_back(store);
    }
    std::vector<NodeId> extras;
    for (NodeId id = 0; id < graph_.nodes.size(); ++id)
      if (handed_over_[id] && !hand_over_known(half.to(), id, given)) extras.push_back(id);
    hand_over(half, extras);
    return std::move(to);
  }

  // If it is in a tensor of somebody's that the second half can be given.
  bool hand_over_known(const Graph& to, NodeId id, const std::map<NodeId, uint32_t>& given) {
    const auto known = given.find(value_of(graph_, id));
    if (graph_[id].op == Op::Input && at_.kept_inputs[graph_[id].attr])
      handed_.push_back({Handed::From::Input, graph_[id].attr});
    else if (known != given.end() && identical(graph_.layout(known->first).strides, graph_.layout(id).strides) &&
             identical(to.layout(to.outputs[known->second]).strides, graph_.layout(id).strides) && !is_spread(id))
      handed_.push_back({Handed::From::Output, known->second});
    else
      return false;
    handed_nodes_.push_back({{id}, kNoNode});
    return true;
  }

  /// One value, or slices of a stack, of which some are none that are wanted.
  struct HandedNodes {
    std::vector<NodeId> values;
    NodeId whole = kNoNode;  // that stack, where the graph has it
  };

  void hand_over(Rewriter& half, const std::vector<NodeId>& extras) {
    std::set<NodeId> in_stacks;
    for (std::vector<NodeId>& stack : stacks(graph_, extras)) {
      in_stacks.insert(stack.begin(), stack.end());
      const auto held = held_together(graph_, stack);
      if (held && first_[held->stack] && given_.insert(half[held->stack]).second) {
        in_stacks.insert(held->stack);
        hand_over(half.to(), half[held->stack], held->slices, held->stack);
        continue;
      }
      std::vector<NodeId> slices;
      for (const NodeId id : stack) slices.push_back(half[id]);
      hand_over(half.to(), stacked(half.to(), slices), std::move(stack));
    }
    for (const NodeId id : extras) {
      if (in_stacks.contains(id)) continue;
      Graph& to = half.to();
      const NodeId now = half[id];
      const bool is_own = to[now].op != Op::Input && !to.is_number(now) && !is_spread(id) && given_.insert(now).second;
      const ir::Layout& layout = graph_.layout(id);
      hand_over(to, is_own ? now : to.fresh_copy(now, is_spread(id) ? row_major(layout.sizes) : layout.strides), {id});
    }
  }

  // Whether elements of it lie in one place, as those of expand() do. A tensor of its own has them by rows.
  bool is_spread(NodeId id) const {
    const ir::Layout& layout = graph_.layout(id);
    for (size_t d = 0; d < layout.sizes.size(); ++d)
      if (identical(layout.strides[d], 0) && !identical(layout.sizes[d], 1)) return true;
    return false;
  }

  void hand_over(Graph& to, NodeId extra, std::vector<NodeId> nodes, NodeId whole = kNoNode) {
    handed_.push_back({Handed::From::Extra, static_cast<uint32_t>(to.outputs.size())});
    to.outputs.push_back(extra);
    handed_nodes_.push_back({std::move(nodes), whole});
  }

  Graph make_second() {
    Rewriter half(graph_);
    half.to().inputs.clear();
    for (size_t i = 0; i < handed_nodes_.size(); ++i)
      take_over(half, handed_nodes_[i], handed_[i].from == Handed::From::Extra, "saved" + std::to_string(i));
    std::vector<bool> waits = waiting();
    for (NodeId id = 0; id < graph_.nodes.size(); ++id) {
      if (!second_[id] || handed_over_[id] || waits[id]) continue;
      make_waiting(half, id, waits);
      if (graph_[id].op != Op::Input) {
        half.copy(id);
        continue;
      }
      handed_.push_back({Handed::From::Late, graph_[id].attr});
      half.input(id, graph_.inputs[graph_[id].attr].name);
    }
    for (size_t i = 0; i < graph_.outputs.size(); ++i) {
      if (!at_.late_outputs[i]) continue;
      make_waiting(half, graph_.outputs[i], waits);
      half.to().outputs.push_back(half.output(graph_.outputs[i]));
    }
    return std::move(half.to());
  }

  void take_over(Rewriter& half, const HandedNodes& of, bool is_extra, const std::string& name) const {
    const auto& [nodes, whole] = of;
    if (nodes.size() == 1 && whole == kNoNode) {
      const Node& node = graph_[nodes[0]];
      const std::string& called = node.op == Op::Input ? graph_.inputs[node.attr].name : name;
      const std::vector<Dim> sizes(graph_.sizes(nodes[0]).begin(), graph_.sizes(nodes[0]).end());
      if (is_extra && is_spread(nodes[0]))
        half.set(nodes[0], half.to().input(node.dtype, {sizes, row_major(sizes)}, {called}));
      else
        half.input(nodes[0], called);
      return;
    }
    const NodeId first = *std::ranges::find_if(nodes, [](NodeId id) { return id != kNoNode; });
    std::vector<Dim> sizes{static_cast<int64_t>(nodes.size())};
    sizes.insert(sizes.end(), graph_.sizes(first).begin(), graph_.sizes(first).end());
    std::vector<Dim> strides = row_major(sizes);
    const NodeId stack = half.to().input(graph_[first].dtype, {std::move(sizes), std::move(strides)}, {name});
    if (whole != kNoNode) half.set(whole, stack);
    for (size_t i = 0; i < nodes.size(); ++i)
      if (nodes[i] != kNoNode) half.set(nodes[i], slice_of(half.to(), stack, static_cast<int64_t>(i)));
  }

  // Per node: the second half makes it where it is used first. It would take memory from the begin of the way back on,
  // and what is made of it would look less like what others are made of.
  std::vector<bool> waiting() const {
    const auto is_written = [&](NodeId id) { return id != kNoNode && writes_.memory(id) != kNoNode; };
    std::vector<bool> waits(graph_.nodes.size(), false);
    for (NodeId id = 0; id < graph_.nodes.size(); ++id) {
      if (is_written(id) || std::ranges::any_of(graph_.operands(id), is_written)) continue;  // it is read before that
      const Op op = graph_[id].op;
      const NodeId call = op == Op::Result ? graph_[id].in[0] : id;
      const bool is_view_call = graph_[call].op == Op::Extern && kind_of(graph_, call) == ExternKind::View &&
                                graph_.externs[graph_[call].attr].outputs == 1 && call + 1 < graph_.nodes.size() &&
                                graph_[call + 1].op == Op::Result;
      const bool is_anywhere = is_pointwise(op) || (op != Op::Extern && op != Op::Result && is_free(id));
      const bool is_made = second_[id] && !handed_over_[id] && !late_[id];
      waits[id] = is_made && (is_view_call || is_anywhere);
    }
    return waits;
  }

  // What waits and `id` follows from, and `id` itself if it waits.
  void make_waiting(Rewriter& half, NodeId id, std::vector<bool>& waits) const {
    std::vector<NodeId> stack{id};
    while (!stack.empty()) {
      const NodeId at = stack.back();
      const size_t before = stack.size();
      for (const NodeId in : graph_.operands(at))
        if (in != kNoNode && waits[in]) stack.push_back(in);
      if (stack.size() > before) continue;
      stack.pop_back();
      if (waits[at]) half.copy(at);
      waits[at] = false;
    }
  }

  const Graph& graph_;
  const SplitAt& at_;
  const Writes writes_;
  const std::vector<bool> late_;
  std::vector<bool> first_, second_, handed_over_, recomputed_, is_shown_;
  std::unordered_map<NodeId, NodeId> first_writes_;
  std::vector<uint32_t> first_inputs_;
  std::unordered_set<NodeId> given_;       // outputs of the first half: memory that somebody has
  std::vector<HandedNodes> handed_nodes_;  // per input of the second half that is not late
  std::vector<Handed> handed_;
};

// As value_of(), behind copies of torch's too: a tensor that a view of torch's is made of is one.
NodeId value_cut_at(const Graph& graph, NodeId id) {
  for (NodeId next = id; next != kNoNode;) {
    id = value_of(graph, next);
    next = kNoNode;
    if (graph[id].op != Op::Result || graph[graph[id].in[0]].op != Op::Extern) continue;
    const ExternAttr& call = graph.externs[graph[graph[id].in[0]].attr];
    if (call.kind == ExternKind::Op && call.name == "aten::clone" && call.written.empty()) next = call.operands[0];
  }
  return id;
}

}  // namespace

CutAt cut_at(const Graph& graph, const std::vector<uint32_t>& outputs) {
  std::map<NodeId, uint32_t> ends;  // values, and the inputs in their place
  for (const uint32_t output : outputs) ends.emplace(value_cut_at(graph, graph.outputs[output]), 0);
  Rewriter cut(graph);
  Graph& to = cut.to();
  std::unordered_map<NodeId, NodeId> was;
  for (NodeId id = 0; id < graph.nodes.size(); ++id) {
    const NodeId now = cut.copy(id);
    if (!ends.contains(id)) continue;
    was.emplace(id, now);
    ends[id] = static_cast<uint32_t>(to.inputs.size());
    cut.input(id, "total" + std::to_string(was.size() - 1));
  }
  const std::set<uint32_t> cut_off(outputs.begin(), outputs.end());
  for (uint32_t i = 0; i < graph.outputs.size(); ++i) {
    const NodeId old = graph.outputs[i];
    to.outputs.push_back(cut_off.contains(i)
                             ? to.fresh_copy(was.at(value_cut_at(graph, old)), graph.layout(old).strides)
                             : cut.output(old));
  }
  for (Store store : graph.stores) {
    store.value = cut[store.value];
    to.stores.push_back(store);
  }
  CutAt out{std::move(to), {}};
  for (const uint32_t output : outputs) out.inputs.push_back(ends.at(value_cut_at(graph, graph.outputs[output])));
  return out;
}

Halves split(const Graph& graph, const SplitAt& at) { return Splitter(graph, at).run(); }

std::vector<std::vector<uint64_t>> uses_beside(const Graph& graph, const std::vector<uint64_t>& bits) {
  const std::vector<uint64_t> follows = nodes_follow(graph, bits);
  const Writes writes(graph);
  std::vector<std::set<uint64_t>> uses(graph.nodes.size()), held(graph.nodes.size());  // held: by memory
  std::vector<std::vector<uint64_t>> out(bits.size());
  for (auto id = static_cast<NodeId>(graph.nodes.size()); id-- > 0;) {
    if (graph[id].op == Op::Input) out[graph[id].attr].assign(uses[id].begin(), uses[id].end());
    writes.of(id, [&](NodeId memory) { uses[id].insert(held[memory].begin(), held[memory].end()); });
    for (const NodeId in : graph.operands(id)) {
      if (in == kNoNode) continue;
      std::set<uint64_t> by = uses[id];
      if (follows[id]) by = {follows[id]};
      if (const NodeId memory = writes.memory(in); memory != kNoNode) held[memory].insert(by.begin(), by.end());
      if (!follows[in]) uses[in].insert(by.begin(), by.end());
    }
  }
  return out;
}

}  // namespace fastjit::pass
