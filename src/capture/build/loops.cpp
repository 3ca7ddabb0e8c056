// Loops of Python over a range that ends at a size, whose rounds are alike: another call runs more or fewer of them.
#include <algorithm>
#include <tuple>

#include "capture/build/build.h"
#include "capture/build/way_sizes.h"
#include "capture/lower/util.h"

namespace fastjit::capture {
namespace {

using ir::Dim;
using Begin = PythonLoop::Begin;

bool is_number(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
}

bool same_value(const c10::IValue& a, const c10::IValue& b) {
  if (is_number(a) && is_number(b))
    return a.toTensor().scalar_type() == b.toTensor().scalar_type() && at::equal(a.toTensor(), b.toTensor());
  return a.is(b) || (!a.isTensor() && a.tagKind() == b.tagKind() && a == b);
}

bool same_result(const TensorMeta& a, const TensorMeta& b) {
  const bool is_symbolic = a.symbolic || b.symbolic;
  return a.dtype == b.dtype && a.sizes == b.sizes && a.strides == b.strides && a.wrapped_number == b.wrapped_number &&
         (!is_symbolic || (a.symbolic && b.symbolic && *a.symbolic == *b.symbolic));
}

// Whether the one does what the other does, given the same tensors. What has sizes that depend on data may do
// otherwise.
bool same_call(const CallTemplate& a, const CallTemplate& b) {
  const auto same_hole = [](const CallTemplate::Hole& x, const CallTemplate::Hole& y) {
    return x.arg == y.arg && x.item == y.item;
  };
  const auto same_number = [](const CallTemplate::NumberHole& x, const CallTemplate::NumberHole& y) {
    return x.arg == y.arg && x.scalar == y.scalar && x.is_float == y.is_float && x.element == y.element &&
           x.operand == y.operand;
  };
  const auto modes = [](const CallTemplate& call) {
    return std::tie(call.shape_from_metadata, call.makes_new, call.makes_no_view, call.with_grad_mode, call.by_data,
                    call.data_dims, call.casts);
  };
  const bool is_plain = !a.by_data && a.made_generators.empty() && b.made_generators.empty();
  return is_plain && a.op == b.op && std::ranges::equal(a.args, b.args, same_value) &&
         std::ranges::equal(a.holes, b.holes, same_hole) && std::ranges::equal(a.results, b.results, same_result) &&
         std::ranges::equal(a.numbers, b.numbers, same_number) && modes(a) == modes(b);
}

// Whether a comparison says the same of all differences that are `first` or further from zero; away: they grow, else
// they fall.
bool says_the_same(int comparison, int64_t first, bool away) {
  if (comparison == Py_EQ || comparison == Py_NE) return away ? first > 0 : first < 0;
  const bool is_at_zero_positive = comparison == Py_LT || comparison == Py_GE;  // a < b: negative; a > b: positive
  if (away) return is_at_zero_positive ? first >= 0 : first > 0;
  return is_at_zero_positive ? first < 0 : first <= 0;
}

/// What Python compared in the rounds of a loop that are alike: differences, that of the first one first.
struct Compared {
  int comparison;
  std::vector<Dim> differences;
  Dim last;  // how many rounds the last one of any number is behind the first of these
  bool has_last;

