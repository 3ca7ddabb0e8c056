#include "plan/reroll.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <span>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>

#include "ir/in_round.h"
#include "pass/rewrite.h"
#include "plan/late.h"
#include "plan/loop_maker.h"
#include "plan/loop_step.h"
#include "plan/over_time.h"
#include "plan/repeats.h"
#include "plan/round_steps.h"
#include "plan/stored_over.h"
#include "plan/work.h"

namespace fastjit::plan {

using ir::NodeId;
using ir::Op;

namespace {

// Planning so many nodes takes a millisecond or two: less is not worth what a kernel cannot keep between rounds.
constexpr int64_t kFewestSaved = 192;
// A round of fewer nodes without a product is several of them: what is fused across them stays in registers.
constexpr int64_t kNodesOfARound = 64;
constexpr int64_t kFewestRounds = 3;

class Reroller {
 public:
  Reroller(const ir::Graph& graph, const PlanOptions& options)
      : graph_(graph), options_(options), sequence_(sequence_of(graph)) {}

  std::optional<Rerolled> run() {
    weigh();
    if (graph_.traced.empty() && weights_.back() < kFewestSaved) return std::nullopt;
    find_readers();
    if (!roll_all_traced()) throw std::runtime_error("planner: the rounds of a loop are not alike");
    if (weights_.back() >= kFewestSaved) find_loops();
    if (loops_.empty()) return std::nullopt;
    std::ranges::sort(loops_, {}, [](const MadeLoop& loop) { return loop.rounds.begin; });
    return rebuild();
  }

 private:
  void find_loops() {
    const std::vector<uint32_t> tokens = tokens_of(graph_, sequence_, alone(false));
    std::vector<Repeat> found = repeats(tokens);
    const auto saved = [&](const Repeat& r) { return weight(r.begin + r.period, r.end); };
    std::ranges::stable_sort(found, std::greater<>{}, saved);
    for (const Repeat& repeat : found) {
      if (saved(repeat) < kFewestSaved) break;
      for (const auto& [begin, end] : free_in(repeat)) try_loop(begin, end, repeat.period);
    }
  }
  void weigh();
  /// What planning the nodes from one place to another costs.
  int64_t weight(uint32_t begin, uint32_t end) const { return weights_[end] - weights_[begin]; }
  std::vector<bool> alone(bool with_calls) const;
  void find_readers();
  void list_readers();
  /// The parts of it that are in no loop, from a place to another.
  std::vector<std::pair<uint32_t, uint32_t>> free_in(const Repeat& repeat) const;
  int64_t rounds_together(uint32_t begin, uint32_t period, int64_t trip) const;
  void try_loop(uint32_t begin, uint32_t end, uint32_t period);
  bool make_rounds(uint32_t begin, uint32_t period, int64_t trip, bool inside);
  void make_in_turn(const Rounds& rounds, int64_t most);
  bool take(MadeLoop made, const Wanted& wanted);
  std::vector<uint32_t> rounds_of_traced(uint32_t which) const;
  bool roll_traced(uint32_t which, const std::vector<uint32_t>& tokens);
  bool roll_rounds(uint32_t which, const std::vector<uint32_t>& begins, size_t first, size_t behind);
  std::unordered_set<NodeId> beside(const Rounds& rounds, int64_t round) const;
  bool stays_in_its_round(uint32_t which, const Rounds& rounds, const Wanted& wanted) const;
  bool is_of_all_rounds(const CatOfRounds& of, ir::Dim count) const;
  bool roll_all_traced();
  Wanted wanted_of(const Rounds& rounds);
  void find_cats(const Rounds& rounds, uint32_t at, Wanted& wanted);
  NodeId below(const Rounds& rounds, NodeId id) const;
  bool lists_rounds(const Rounds& rounds, const CatOfRounds& of, CatOfRounds::Part part) const;
  void take_cat(const Rounds& rounds, uint32_t at, NodeId cat, Wanted& wanted);
  bool is_absorbed(NodeId value, NodeId reader) const;
  void absorb(const Rounds& rounds);
  Rerolled rebuild();
  NodeId hoist(pass::Rewriter& rewriter, const MadeLoop& loop, const Hoisted& hoisted);
  NodeId emit(pass::Rewriter& rewriter, const MadeLoop& loop);
  void emit_finals(pass::Rewriter& rewriter, const MadeLoop& loop, NodeId made);
  NodeId begin_placed(pass::Rewriter& rewriter, const MadeLoop& loop, uint32_t which);
  NodeId with_parts(pass::Rewriter& rewriter, const CatOfRounds& of, NodeId now, bool are_there, NodeId limit) const;
  void copy(pass::Rewriter& rewriter, NodeId id) const;
  NodeId node(const Rounds& rounds, int64_t round, uint32_t at) const { return rounds.node(sequence_, round, at); }
  std::span<const NodeId> readers(NodeId id) const {
    return std::span(readers_).subspan(first_readers_[id], first_readers_[id + 1] - first_readers_[id]);
  }
  bool is_inside(const Rounds& rounds, NodeId id) const { return rounds.place(sequence_, id) != Sequence::kNone; }

