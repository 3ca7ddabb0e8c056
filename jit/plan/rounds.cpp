#include "plan/rounds.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <string>

#include "plan/work.h"
#include "support/hash_index.h"
#include "support/mix.h"

namespace fastjit::plan {

using ir::NodeId;
using ir::Op;

namespace {

using Of = Source::Of;

/// There before any loop that could read it.
bool is_leaf(Op op) { return op == Op::Input || op == Op::Scalar || op == Op::Const || op == Op::Iota; }

bool cannot_repeat(const ir::Graph& graph, const ir::Node& node) {
  if (node.op != Op::Extern) return node.op == Op::Loop || node.op == Op::Final;
  const ir::ExternAttr& call = graph.externs[node.attr];
  const bool may_repeat = call.kind == ir::ExternKind::Op || call.kind == ir::ExternKind::Guard;
  return !may_repeat || !call.written.empty() || std::ranges::find(call.operands, ir::kNoNode) != call.operands.end();
}

/// Equal work: all but operands and where a map begins. `maps`: the first of the graph's that each is like but for
/// that.
bool is_alike(const ir::Graph& graph, const ir::Node& a, const ir::Node& b, const std::vector<uint32_t>& maps) {
  if (a.op != b.op || a.dtype != b.dtype || a.layout != b.layout || cannot_repeat(graph, a)) return false;
  if (a.op == Op::View || a.op == Op::Update) return maps[a.attr] == maps[b.attr];
  if (a.op == Op::Cat) {
    const ir::ListAttr &x = graph.lists[a.attr], &y = graph.lists[b.attr];
    return x.dim == y.dim && x.operands.size() == y.operands.size();
  }
  if (a.op == Op::Contract) {
    const ir::ContractAttr &x = graph.contracts[a.attr], &y = graph.contracts[b.attr];
    return x.kind == y.kind;
  }
  if (a.op == Op::Extern) {
    const ir::ExternAttr &x = graph.externs[a.attr], &y = graph.externs[b.attr];
    return x.kind == y.kind && x.name == y.name && x.outputs == y.outputs && x.operands.size() == y.operands.size();
  }
  return a.op == Op::Input || a.attr == b.attr;
}

uint64_t hash_of_terms(const ir::IndexMap& map) {
  using support::mix;
  uint64_t hash = 0;
  for (const ir::Affine& row : map.dims) {
    hash = mix(hash, row.terms.size());
    for (const auto& [dim, coefficient] : row.terms)
      hash = mix(hash, mix(dim, static_cast<uint64_t>(coefficient.hint())));
  }
  return hash;
}

/// Per map of the graph the first that is like it but for where they begin.
std::vector<uint32_t> firsts_alike(const std::vector<ir::IndexMap>& maps) {
  support::HashIndex known;
  std::vector<uint32_t> firsts;
  firsts.reserve(maps.size());
  for (uint32_t i = 0; i < maps.size(); ++i) {
    const uint64_t hash = hash_of_terms(maps[i]);
    const uint32_t found = known.find(
        hash, [&](uint32_t at) { return std::ranges::equal(maps[at].dims, maps[i].dims, &ir::Affine::has_terms_of); });
    firsts.push_back(found == support::HashIndex::kNone ? i : found);
    if (found == support::HashIndex::kNone) known.add(hash, i);
  }
  return firsts;
}

/// `maps`: as `is_alike` has them.
uint64_t hash_of(const ir::Graph& graph, const ir::Node& node, const std::vector<uint32_t>& maps) {
  using support::mix;
  uint64_t hash = mix(mix(static_cast<uint64_t>(node.op), static_cast<uint64_t>(node.dtype)), node.layout);
  if (node.op == Op::View || node.op == Op::Update) return mix(hash, maps[node.attr]);
  if (node.op == Op::Cat) return mix(hash, graph.lists[node.attr].operands.size());
  if (node.op == Op::Contract) return mix(hash, static_cast<uint64_t>(graph.contracts[node.attr].kind));
  if (node.op == Op::Extern) return mix(hash, std::hash<std::string>{}(graph.externs[node.attr].name));
  return node.op == Op::Input ? hash : mix(hash, node.attr);
}

/// Finds where the operands of alike rounds come from.
class Comparer {
 public:
  Comparer(const ir::Graph& graph, const Sequence& sequence, Rounds& rounds)
      : graph_(graph), sequence_(sequence), rounds_(rounds) {}