  // They grow or fall by as much in each round, so that no later one, however many there are, is told otherwise.
  bool stays_beyond() const {
    const int64_t first = differences[0].hint(), step = differences[1].hint() - first;
    const auto is_even = [&](size_t round, Dim by) { return ir::identical(differences[round], by * step + first); };
    const size_t count = differences.size() - has_last;
    for (size_t round = 0; round < count; ++round)
      if (!is_even(round, static_cast<int64_t>(round))) return false;
    return step != 0 && (!has_last || is_even(count, last)) && says_the_same(comparison, first, step > 0);
  }
  // They lead up to the last round, which is told on its own, and so is none before it.
  bool stays_before() const {
    const Dim step = differences[1] - differences[0];
    if (has_last || step.is_symbolic() || ir::identical(step, 0)) return false;
    const Dim at_last = differences[0] + last * step.hint();
    for (size_t round = 0; round < differences.size(); ++round)
      if (!ir::identical(differences[round], differences[0] + static_cast<int64_t>(round) * step.hint())) return false;
    return !at_last.is_symbolic() && says_the_same(comparison, at_last.hint() - step.hint(), step.hint() < 0);
  }
};

bool walks(const PythonLoop& loop, uint32_t event) {
  return loop.is_known() && std::ranges::find(loop.parts, event) != loop.parts.end();
}

/// In which round of a loop that is known a number of `member` is; none: in none.
LoopRound round_with(const Trace& trace, uint32_t Begin::* member, uint32_t number) {
  for (uint32_t which = 0; which < trace.loops.size(); ++which) {
    const PythonLoop& loop = trace.loops[which];
    if (!loop.is_known() || number < loop.begins.front().*member || number >= loop.begins.back().*member) continue;
    const auto next = std::ranges::upper_bound(loop.begins, number, {}, member);
    return {which, static_cast<uint32_t>(next - loop.begins.begin()) - 1};
  }
  return {};
}

}  // namespace

// The round in which Python computed the number; none: it computed none in a loop.
LoopRound GraphBuilder::made_in(uint32_t number) const {
  const auto how = trace_.size_numbers.find(number);
  if (how != trace_.size_numbers.end() && (how->second.tensor != kNone || how->second.is_given)) return {};
  return round_with(trace_, &Begin::number, number);
}

// The step of this event is next.
void GraphBuilder::begin_step(const Event& event) {
  for (; !lent_.empty(); lent_.pop_back()) states_[lent_.back().first] = std::move(lent_.back().second);
  const auto index = static_cast<uint32_t>(&event - trace_.events.data());
  round_ = trace_.loops.empty() ? LoopRound() : round_with(trace_, &Begin::event, index);
  if (round_.loop != kNone) enter_loop(round_.loop);
  line_ = event.line;
  make_in(round_);
}

// Nodes are of this round from now on.
void GraphBuilder::make_in(LoopRound round) {
  const std::string& line = trace_.lines[line_];
  const ir::TracedRound now{round.loop == kNone ? ir::TracedRound::kNone : traced_[round.loop], round.round};
  const bool is_traced = now.loop != ir::TracedRound::kNone;
  graph_.set_line(is_traced ? graph_.intern_line(line, now) : graph_.intern_line(line));
  graph_.ask_in(now);
}

// How many rounds it has is known by now.
void GraphBuilder::enter_loop(uint32_t which) {
  if (!entered_loops_.insert(which).second) return;
  const PythonLoop& loop = trace_.loops[which];
  if (!scope_ || !inputs_.takes_any_trip || !is_known_back(which)) return;
  if (loop.back_of != kNone) return enter_way_back(which);
  const Dim trip = trip_of(loop);
  if (!trip.is_symbolic() || trip.hint() != static_cast<int64_t>(loop.rounds())) return;
  traced_[which] = static_cast<uint32_t>(graph_.traced.size());
  graph_.traced.push_back({trip, static_cast<uint32_t>(loop.alike_from)});
  make_in({});
  make_numbers_of(which);
  make_lists_of(which);
}

// How many rounds it has.
Dim GraphBuilder::trip_of(const PythonLoop& loop) {
  if (loop.layer == kNone) return size_of(loop.range.high) - size_of(loop.range.low);
  const Event& parts = trace_.events[loop.parts.empty() ? trace_.loops[loop.back_of].parts[0] : loop.parts[0]];
  const std::optional<ir::Layout> walked = layout_of(parts.args[0].uses[0].tensor);
  return walked ? walked->sizes[0] : Dim(static_cast<int64_t>(loop.rounds()));
}

// The loop of any number of rounds that walks what the operator gives; kNone: none does. Of memory that is written to,
// parts are other values later.
uint32_t GraphBuilder::walker_of(uint32_t event) {
  const auto loop = std::ranges::find_if(trace_.loops, [&](const PythonLoop& one) { return walks(one, event); });
  if (loop == trace_.loops.end() || is_written_later(trace_.events[event].args[0].uses[0].storage)) return kNone;
  const auto which = static_cast<uint32_t>(loop - trace_.loops.begin());
  enter_loop(which);
  return traced_[which] == ir::TracedRound::kNone ? kNone : which;
}

// What rounds of a loop before have put into lists, as one tensor of which each round is given a part.
void GraphBuilder::make_lists_of(uint32_t which) {
  for (const std::vector<uint32_t>& list : trace_.loops[which].lists) {
    const ir::NodeId whole = whole_of(list, which);
    for (uint32_t round = 0; whole != ir::kNoNode && round < list.size(); ++round)
      items_[{which, list[round]}] = {which, round, whole, 0};
  }
}

// kNoNode: they are not alike, or are written to from this loop on.
ir::NodeId GraphBuilder::whole_of(const std::vector<uint32_t>& list, uint32_t which) {
  const auto [known, is_new] = wholes_.try_emplace(list, ir::kNoNode);
  if (is_new)
    known->second = stacked(list, trace_.loops[which].begins.front().event, graph_.traced[traced_[which]].trip);
  return known->second;
}

ir::NodeId GraphBuilder::stacked(const std::vector<uint32_t>& list, uint32_t before, Dim length) {
  std::vector<ir::NodeId> nodes;
  for (const uint32_t tensor : list) {
    const ir::NodeId node = tensor == kNone ? ir::kNoNode : states_[tensor].node;
    if (node == ir::kNoNode || parts_.contains(tensor) || is_written_behind(tensor, before)) return ir::kNoNode;
    nodes.push_back(node);
  }
  return as_rows(nodes, length);
}

// One tensor of so many rows, which these are, each as a row of its own; kNoNode: they are not alike.
ir::NodeId GraphBuilder::as_rows(const std::vector<ir::NodeId>& nodes, Dim length) {
  std::vector<ir::NodeId> rows;
  for (const ir::NodeId node : nodes) {
    std::vector<Dim> sizes(graph_.sizes(node).begin(), graph_.sizes(node).end());
    sizes.insert(sizes.begin(), 1);
    rows.push_back(graph_.reshape(node, std::move(sizes)));
  }
  const auto alike = [&](ir::NodeId id) { return ir::identical(graph_.sizes(id), graph_.sizes(rows[0])); };
  return std::ranges::all_of(rows, alike) ? graph_.cat(std::move(rows), 0, length) : ir::kNoNode;
}

// Whether the step at hand writes to it, or one that has not been made.
bool GraphBuilder::is_written_later(uint32_t storage) const {
  if (!analysis_.written[storage]) return false;
  return analysis_.pinned[storage] || analysis_.last_write[storage] + 1 >= std::ssize(first_nodes_);
}

// Whether an event from `before` on writes to its memory, or somebody to parts of it.
bool GraphBuilder::is_written_behind(uint32_t tensor, uint32_t before) const {
  const uint32_t storage = analysis_.storage[tensor];
  if (!analysis_.written[storage]) return false;
  Use use;
  use.tensor = tensor;
  use.storage = storage;
  const auto writes = [&](const Action& step) {
    return step.event >= before &&
           std::ranges::any_of(step.writes, [&](uint32_t one) { return analysis_.storage[one] == storage; });
  };
  return is_parted(use) || std::ranges::any_of(analysis_.steps, writes);
}

void GraphBuilder::note_parts(uint32_t which, const Event& event, ir::NodeId whole) {
  const std::span<const Use> parts = flat_results(event);
  const auto rank = static_cast<int64_t>(graph_[whole].rank);
  const auto dim = static_cast<size_t>(wrap_dim(event.args.back().constant.toInt(), rank));
  std::vector<Dim> sizes(graph_.sizes(whole).begin(), graph_.sizes(whole).end());
  sizes[dim] = graph_.traced[traced_[which]].trip;  // of others that are walked beside the first, too
  const ir::NodeId all = graph_.view(whole, ir::identity_map(sizes.size()), sizes);
  const auto count = static_cast<uint32_t>(parts.size());
  for (uint32_t i = 0; i < count; ++i)
    parts_[parts[i].tensor] = {which, trace_.loops[which].falls ? count - 1 - i : i, all, dim};
}

// The round at hand is given its part. The last one may be read later, too.
void GraphBuilder::take_part(const Use& use) {
  if (use.tensor == kNone) return;
  if (is_kept(use)) return take_kept(use);
  if (shares_.contains(use.tensor)) return take_share(use);
  const auto item = items_.empty() ? items_.end() : items_.find({round_.loop, use.tensor});
  const auto part = parts_.find(use.tensor);
  if (item == items_.end() && part == parts_.end()) return;
  const auto& [which, round, whole, dim] = item != items_.end() ? item->second : part->second;
  if (goes_back(round_.loop)) return take_part_back(use, part->second);
  const bool is_last = round + 1 == trace_.loops[which].rounds();
  if (!(round_ == LoopRound{which, round}) && !(is_last && round_.loop == kNone)) return fix_loop(which);
  Dim place = is_last ? graph_.traced[traced_[which]].trip - 1 : Dim(round);
  if (trace_.loops[which].falls) place = graph_.traced[traced_[which]].trip - 1 - place;
  const bool keeps_dim = use.meta->sizes.size() == graph_.sizes(whole).size();  // as split does
  const ir::NodeId part_of_whole = row_of(whole, dim, place, keeps_dim);
  if (item != items_.end()) return lend(use.tensor, part_of_whole);
  states_[use.tensor].node = part_of_whole;
}

// From here on the program is for as many rounds as there were.
void GraphBuilder::fix_loop(uint32_t which) {
  if (trace_.loops[which].layer != kNone) return static_cast<void>(trip_of(trace_.loops[which]).fixed());
  for (const support::SizeOperand& end : {trace_.loops[which].range.low, trace_.loops[which].range.high})
    if (end.is_size()) {
      read_at(static_cast<uint32_t>(end.number));
      static_cast<void>(size_of(end).fixed());
    }
}

// The number of a call of torch's, which holds what its round of the recorded call gave it.
uint32_t GraphBuilder::add_call(CallTemplate made) {
  const auto number = static_cast<uint32_t>(capture.calls.size());
  if (round_.loop != kNone && !is_settling_) calls_in_[{round_.loop, round_.round}].push_back(number);
  capture.calls.push_back(std::move(made));
  return number;
}

// Whether the call may be given parts of tensors that maps describe: another round is given others, and a view of
// torch's is of one round.
bool GraphBuilder::reads_only_in_round(const Action& step) const {
  return round_.loop != kNone && traced_[round_.loop] != kNone && step.writes.empty() && !step.data_sized;
}

// A view of torch's is of its round, and of those that it gives at once there are as many as there were.
void GraphBuilder::refuse_rounds_of(uint32_t event) {
  for (uint32_t which = 0; which < trace_.loops.size(); ++which)
    if (walks(trace_.loops[which], event)) fix_loop(which);
  const LoopRound round = trace_.loops.empty() ? LoopRound() : round_with(trace_, &Begin::event, event);
  if (round.loop != kNone) fix_loop(round.loop);
}

// Whether the node that the tensor has now was made in this round: no operator may stand for it, as for a copy.
bool GraphBuilder::is_of_its_round(uint32_t tensor, LoopRound round) const {
  const ir::NodeId node = states_[tensor].node;
  const uint32_t traced = traced_[round.loop];
  if (traced == ir::TracedRound::kNone || node == ir::kNoNode) return true;
  const ir::TracedRound of = graph_.round_of(node);
  return of.loop == traced && of.round == round.round;
}

// A tensor that a round has made and another one, or what comes behind the loop, reads.
void GraphBuilder::check_moves(const Use& use) {
  if (trace_.loops.empty() || use.tensor == kNone || is_kept(use) || put_together_.contains(use.tensor)) return;
  const LoopRound made = round_with(trace_, &Begin::tensor, use.tensor);
  if (made.loop == kNone || made == round_ || is_of_its_round(use.tensor, made)) return;
  // Gradients are added to, round by round, in other loops and behind all.
  const ir::NodeId node = states_[use.tensor].node;
  const uint32_t traced = node == ir::kNoNode ? ir::TracedRound::kNone : graph_.round_of(node).loop;
  const auto now = std::ranges::find(traced_, traced);
  const bool is_on_way = traced == ir::TracedRound::kNone || goes_back(static_cast<uint32_t>(now - traced_.begin()));
  if (!goes_back(made.loop) || !is_on_way) fix_loop(made.loop);
}

// A round writes to tensors what it has made.
void GraphBuilder::check_writes(const Action& step) {
  for (const uint32_t tensor : step.writes) {
    if (round_.loop != kNone && !is_of_its_round(tensor, round_)) fix_loop(round_.loop);
    keep_written(tensor);
  }
}

// The index of a round: in the last one that of the last, however many there are.
ir::Dim GraphBuilder::index_of(uint32_t number, const SizeNumber& how) {
  const PythonLoop& loop = trace_.loops[how.loop];
  const LoopRound made = round_with(trace_, &Begin::number, number);
  if (made.loop != how.loop || traced_[how.loop] == ir::TracedRound::kNone)
    return PyLong_AsLongLong(inputs_.scalars[number].first);
  const auto& [low, high, shift, falls] = loop.range;
  if (made.round + 1 == loop.rounds()) return (falls ? size_of(low) : size_of(high) - 1) + shift;
  const auto round = static_cast<int64_t>(made.round);
  return (falls ? size_of(high) - (1 + round) : size_of(low) + round) + shift;
}

// What Python computed in one round and uses in another hangs on how many there are.
void GraphBuilder::check_round(uint32_t number) {
  if (trace_.loops.empty() || is_settling_) return;
  const LoopRound made = made_in(number);
  if (made.loop != kNone && !(made == round_)) fix_loop(made.loop);
}

// How many tensors the list has that the operator is given, and whether those of the last round come first.
std::pair<ir::Dim, bool> GraphBuilder::listed(uint32_t event, const CallValue& list) {
  const auto length = static_cast<int64_t>(list.uses.size());
  for (const InstructionUse<RoundsUse>& use : trace_.rounds_uses) {
    const auto& [which, before, count, reversed] = use.told;
    if (use.events != std::vector<uint32_t>{event} || list.uses.size() != count) continue;
    const uint32_t traced = traced_[which];
    const size_t rounds = trace_.loops[which].rounds(), of_rounds = count - before;
    if (traced == ir::TracedRound::kNone || of_rounds % rounds != 0) break;
    return {graph_.traced[traced].trip * (of_rounds / rounds) + before, reversed};
  }
  return {length, false};
}

void GraphBuilder::settle_loops() {
  for (uint32_t which = 0; which < trace_.loops.size(); ++which) {
    const bool is_traced = traced_[which] != ir::TracedRound::kNone;
    const auto has_parts = [&](uint32_t event) {
      return parts_.contains(flat_results(trace_.events[event])[0].tensor);
    };
    const auto has_items = [&](const std::vector<uint32_t>& list) { return items_.contains({which, list[0]}); };
    const auto has_shares = [&](const Shares& shares) {
      return shares_.contains(flat_results(trace_.events[shares.events[0]])[0].tensor);
    };
    const bool is_any = is_traced && std::ranges::all_of(trace_.loops[which].lists, has_items) &&
                        compares_alike(which) && calls_alike(which) && !writes_outside(which) &&
                        std::ranges::all_of(trace_.loops[which].parts, has_parts) &&
                        std::ranges::all_of(trace_.loops[which].shares, has_shares);
    if (!is_any) fix_loop(which);
  }
  for (const InstructionUse<RoundsUse>& use : trace_.rounds_uses)
    if (!use.whole || use.events.size() != 1 || !taken_rounds_.contains(use.events[0])) fix_loop(use.told.loop);
  for (size_t i = 0; i < trace_.size_tests.size(); ++i)
    for (const support::SizeOperand& one : {trace_.size_tests[i].a, trace_.size_tests[i].b}) {
      const LoopRound made = one.is_size() ? made_in(static_cast<uint32_t>(one.number)) : LoopRound();
      if (made.loop != kNone && i >= trace_.loops[made.loop].begins.back().test) fix_loop(made.loop);
    }
}

// What Python compared in a round: differences of sizes. Nothing: of some it is not known what they are.
std::optional<std::vector<ir::Dim>> GraphBuilder::compared_in(const PythonLoop& loop, size_t round) {
  std::vector<Dim> all;
  for (size_t i = loop.begins[round].test; i < loop.begins[round + 1].test; ++i) {
    const SizeTest& test = trace_.size_tests[i];
    for (const support::SizeOperand& one : {test.a, test.b}) {
      const bool is_known = one.is_size() ? trace_.size_numbers.contains(static_cast<uint32_t>(one.number))
                                          : one.value != support::kNoInt;
      if (!is_known) return std::nullopt;
    }
    all.push_back(size_of(test.a) - size_of(test.b));
  }
  return all;
}

// Whether all rounds compared the same, or the index with a number that none of them reaches.
bool GraphBuilder::compares_alike(uint32_t which) {
  const PythonLoop& loop = trace_.loops[which];
  const auto first = static_cast<size_t>(loop.alike_from);
  const Dim last = graph_.traced[traced_[which]].trip - 1 - loop.alike_from;
  std::vector<std::vector<Dim>> all;
  for (size_t round = first; round < loop.alike_to(); ++round) {
    auto here = compared_in(loop, round);
    if (!here || (!all.empty() && here->size() != all[0].size())) return false;
    all.push_back(std::move(*here));
  }
  const SizeTest* tests = trace_.size_tests.data() + loop.begins[first].test;
  for (size_t i = 0; i < all[0].size(); ++i) {
    Compared one{tests[i].comparison, {}, last, !loop.last_differs};
    for (const std::vector<Dim>& here : all) one.differences.push_back(here[i]);
    const auto usual = [&](Dim here) { return ir::identical(here, one.differences[0]); };
    if (std::ranges::all_of(one.differences, usual)) continue;
    if (!one.stays_beyond() && !one.stays_before()) return false;
    for (size_t round = first; round < loop.alike_to(); ++round) told_tests_.insert(loop.begins[round].test + i);
  }
  return true;
}

// Whether all rounds call torch alike, so that the calls of one are those of any.
bool GraphBuilder::calls_alike(uint32_t which) const {
  static const std::vector<uint32_t> none;
  const auto calls_in = [&](size_t round) -> const std::vector<uint32_t>& {
    const auto found = calls_in_.find({which, static_cast<uint32_t>(round)});
    return found == calls_in_.end() ? none : found->second;
  };
  const PythonLoop& loop = trace_.loops[which];
  const auto first = static_cast<size_t>(loop.alike_from);
  const auto is_alike = [&](uint32_t a, uint32_t b) { return same_call(capture.calls[a], capture.calls[b]); };
  for (size_t round = first + 1; round < loop.alike_to(); ++round)
    if (!std::ranges::equal(calls_in(first), calls_in(round), is_alike)) return false;
  return true;
}

// Whether rounds, but a last one that is not like the others, write to memory that was there before the call: it counts
// how often.
bool GraphBuilder::writes_outside(uint32_t which) const {
  const auto is_root = [&](uint32_t tensor) {
    return std::ranges::any_of(trace_.roots,
                               [&](const Source& root) { return root.before.storage == analysis_.storage[tensor]; });
  };
  const PythonLoop& loop = trace_.loops[which];
  return std::ranges::any_of(analysis_.steps, [&](const Action& step) {
    const bool is_inside = loop.has_event(step.event) && step.event < loop.begins[loop.alike_to()].event;
    return is_inside && std::ranges::any_of(step.writes, is_root);
  });
}

}  // namespace fastjit::capture