  const ir::Graph& graph_;
  const PlanOptions& options_;
  Sequence sequence_;
  std::vector<int64_t> weights_;         // of what comes before each node of the sequence
  std::vector<NodeId> last_readers_;     // per node: of its live readers; kNoNode: it has none
  bool has_cats_ = false;                // live ones: only then are all readers listed
  std::vector<uint32_t> first_readers_;  // per node: where its readers begin; and one more
  std::vector<NodeId> readers_;          // of all nodes: live ones, ascending
  std::vector<bool> is_result_;          // per node: the caller, an argument or a loop gets it
  std::map<uint32_t, uint32_t> taken_;   // where loops begin in the sequence -> where they end
  std::vector<bool> absorbed_;           // per node: only Cats that loops fill read it
  struct Filled {
    CatOfRounds by;
    NodeId first;  // node of the rounds
  };
  std::unordered_map<NodeId, Filled> cats_;                        // Cats that loops fill
  std::unordered_map<NodeId, std::unordered_set<NodeId>> others_;  // Cat -> operands that are no values of rounds
  std::unordered_map<NodeId, std::unordered_map<NodeId, uint32_t>> parts_of_;  // Cat -> what is below its operands
  std::vector<MadeLoop> loops_;
};

/// A product becomes two views, a sum and what is added to it.
void Reroller::weigh() {
  constexpr int64_t kProduct = 4;
  weights_.reserve(sequence_.nodes.size() + 1);
  weights_.assign(1, 0);
  for (const NodeId id : sequence_.nodes)
    weights_.push_back(weights_.back() + (graph_[id].op == Op::Contract ? kProduct : 1));
}

/// Products whose bits a guard hangs on; unless the loop may be one `with_calls`, all that torch computes in any case.
std::vector<bool> Reroller::alone(bool with_calls) const {
  std::vector<bool> alone(graph_.nodes.size(), false);
  const std::vector<bool> guarded = pass::decides_guard(graph_);
  for (const NodeId id : sequence_.nodes) {
    const ir::Node& node = graph_[id];
    if (late_in(graph_, graph_.sizes(id)) != 0)
      alone[id] = true;
    else if (node.op == Op::Contract)
      alone[id] =
          guarded[id] || (!with_calls && (!options_.own_products || !is_matrix_product(graph_.contracts[node.attr])));
    else if (!with_calls && (node.op == Op::Extern || node.op == Op::Result))
      alone[id] = !pass::is_guard(graph_, node);
  }
  return alone;
}

void Reroller::find_readers() {
  last_readers_.assign(graph_.nodes.size(), ir::kNoNode);
  is_result_.assign(graph_.nodes.size(), false);
  absorbed_.assign(graph_.nodes.size(), false);
  for (NodeId id = 0; id < graph_.nodes.size(); ++id) {
    if (!sequence_.live[id]) continue;
    has_cats_ = has_cats_ || graph_[id].op == Op::Cat;
    for (const NodeId in : graph_.operands(id))
      if (in != ir::kNoNode) last_readers_[in] = id;
  }
  if (has_cats_) list_readers();
  for (const NodeId id : graph_.outputs) is_result_[id] = true;
  for (const ir::Store& store : graph_.stores) is_result_[store.value] = true;
}

void Reroller::list_readers() {
  first_readers_.assign(graph_.nodes.size() + 1, 0);
  const auto for_each_read = [&](auto take) {  // last reader first
    for (auto id = static_cast<NodeId>(graph_.nodes.size()); id-- > 0;)
      if (sequence_.live[id])
        for (const NodeId in : graph_.operands(id))
          if (in != ir::kNoNode) take(in, id);
  };
  for_each_read([&](NodeId in, NodeId) { ++first_readers_[in]; });
  std::partial_sum(first_readers_.begin(), first_readers_.end(), first_readers_.begin());
  readers_.resize(first_readers_.back());
  for_each_read([&](NodeId in, NodeId reader) { readers_[--first_readers_[in]] = reader; });
}

std::vector<std::pair<uint32_t, uint32_t>> Reroller::free_in(const Repeat& repeat) const {
  std::vector<std::pair<uint32_t, uint32_t>> parts;
  uint32_t begin = repeat.begin;
  auto next = taken_.upper_bound(begin);
  if (next != taken_.begin()) begin = std::max(begin, std::prev(next)->second);
  for (; begin < repeat.end; begin = next++->second) {
    const uint32_t end = next == taken_.end() ? repeat.end : std::min(next->first, repeat.end);
    parts.emplace_back(begin, end);
    if (end == repeat.end) break;
  }
  return parts;
}

/// Nothing is fused across a product.
int64_t Reroller::rounds_together(uint32_t begin, uint32_t period, int64_t trip) const {
  const auto is_product = [&](NodeId id) { return graph_[id].op == Op::Contract; };
  if (std::any_of(sequence_.nodes.begin() + begin, sequence_.nodes.begin() + begin + period, is_product)) return 1;
  const int64_t fitting = kNodesOfARound / weight(begin, begin + period);
  return std::clamp<int64_t>(fitting, 1, std::max<int64_t>(trip / 4, 1));
}

void Reroller::try_loop(uint32_t begin, uint32_t end, uint32_t period) {
  if ((end - begin) / period < kFewestRounds || weight(begin + period, end) < kFewestSaved) return;
  begin += best_phase(graph_, sequence_, begin, end, period);
  const int64_t trip = (static_cast<int64_t>(end) - begin) / period;
  const int64_t together = rounds_together(begin, period, trip);
  // Inside a kernel rounds cost nothing, and those that reach back further are several together; outside, a launch
  // should be worth its call.
  for (const uint32_t few : {1, 2, 4})
    if (!options_.cuda && together > few && make_rounds(begin, period * few, trip / few, true)) return;
  make_rounds(begin, period * static_cast<uint32_t>(together), trip / together, false);
}

/// A loop of so many rounds from `begin` on, if they are alike; one `inside` a kernel, or none. Whether there is
/// nothing more to try here.
bool Reroller::make_rounds(uint32_t begin, uint32_t period, int64_t trip, bool inside) {
  auto alike = alike_rounds(graph_, sequence_, {begin, period, trip, trip, {}, {}, {}});
  if (!alike || weight(alike->begin + alike->period, alike->end()) < kFewestSaved) return false;
  if (!hands_on(*alike)) return true;  // no loop: their launches may run at once
  const Wanted wanted = wanted_of(*alike);
  auto made = make_loop(graph_, sequence_, std::move(*alike), wanted, options_, !inside);
  if (!made || (inside && (made->body.has_calls || !fits_over_time(made->attr, made->body)))) return false;
  if (made->most < made->rounds.trip)
    make_in_turn(made->rounds, made->most);
  else
    take(std::move(*made), wanted);
  return true;
}

/// Loops of so many of the rounds, each of which hands on to the next. What is no loop then is work like any other.
void Reroller::make_in_turn(const Rounds& rounds, int64_t most) {
  const int64_t loops = (rounds.trip + most - 1) / most;
  const MadeLoop* like = nullptr;
  loops_.reserve(loops_.size() + static_cast<size_t>(loops));  // where `like` stays
  for (int64_t i = 0; i < loops; ++i) {
    const int64_t first = i * rounds.trip / loops, trip = (i + 1) * rounds.trip / loops - first;
    Rounds part = part_of(sequence_, rounds, first, trip);
    const Wanted wanted = wanted_of(part);
    auto made = make_loop(graph_, sequence_, std::move(part), wanted, options_, false, like);
    if (made && take(std::move(*made), wanted)) like = &loops_.back();
  }
}

/// Where the rounds of a loop of the caller's begin in the sequence, and where the last ends. Empty: other nodes stand
/// among theirs, or a round has none.
std::vector<uint32_t> Reroller::rounds_of_traced(uint32_t which) const {
  const ir::TracedLoop& loop = graph_.traced[which];
  std::vector<uint32_t> begins(static_cast<size_t>(loop.trip.hint()) + 1, Sequence::kNone);
  uint32_t next = Sequence::kNone, now = 0;
  for (uint32_t at = 0; at < sequence_.nodes.size(); ++at) {
    const ir::TracedRound of = graph_.round_of(sequence_.nodes[at]);
    if (of.loop != which) continue;
    if ((next != Sequence::kNone && at != next) || of.round < now) return {};
    now = of.round;
    begins[now] = std::min(begins[now], at);
    begins.back() = next = at + 1;
  }
  const bool has_all = std::find(begins.begin() + loop.alike_from, begins.end(), Sequence::kNone) == begins.end();
  return has_all ? begins : std::vector<uint32_t>();
}

/// All rounds of a loop of the caller's are one but for some at its beginning, and maybe the last. False: they are not
/// alike, or it hangs on their number what is read of them.
bool Reroller::roll_traced(uint32_t which, const std::vector<uint32_t>& tokens) {
  const ir::TracedLoop& loop = graph_.traced[which];
  const auto is_its = [&](NodeId id) { return graph_.round_of(id).loop == which; };
  if (std::ranges::none_of(sequence_.nodes, is_its)) return true;
  if (loop.alike_from == pass::kNeverAlike) return false;
  const std::vector<uint32_t> begins = rounds_of_traced(which);
  if (std::ssize(begins) < loop.alike_from + kFewestRounds + 2) return false;
  const size_t rounds = begins.size() - 1;
  const auto is_usual = [&](size_t round) {
    const auto part = [&](size_t i) { return std::span(tokens).subspan(begins[i], begins[i + 1] - begins[i]); };
    return std::ranges::equal(part(round), part(rounds - 2));
  };
  const size_t behind = !loop.last_apart && is_usual(rounds - 1) ? rounds : rounds - 1;
  size_t first = rounds - 2;
  while (first > loop.alike_from && is_usual(first - 1)) --first;
  // What the first one finds may be made otherwise: then it stays apart.
  return roll_rounds(which, begins, first, behind) ||
         (behind - first > kFewestRounds && roll_rounds(which, begins, first + 1, behind));
}

/// Rounds `first` to `behind` of a loop of the caller's are one, of which `begins` says where they are.
bool Reroller::roll_rounds(uint32_t which, const std::vector<uint32_t>& begins, size_t first, size_t behind) {
  const size_t rounds = begins.size() - 1;
  const auto trip = static_cast<int64_t>(behind - first);
  const ir::Dim count = graph_.traced[which].trip - (static_cast<int64_t>(rounds) - trip);
  auto alike =
      alike_rounds(graph_, sequence_, {begins[first], begins[first + 1] - begins[first], trip, count, {}, {}, {}});
  const uint32_t left_over = alike ? begins[behind] - alike->end() : 0;
  if (!alike || left_over > (behind == rounds ? alike->period : 0) || alike->count < 1) return false;
  const Wanted wanted = wanted_of(*alike);
  const auto is_as_long = [&](const CatOfRounds& cat) { return is_of_all_rounds(cat, alike->count); };
  if (std::ranges::find(wanted.all, true) != wanted.all.end() || !std::ranges::all_of(wanted.cats, is_as_long))
    return false;
  if (!stays_in_its_round(which, *alike, wanted)) return false;
  auto made = make_loop(graph_, sequence_, std::move(*alike), wanted, options_);
  return made && moves_evenly(made->attr, made->body) && take(std::move(*made), wanted);
}

/// What nodes of a round find outside of the rounds, and what of the loop around it is below that.
std::unordered_set<NodeId> Reroller::beside(const Rounds& rounds, int64_t round) const {
  std::unordered_set<NodeId> found;
  std::vector<NodeId> todo;
  const auto add = [&](NodeId id) {
    for (const NodeId in : graph_.operands(id))
      if (in != ir::kNoNode && !is_inside(rounds, in) && found.insert(in).second) todo.push_back(in);
  };
  for (uint32_t at = 0; at < rounds.period; ++at) add(node(rounds, round, at));
  while (!todo.empty()) {
    const NodeId id = todo.back();
    todo.pop_back();
    if (sequence_.places[id] == Sequence::kNone) add(id);
  }
  return found;
}

/// Whether nobody behind the loop, and not its last round, finds what a round but the first and the last left beside
/// it: x[t - 1], or what it handed on without a node. Which round that is hangs on their number, but of what all rounds
/// share, and of Cats of what each has made.
bool Reroller::stays_in_its_round(uint32_t which, const Rounds& rounds, const Wanted& wanted) const {
  const std::unordered_set<NodeId> first = beside(rounds, 0), last = beside(rounds, rounds.trip - 1);
  std::vector<char> strays(graph_.nodes.size(), 0);
  const auto is_astray = [&](NodeId in) { return in != ir::kNoNode && strays[in] != 0; };
  for (NodeId id = 0; id < graph_.nodes.size(); ++id) {
    if (is_inside(rounds, id)) continue;
    const uint32_t place = sequence_.places[id];
    const bool is_beside = place == Sequence::kNone;
    const bool is_found = std::ranges::any_of(graph_.operands(id), is_astray);
    const bool is_view = ir::is_view(graph_[id].op);
    const auto lists_all = [&] { return std::ranges::find(wanted.cats, id, &CatOfRounds::cat) != wanted.cats.end(); };
    if (is_found && !is_beside && place >= rounds.end() && !is_view && !lists_all()) return false;
    const ir::TracedRound of = graph_.round_of(id);
    const bool is_of_other = of.loop == which && of.round > 0 && of.round + 1 < graph_.traced[which].trip.hint();
    strays[id] = (is_found && (is_beside || is_view)) || (is_of_other && !(first.contains(id) && last.contains(id)));
    if (strays[id] && is_result_[id]) return false;
  }
  return true;
}

/// Whether a Cat is as long as all that it lists, with so many rounds.
bool Reroller::is_of_all_rounds(const CatOfRounds& of, ir::Dim count) const {
  const ir::ListAttr& list = graph_.lists[graph_[of.cat].attr];
  const auto dim = static_cast<size_t>(list.dim);
  ir::Dim length = 0;
  for (size_t i = 0; i < list.operands.size(); ++i)
    if (!of.is_round(i)) length += graph_.sizes(list.operands[i])[dim];
  for (const CatOfRounds::Part part : of.parts) length += count * graph_.sizes(list.operands[part.first])[dim];
  return of.stride > 0 && ir::identical(length, graph_.sizes(of.cat)[dim]);
}

bool Reroller::roll_all_traced() {
  if (graph_.traced.empty()) return true;
  const std::vector<uint32_t> tokens = tokens_of(graph_, sequence_, alone(true));
  for (uint32_t which = 0; which < graph_.traced.size(); ++which)
    if (!roll_traced(which, tokens)) return false;
  for (const NodeId id : sequence_.nodes)
    if (graph_[id].op == Op::Cat && !cats_.contains(id) && !is_of_all_rounds({id, 1, 0, {}}, 0)) return false;
  return true;
}

/// False: other rounds than those of a traced loop that is no number may answer what was asked in another way.
bool Reroller::take(MadeLoop made, const Wanted& wanted) {
  if (graph_.symbols && !graph_.symbols->ask_again(*made.attr.body->symbols, made.attr.trip)) return false;
  taken_[made.rounds.begin] = made.rounds.end();
  for (uint32_t place = made.rounds.begin; place < made.rounds.end(); ++place)
    sequence_.looped[sequence_.nodes[place]] = true;
  for (const NodeId operand : made.attr.operands)  // it may see one through views that others would be given
    if (operand != ir::kNoNode) is_result_[operand] = true;
  for (const CatOfRounds& of : wanted.cats) cats_[of.cat] = {of, node(made.rounds, 0, 0)};
  if (!wanted.cats.empty()) absorb(made.rounds);
  loops_.push_back(std::move(made));
  return true;
}

/// Views of the rounds' values that only the Cats which they fill read.
void Reroller::absorb(const Rounds& rounds) {
  for (NodeId id = node(rounds, 0, 0); id < graph_.nodes.size(); ++id) {
    if (!ir::is_view(graph_[id].op) || !sequence_.live[id] || is_inside(rounds, id) || absorbed_[id]) continue;
    if (!is_inside(rounds, below(rounds, id)) || is_result_[id]) continue;
    absorbed_[id] = std::ranges::all_of(readers(id), [&](NodeId reader) { return is_absorbed(id, reader); });
  }
}

/// What the operand of a Cat is behind views: a node of the rounds, or what is no view.
NodeId Reroller::below(const Rounds& rounds, NodeId id) const {
  while (!is_inside(rounds, id) && ir::is_view(graph_[id].op)) id = graph_[id].in[0];
  return id;
}

/// Whether every round's node `part.at` is an operand of the Cat, each so far from the one before, all seen alike.
bool Reroller::lists_rounds(const Rounds& rounds, const CatOfRounds& of, CatOfRounds::Part part) const {
  const auto& parts = graph_.lists[graph_[of.cat].attr].operands;
  const int64_t last = part.first + of.stride * (rounds.trip - 1);
  if (last < 0 || last >= std::ssize(parts)) return false;
  for (int64_t round = 0; round < rounds.trip; ++round) {
    NodeId a = parts[of.operand(part, round)], b = parts[part.first];
    for (; !is_inside(rounds, a) && !is_inside(rounds, b); a = graph_[a].in[0], b = graph_[b].in[0]) {
      const bool is_view = ir::is_view(graph_[a].op);
      if (!is_view || graph_[a].op != graph_[b].op || graph_[a].layout != graph_[b].layout ||
          graph_[a].attr != graph_[b].attr)
        return false;
    }
    if (a != node(rounds, round, part.at) || b != node(rounds, 0, part.at)) return false;
  }
  return true;
}

/// Takes the values that node `at` has in all rounds for parts of the Cat, if they are.
void Reroller::take_cat(const Rounds& rounds, uint32_t at, NodeId cat, Wanted& wanted) {
  if (cats_.contains(cat)) return;
  const auto [known_parts, fresh] = parts_of_.try_emplace(cat);
  const auto& operands = graph_.lists[graph_[cat].attr].operands;
  for (uint32_t i = 0; fresh && i < operands.size(); ++i) {
    work();
    known_parts->second.try_emplace(below(rounds, operands[i]), i);
  }
  const auto& parts = known_parts->second;
  const auto first = parts.find(node(rounds, 0, at)), second = parts.find(node(rounds, 1, at));
  if (first == parts.end() || second == parts.end()) return;
  const CatOfRounds::Part part{at, first->second};
  CatOfRounds of{cat, int64_t{second->second} - first->second, rounds.trip, {part}};
  if (!lists_rounds(rounds, of, part)) return;
  const auto known = std::ranges::find(wanted.cats, cat, &CatOfRounds::cat);
  if (known == wanted.cats.end())
    wanted.cats.push_back(std::move(of));
  else if (known->stride == of.stride && !known->is_round(part.first))
    known->parts.push_back(part);
}

/// Cats behind the loop that list the node of every round.
void Reroller::find_cats(const Rounds& rounds, uint32_t at, Wanted& wanted) {
  std::vector<NodeId> stack{node(rounds, 0, at)};
  while (!stack.empty()) {
    const NodeId id = stack.back();
    stack.pop_back();
    for (const NodeId reader : readers(id)) {
      work();
      if (is_inside(rounds, reader)) continue;
      if (ir::is_view(graph_[reader].op)) stack.push_back(reader);
      if (graph_[reader].op == Op::Cat) take_cat(rounds, at, reader, wanted);
    }
  }
}

/// Whether `reader` gets `value` from the rounds that are looked at as a part of a Cat.
bool Reroller::is_absorbed(NodeId value, NodeId reader) const {
  if (ir::is_view(graph_[reader].op))
    return !is_result_[reader] &&
           std::ranges::all_of(readers(reader), [&](NodeId next) { return is_absorbed(reader, next); });
  const auto of = others_.find(reader);
  return of != others_.end() && !of->second.contains(value);
}

Wanted Reroller::wanted_of(const Rounds& rounds) {
  Wanted wanted{std::vector<bool>(rounds.period, false), std::vector<bool>(rounds.period, false), {}};
  parts_of_.clear();
  for (uint32_t at = 0; has_cats_ && at < rounds.period; ++at) find_cats(rounds, at, wanted);
  others_.clear();
  for (const CatOfRounds& of : wanted.cats) {
    const auto& operands = graph_.lists[graph_[of.cat].attr].operands;
    std::unordered_set<NodeId>& others = others_[of.cat];
    for (size_t i = 0; i < operands.size(); ++i)
      if (!of.is_round(i)) others.insert(operands[i]);
  }
  const NodeId last = sequence_.nodes[rounds.end() - 1];
  for (int64_t round = 0; round < rounds.trip; ++round) {
    work(rounds.period);
    for (uint32_t at = 0; at < rounds.period; ++at) {
      const NodeId id = node(rounds, round, at);
      if (!is_result_[id] && (last_readers_[id] == ir::kNoNode || last_readers_[id] <= last)) continue;
      const auto is_read = [&](NodeId reader) { return !is_inside(rounds, reader) && !is_absorbed(id, reader); };
      if (!is_result_[id] && has_cats_ && std::ranges::none_of(readers(id), is_read)) continue;
      (round + 1 == rounds.trip ? wanted.last : wanted.all)[at] = true;
    }
  }
  return wanted;
}

void Reroller::copy(pass::Rewriter& rewriter, NodeId id) const {
  const Op op = graph_[id].op;
  const bool is_kept = sequence_.live[id] || op == Op::Input || op == Op::Scalar;
  if (is_kept && !absorbed_[id] && rewriter[id] == ir::kNoNode) rewriter.copy(id);
}

Rerolled Reroller::rebuild() {
  pass::Rewriter rewriter(graph_);
  size_t next = 0;
  work(graph_.nodes.size());
  for (NodeId id = 0; id < graph_.nodes.size(); ++id) {
    if (next < loops_.size() && id == node(loops_[next].rounds, 0, 0)) {
      id = emit(rewriter, loops_[next++]);
      continue;
    }
    const auto filled = cats_.find(id);
    if (filled == cats_.end()) {
      copy(rewriter, id);
      continue;
    }
    rewriter.to().set_line(graph_[id].line);
    rewriter.set(id, with_parts(rewriter, filled->second.by, rewriter[id], false, filled->second.first));
  }
  Rerolled made{rewriter.finish(), {}};
  for (MadeLoop& loop : loops_) made.bodies.push_back(std::move(loop.body));
  return made;
}

/// `now` with those parts of the Cat that are no rounds: the ones that are there before the loop, or the others.
NodeId Reroller::with_parts(pass::Rewriter& rewriter, const CatOfRounds& of, NodeId now, bool are_there,
                            NodeId limit) const {
  const ir::ListAttr& list = graph_.lists[graph_[of.cat].attr];
  const auto dim = static_cast<size_t>(list.dim);
  // With other numbers of rounds, what stands behind the first list that has ended does so at the same distance from
  // the end.
  size_t ended = list.operands.size();
  for (const CatOfRounds::Part part : of.parts) ended = std::min(ended, of.operand(part, of.trip - 1));
  const auto length = [&](size_t i) { return graph_.sizes(list.operands[i])[dim]; };
  ir::Dim at = 0;
  for (size_t i = 0; i < list.operands.size(); ++i) {
    const NodeId part = list.operands[i];
    if (!graph_.traced.empty() && i == ended + 1) {
      at = graph_.sizes(of.cat)[dim];
      for (size_t k = i; k < list.operands.size(); ++k) at -= length(k);
    }
    const ir::Dim begin = at;
    at += length(i);
    if (of.is_round(i) || (part < limit) != are_there || graph_.layout(part).numel() == 0) continue;
    ir::IndexMap map = ir::identity_map(graph_.sizes(part).size());
    map.dims[dim].offset = begin;
    now = rewriter.to().update(now, rewriter[part], std::move(map));
  }
  return now;
}

NodeId Reroller::begin_placed(pass::Rewriter& rewriter, const MadeLoop& loop, uint32_t which) {
  const PlacedValue& placed = loop.placed[which];
  ir::Graph& to = rewriter.to();
  if (placed.kind == PlacedValue::Kind::Base) return rewriter[placed.base];
  const ir::Graph& body = *loop.attr.body;
  const NodeId ends_with = body.stores[which].value;
  const NodeId memory = to.undef(body[ends_with].dtype, ir::around_body(graph_, body, body.layout(ends_with)));
  if (placed.kind == PlacedValue::Kind::Gather) return memory;
  return with_parts(rewriter, placed.cat, memory, true, node(loop.rounds, 0, 0));
}

NodeId Reroller::hoist(pass::Rewriter& rewriter, const MadeLoop& loop, const Hoisted& hoisted) {
  const NodeId id = node(loop.rounds, 0, hoisted.at);
  ir::Graph& to = rewriter.to();
  ir::ContractAttr attr = graph_.contracts[graph_[id].attr];
  const size_t left = attr.operands.size() - 2;
  for (size_t k = 0; k < attr.operands.size(); ++k)
    attr.operands[k] = k == left ? rows_of_all(to, rewriter[hoisted.base], hoisted) : rewriter[attr.operands[k]];
  std::vector<ir::Dim> sizes = hoisted.sizes;
  sizes[sizes.size() - 3] *= sizes[sizes.size() - 2];
  sizes.erase(sizes.end() - 2);
  sizes.back() = graph_.sizes(id).back();
  std::vector<ir::Dim> strides = ir::row_major(sizes);
  return to.contract(std::move(attr), graph_[id].dtype, {std::move(sizes), std::move(strides)});
}

/// The loop in place of its rounds, whose last node it gives.
NodeId Reroller::emit(pass::Rewriter& rewriter, const MadeLoop& loop) {
  const NodeId first = node(loop.rounds, 0, 0), last = sequence_.nodes[loop.rounds.end() - 1];
  for (NodeId id = first; id < last; ++id)  // arguments, and views of them
    if (sequence_.places[id] == Sequence::kNone) copy(rewriter, id);
  rewriter.to().set_line(graph_[first].line);
  ir::LoopAttr attr = loop.attr;
  const ir::Graph& body = *attr.body;
  for (size_t i = 0; i < attr.operands.size(); ++i) {
    NodeId& operand = attr.operands[i];
    if (i >= attr.carried && i < attr.carried + attr.placed) {
      operand = begin_placed(rewriter, loop, static_cast<uint32_t>(i) - attr.carried);
      continue;
    }
    if (operand == ir::kNoNode) continue;  // hoisted
    operand = rewriter[operand];
    if (i >= attr.carried) continue;
    const std::vector<ir::Dim> strides = ir::around_body(graph_, body, body.layout(body.outputs[i])).strides;
    operand = is_stored_over(graph_, sequence_, loop, loop.attr.operands[i])
                  ? rewriter.to().fresh_copy(operand, strides)
                  : rewriter.to().with_strides(operand, strides);
  }
  const size_t hoisted_from = attr.carried + attr.placed + attr.fixed - loop.hoisted.size();
  for (size_t i = hoisted_from - loop.packed.size(); i < hoisted_from; ++i)
    attr.operands[i] =
        rewriter.to().with_strides(attr.operands[i], ir::row_major(rewriter.to().sizes(attr.operands[i])));
  for (const Hoisted& hoisted : loop.hoisted) attr.operands[hoisted.operand] = hoist(rewriter, loop, hoisted);
  emit_finals(rewriter, loop, rewriter.to().loop(std::move(attr)));
  return last;
}

void Reroller::emit_finals(pass::Rewriter& rewriter, const MadeLoop& loop, NodeId made) {
  const Rounds& rounds = loop.rounds;
  ir::Graph& to = rewriter.to();
  for (const auto& [at, which] : loop.finals) rewriter.set(node(rounds, rounds.trip - 1, at), made + 1 + which);
  for (const auto& [at, which] : loop.gathers)
    for (int64_t round = 0; round < rounds.trip; ++round) {
      const auto sizes = graph_.sizes(node(rounds, round, at));
      const NodeId value = to.view(made + 1 + which, gathered_at(round, sizes.size()), {sizes.begin(), sizes.end()});
      rewriter.set(node(rounds, round, at), value);
    }
  for (uint32_t i = 0; i < loop.placed.size(); ++i)
    if (loop.placed[i].kind == PlacedValue::Kind::Cat)
      rewriter.set(loop.placed[i].cat.cat, made + 1 + loop.attr.carried + i);
}

}  // namespace

std::optional<Rerolled> reroll(const ir::Graph& graph, const PlanOptions& options) {
  return Reroller(graph, options).run();
}

}  // namespace fastjit::plan