  /// The first round that is not like the second; `trip` if all are.
  int64_t run() {
    if (!find_sources()) return 1;
    const uint32_t period = rounds_.period;
    int64_t same = rounds_.trip;
    for (uint32_t at = 0; at < period; ++at) same = first_other(at, same);
    if (same <= 2) return same;
    find_firsts();
    for (uint32_t at = 0; at < period; ++at)
      if (!take_first(at)) return 0;
    return same;
  }

 private:
  NodeId node(int64_t round, uint32_t at) const { return rounds_.node(sequence_, round, at); }
  uint32_t place(NodeId id) const { return rounds_.place(sequence_, id); }

  /// Those of the second round's operands.
  bool find_sources() {
    rounds_.sources.clear();
    rounds_.firsts.assign(1, 0);
    for (uint32_t at = 0; at < rounds_.period; ++at) {
      for (const NodeId in : ordered(node(1, at))) {
        const std::optional<Source> source = source_of(in);
        if (!source) return false;
        rounds_.sources.push_back(*source);
      }
      rounds_.firsts.push_back(static_cast<uint32_t>(rounds_.sources.size()));
    }
    rounds_.operands.assign(rounds_.sources.size() * static_cast<size_t>(rounds_.trip), ir::kNoNode);
    return true;
  }

  /// Operands of commutative nodes stand as their numbers happen to: here the latest of the rounds comes first.
  std::span<const NodeId> ordered(NodeId id) {
    const auto operands = graph_.operands(id);
    if (!ir::is_commutative(graph_[id].op)) return operands;
    const uint32_t a = place(operands[0]), b = place(operands[1]);
    const bool swap =
        (a == Sequence::kNone && b != Sequence::kNone) || (a != Sequence::kNone && b != Sequence::kNone && a < b);
    return swap ? swapped(operands) : operands;
  }

  std::span<const NodeId> swapped(std::span<const NodeId> two) {
    swapped_ = {two[1], two[0]};
    return swapped_;
  }

  NodeId& operand(int64_t round, uint32_t at, size_t k) {
    return rounds_.operands[(rounds_.firsts[at] + k) * static_cast<size_t>(rounds_.trip) + static_cast<size_t>(round)];
  }

  /// Of an operand of the second round.
  std::optional<Source> source_of(NodeId id) const {
    const uint32_t at = place(id);
    if (at == Sequence::kNone) return Source{Of::Outside, 0, ir::kNoNode};
    if (at >= 2 * rounds_.period) return std::nullopt;
    const bool here = at >= rounds_.period;
    return Source{here ? Of::Round : Of::Before, at % rounds_.period, ir::kNoNode};
  }

  bool is_from(NodeId id, const Source& source, int64_t round) const {
    const uint32_t at = place(id);
    if (source.of == Of::Outside) return at == Sequence::kNone;
    return at == (source.of == Of::Round ? round : round - 1) * rounds_.period + source.at;
  }

  /// The first round before `limit` whose node is not like the second's; `limit` if all are.
  int64_t first_other(uint32_t at, int64_t limit) {
    const auto sources = rounds_.sources_of(at);
    work(static_cast<uint64_t>(limit));
    for (int64_t round = 1; round < limit; ++round) {
      const auto fits = [&](NodeId id, size_t k) {
        return is_from(id, sources[k], round) && (round == 1 || looks_alike(id, sources[k], at, k));
      };
      if (!take(round, at, fits)) return round;
    }
    return limit;
  }

