// Loops of Python over a range that ends at a size, whose rounds are alike: another call runs more or fewer of them.
#include <algorithm>

#include "capture/build/build.h"
#include "capture/build/way_sizes.h"

namespace fastjit::capture {
namespace {

using ir::Dim;
using Begin = PythonLoop::Begin;

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
  const std::string& line = trace_.lines[event.line];
  const auto index = static_cast<uint32_t>(&event - trace_.events.data());
  round_ = trace_.loops.empty() ? LoopRound() : round_with(trace_, &Begin::event, index);
  if (round_.loop != kNone) enter_loop(round_.loop);
  ir::TracedRound now{round_.loop == kNone ? ir::TracedRound::kNone : traced_[round_.loop], round_.round};
  const bool is_traced = now.loop != ir::TracedRound::kNone;
  graph_.set_line(is_traced ? graph_.intern_line(line, now) : graph_.intern_line(line));
  graph_.ask_in(now);
}

// How many rounds it has is known by now.
void GraphBuilder::enter_loop(uint32_t which) {
  if (!entered_loops_.insert(which).second) return;
  const PythonLoop& loop = trace_.loops[which];
  if (!scope_ || way_ || !inputs_.takes_any_trip) return;
  const Dim trip = size_of(loop.number) - loop.start;
  if (!trip.is_symbolic() || trip.hint() != static_cast<int64_t>(loop.rounds())) return;
  traced_[which] = static_cast<uint32_t>(graph_.traced.size());
  graph_.traced.push_back({trip, static_cast<uint32_t>(loop.alike_from)});
}

// From here on the program is for as many rounds as there were.
void GraphBuilder::fix_loop(uint32_t which) {
  const uint32_t number = trace_.loops[which].number;
  read_at(number);
  static_cast<void>(size_of(number).fixed());
}

// A call of torch's holds what the round of the recorded call gave it.
void GraphBuilder::refuse_rounds_of(uint32_t event) {
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
  if (trace_.loops.empty() || use.tensor == kNone) return;
  const LoopRound made = round_with(trace_, &Begin::tensor, use.tensor);
  if (made.loop != kNone && !(made == round_) && !is_of_its_round(use.tensor, made)) fix_loop(made.loop);
}

// A round writes to tensors what it has made.
void GraphBuilder::check_writes(const Action& step) {
  if (round_.loop == kNone) return;
  for (const uint32_t tensor : step.writes)
    if (!is_of_its_round(tensor, round_)) fix_loop(round_.loop);
}

// The index of a round: in the last one that of the last, however many there are.
ir::Dim GraphBuilder::index_of(uint32_t number, const SizeNumber& how) {
  const PythonLoop& loop = trace_.loops[how.loop];
  const LoopRound made = round_with(trace_, &Begin::number, number);
  const bool is_last = made.loop == how.loop && made.round + 1 == loop.rounds();
  if (!is_last || traced_[how.loop] == ir::TracedRound::kNone) return PyLong_AsLongLong(inputs_.scalars[number].first);
  return graph_.traced[traced_[how.loop]].trip + (loop.start - 1);
}

// What Python computed in one round and uses in another hangs on how many there are.
void GraphBuilder::check_round(uint32_t number) {
  if (trace_.loops.empty() || is_settling_) return;
  const LoopRound made = made_in(number);
  if (made.loop != kNone && !(made == round_)) fix_loop(made.loop);
}

// How many tensors the list has that the operator is given.
ir::Dim GraphBuilder::listed(uint32_t event, const CallValue& list) {
  const auto length = static_cast<int64_t>(list.uses.size());
  for (const InstructionUse<RoundsUse>& use : trace_.rounds_uses) {
    const auto& [which, before, count] = use.told;
    if (use.events != std::vector<uint32_t>{event} || list.uses.size() != count) continue;
    const uint32_t traced = traced_[which];
    const size_t rounds = trace_.loops[which].rounds(), of_rounds = count - before;
    if (traced == ir::TracedRound::kNone || of_rounds % rounds != 0) return length;
    return graph_.traced[traced].trip * (of_rounds / rounds) + before;
  }
  return length;
}

void GraphBuilder::settle_loops() {
  for (uint32_t which = 0; which < trace_.loops.size(); ++which) {
    const bool is_traced = traced_[which] != ir::TracedRound::kNone;
    if (!is_traced || !compares_alike(trace_.loops[which]) || writes_outside(which)) fix_loop(which);
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

// Whether that was the same in all rounds.
bool GraphBuilder::compares_alike(const PythonLoop& loop) {
  const auto first = static_cast<size_t>(loop.alike_from);
  const auto usual = compared_in(loop, first);
  for (size_t round = first + 1; usual && round < loop.rounds(); ++round) {
    const auto here = compared_in(loop, round);
    if (!here || !ir::identical(*usual, *here)) return false;
  }
  return usual.has_value();
}

// Whether rounds write to memory that was there before the call: it counts how often.
bool GraphBuilder::writes_outside(uint32_t which) const {
  const auto is_root = [&](uint32_t tensor) {
    return std::ranges::any_of(trace_.roots,
                               [&](const Source& root) { return root.before.storage == analysis_.storage[tensor]; });
  };
  return std::ranges::any_of(analysis_.steps, [&](const Action& step) {
    return trace_.loops[which].has_event(step.event) && std::ranges::any_of(step.writes, is_root);
  });
}

}  // namespace fastjit::capture