  /// Notes the operands of a node in the order in which they fit.
  template <class Fits>
  bool take(int64_t round, uint32_t at, Fits fits) {
    const NodeId id = node(round, at);
    auto operands = ordered(id);
    if (operands.size() != rounds_.sources_of(at).size()) return false;
    const auto all_fit = [&] {
      for (size_t k = 0; k < operands.size(); ++k)
        if (!fits(operands[k], k)) return false;
      return true;
    };
    const bool may_swap = ir::is_commutative(graph_[id].op);
    if (round == 0 && may_swap && is_swapped_first(at, operands)) operands = swapped(operands);
    if (!all_fit()) {
      if (!may_swap) return false;
      operands = swapped(operands);
      if (!all_fit()) return false;
    }
    for (size_t k = 0; k < operands.size(); ++k) operand(round, at, k) = operands[k];
    return true;
  }

  /// What stands outside is of one kind in all rounds.
  bool looks_alike(NodeId id, const Source& source, uint32_t at, size_t k) {
    return source.of != Of::Outside || is_alike_outside(graph_, id, operand(1, at, k));
  }

  static bool is_alike_outside(const ir::Graph& graph, NodeId a, NodeId b) {
    return a == b || (graph[a].dtype == graph[b].dtype && graph[a].layout == graph[b].layout &&
                      ir::is_view(graph[a].op) == ir::is_view(graph[b].op));
  }

  // What a value of the round before is in the first round stands outside, as other operands do: it is what most of its
  // readers there have.
  void find_firsts() {
    std::map<uint32_t, std::map<NodeId, int>> counts;
    for (uint32_t at = 0; at < rounds_.period; ++at) {
      const auto sources = rounds_.sources_of(at);
      const auto operands = graph_.operands(node(0, at));
      const bool may_swap = ir::is_commutative(graph_[node(0, at)].op);
      const bool is_either = may_swap && sources[0].of == Of::Before && sources[1].of == Of::Before;
      for (size_t k = 0; k < sources.size() && k < operands.size(); ++k) {
        if (sources[k].of != Of::Before || (is_either && operands[0] != operands[1])) continue;
        ++counts[sources[k].at][operands[k]];
        if (may_swap && operands[0] != operands[1]) ++counts[sources[k].at][operands[1 - k]];
      }
    }
    for (const auto& [at, of] : counts)
      firsts_[at] = std::ranges::max_element(of, {}, [](const auto& counted) { return counted.second; })->first;
  }

  // Whether the operands of a commutative node of the first round stand the other way round. Either order may fit where
  // it is handed what others find outside: they tell which is which.
  bool is_swapped_first(uint32_t at, std::span<const NodeId> operands) {
    const auto sources = rounds_.sources_of(at);
    if (is_shared(at, 0, operands[1]) || is_shared(at, 1, operands[0])) return true;
    if (is_shared(at, 0, operands[0]) || is_shared(at, 1, operands[1])) return false;
    if (sources[0].of == Of::Before && sources[1].of == Of::Before) return are_swapped(sources, operands);
    for (size_t k = 0; k < 2; ++k)
      if (sources[k].of == Of::Before && sources[1 - k].of == Of::Outside)
        return operands[k] != firsts_.at(sources[k].at) && operands[1 - k] == firsts_.at(sources[k].at);
    return false;
  }

  // The same of two values of the round before, either of which may be either operand, by what other readers of the two
  // have. Where there are none, this node says what the others have.
  bool are_swapped(std::span<const Source> sources, std::span<const NodeId> operands) {
    const auto first = firsts_.find(sources[0].at), second = firsts_.find(sources[1].at);
    const bool swap = first != firsts_.end() ? operands[0] != first->second && operands[1] == first->second
                                             : second != firsts_.end() && operands[0] == second->second;
    firsts_.try_emplace(sources[0].at, operands[swap ? 1 : 0]);
    firsts_.try_emplace(sources[1].at, operands[swap ? 0 : 1]);
    return swap;
  }

  bool take_first(uint32_t at) {
    const auto sources = rounds_.sources_of(at);
    const bool is_taken = take(0, at, [&](NodeId id, size_t k) {
      const Source& source = sources[k];
      if (source.of != Of::Before) return is_from(id, source, 0) && looks_alike(id, source, at, k);
      // What comes from the round before is like that to begin with.
      return place(id) == Sequence::kNone && is_like_before(id, node(1, source.at));
    });
    for (size_t k = 0; is_taken && k < sources.size(); ++k)
      if (sources[k].of == Of::Before) rounds_.sources[rounds_.firsts[at] + k].first = operand(0, at, k);
    return is_taken;
  }

  /// Whether the second and the third round have `id`, from outside, as this operand. Of x[t] + x[t + 1] the second has
  /// one of the first.
  bool is_shared(uint32_t at, size_t k, NodeId id) {
    return rounds_.sources_of(at)[k].of == Of::Outside && operand(1, at, k) == id && operand(2, at, k) == id;
  }

  bool is_like_before(NodeId first, NodeId later) const {
    return graph_[first].dtype == graph_[later].dtype && ir::identical(graph_.sizes(first), graph_.sizes(later));
  }

  const ir::Graph& graph_;
  const Sequence& sequence_;
  Rounds& rounds_;
  std::map<uint32_t, NodeId> firsts_;  // node of a round -> what its readers in the first round have for it
  std::array<NodeId, 2> swapped_{};
};

}  // namespace

bool is_matrix_product(const ir::ContractAttr& attr) {
  const bool is_biased = attr.kind == ir::Product::Addmm || attr.kind == ir::Product::Baddbmm;
  return attr.kind != ir::Product::Convolution && (!is_biased || attr.unscaled);
}

bool is_one_node(std::span<const NodeId> per_round) {
  return std::ranges::all_of(per_round, [&](NodeId id) { return id == per_round[0]; });
}

bool hands_on(const Rounds& rounds) {
  return std::ranges::any_of(rounds.sources, [](const Source& source) { return source.of == Of::Before; });
}

Seen seen_through(const ir::Graph& graph, const Sequence& sequence, NodeId id) {
  Seen seen{{}, base_of(graph, sequence, id)};
  for (; id != seen.base; id = graph[id].in[0]) seen.views.push_back(id);
  return seen;
}

NodeId base_of(const ir::Graph& graph, const Sequence& sequence, NodeId id) {
  while (ir::is_view(graph[id].op) && !sequence.looped[id]) id = graph[id].in[0];
  return id;
}

std::optional<WalkingMap> walking_map(std::span<const ir::IndexMap* const> maps, ir::Dim count) {
  WalkingMap made{*maps[0], {}};
  for (size_t row = 0; row < made.first.dims.size(); ++row) {
    work(maps.size());
    const auto offset = [&](size_t round) { return maps[round]->dims[row].offset; };
    const ir::Dim step = maps.size() > 1 ? offset(1) - offset(0) : 0;
    for (size_t round = 0; round < maps.size(); ++round) {
      const bool is_alike = maps[round]->dims[row].has_terms_of(made.first.dims[row]);
      // Of a traced loop the last may be so as an expression.
      const bool is_end = round + 1 == maps.size() && ir::identical(offset(round), offset(0) + (count - 1) * step);
      if (!is_alike || (!is_end && !ir::identical(offset(round), offset(0) + round * step))) return std::nullopt;
    }
    made.steps.push_back(step);
  }
  return made;
}

Sequence sequence_of(const ir::Graph& graph) {
  const size_t n = graph.nodes.size();
  Sequence made{{}, std::vector<uint32_t>(n, Sequence::kNone), ir::live_nodes(graph), std::vector<bool>(n, false)};
  std::vector<bool> beside(n, false);
  for (NodeId id = 0; id < n; ++id) {
    if (!made.live[id]) continue;
    beside[id] = is_leaf(graph[id].op) || (ir::is_view(graph[id].op) && beside[graph[id].in[0]]);
    if (beside[id]) continue;
    made.places[id] = static_cast<uint32_t>(made.nodes.size());
    made.nodes.push_back(id);
  }
  return made;
}

std::vector<uint32_t> tokens_of(const ir::Graph& graph, const Sequence& sequence, const std::vector<bool>& alone) {
  support::HashIndex known;
  std::vector<uint32_t> tokens;
  tokens.reserve(sequence.nodes.size());
  const std::vector<uint32_t> maps = firsts_alike(graph.maps);
  for (uint32_t i = 0; i < sequence.nodes.size(); ++i) {
    const ir::Node& node = graph[sequence.nodes[i]];
    if (alone[sequence.nodes[i]]) {
      tokens.push_back(i);
      continue;
    }
    const uint64_t hash = hash_of(graph, node, maps);
    const uint32_t found =
        known.find(hash, [&](uint32_t at) { return is_alike(graph, graph[sequence.nodes[at]], node, maps); });
    tokens.push_back(found == support::HashIndex::kNone ? i : found);
    if (found == support::HashIndex::kNone) known.add(hash, i);
  }
  return tokens;
}

std::optional<Rounds> alike_rounds(const ir::Graph& graph, const Sequence& sequence, Rounds rounds) {
  constexpr int kFewestRounds = 3, kTries = 4;
  for (int tries = 0; tries < kTries && rounds.trip >= kFewestRounds; ++tries) {
    const int64_t same = Comparer(graph, sequence, rounds).run();
    if (same == rounds.trip) return rounds;
    if (same >= kFewestRounds) {
      rounds.count -= rounds.trip - same;
      rounds.trip = same;
      continue;
    }
    const auto skipped = static_cast<uint32_t>(std::max<int64_t>(same, 1));
    rounds.begin += skipped * rounds.period;
    rounds.trip -= skipped;
    rounds.count -= skipped;
  }
  return std::nullopt;
}

Rounds part_of(const Sequence& sequence, const Rounds& rounds, int64_t first, int64_t trip) {
  Rounds part{rounds.begin + static_cast<uint32_t>(first) * rounds.period,
              rounds.period,
              trip,
              trip,
              rounds.sources,
              rounds.firsts,
              {}};
  for (Source& source : part.sources)
    if (source.of == Source::Of::Before && first > 0) source.first = rounds.node(sequence, first - 1, source.at);
  part.operands.reserve(rounds.sources.size() * static_cast<size_t>(trip));
  for (size_t of = 0; of < rounds.sources.size(); ++of) {
    const auto begin = rounds.operands.begin() + static_cast<std::ptrdiff_t>(of) * rounds.trip + first;
    part.operands.insert(part.operands.end(), begin, begin + trip);
  }
  return part;
}

uint32_t best_phase(const ir::Graph& graph, const Sequence& sequence, uint32_t begin, uint32_t end, uint32_t period) {
  // Values of a round in the middle, and how far the last of their readers in the next rounds is.
  const uint32_t middle = begin + (end - begin) / period / 2 * period;
  std::vector<uint32_t> last(period, 0);
  for (uint32_t i = middle; i < std::min(end, middle + 3 * period); ++i)
    for (const NodeId in : graph.operands(sequence.nodes[i])) {
      const uint32_t place = sequence.places[in];
      if (place == Sequence::kNone || place < middle || place >= middle + period) continue;
      last[place - middle] = std::max(last[place - middle], i - place);
    }
  // Bytes alive between the node before and the one here, less those alive everywhere.
  std::vector<int64_t> more(2 * period + 1, 0), crossing(period, 0);
  for (uint32_t at = 0; at < period; ++at) {
    if (last[at] == 0 || last[at] >= period) continue;
    const NodeId id = sequence.nodes[middle + at];
    const int64_t bytes = graph.layout(id).numel().hint() * ir::size_of(graph[id].dtype);
    more[at + 1] += bytes;
    more[at + 1 + last[at]] -= bytes;
  }
  int64_t alive = 0;
  for (uint32_t at = 0; at < 2 * period; ++at) crossing[at % period] += alive += more[at];
  // Of equal ones not before a node that goes with the kernel which makes its operand.
  for (uint32_t at = 0; at < period; ++at) {
    const Op op = graph[sequence.nodes[middle + at]].op;
    crossing[at] = 2 * crossing[at] + (ir::is_pointwise(op) || op == Op::Update);
  }
  return static_cast<uint32_t>(std::ranges::min_element(crossing) - crossing.begin());
}

}  // namespace fastjit::plan
