#pragma once
// The rounds of a RepeatStep. A hole of a step is where it names a slot, maybe an element of it, a call, or a guard's
// value.
#include <optional>
#include <vector>

#include "plan/program.h"

namespace fastjit::plan {

/// Whether rounds of one body may be these, wherever their operands lie.
bool alike(const KernelStep& a, const KernelStep& b);
uint64_t hash_of(const KernelStep& launch);  // of alike ones the same

/// Calls `take` with each slot that the step names, in order, and with which of its elements is meant; null: it is the
/// slot as it is.
template <class AnyStep, class Take>
void for_each_slot(AnyStep& step, Take take) {
  int64_t* const whole = nullptr;
  const auto launch = [&](KernelStep& each) {
    for (size_t i = 0; i < each.operands.size(); ++i) take(each.operands[i], &each.offsets[i]);
  };
  const auto places = [&](std::vector<Place>& list) {
    for (Place& place : list) take(place.slot, &place.offset);
  };
  const auto tensors = [&](std::vector<SlotId>& list) {
    for (SlotId& slot : list)
      if (slot != kNoSlot) take(slot, whole);
  };
  if constexpr (std::is_same_v<AnyStep, KernelStep>) {
    launch(step);
  } else if constexpr (std::is_same_v<AnyStep, ParallelStep>) {
    for (KernelStep& each : step.launches) launch(each);
  } else if constexpr (std::is_same_v<AnyStep, LoopStep>) {
    for (KernelStep& each : step.body) launch(each);
    places(step.table);
    for (LoopStep::Turn& turn : step.turns)
      for (Place* place : {&turn.first, &turn.last, &turn.other})
        if (place->slot != kNoSlot) take(place->slot, &place->offset);
  } else if constexpr (std::is_same_v<AnyStep, ExternStep>) {
    tensors(step.operands);
    tensors(step.results);
  } else if constexpr (std::is_same_v<AnyStep, ContractStep>) {
    tensors(step.operands);
    take(step.result, whole);
    for (KernelStep& each : step.epilogue) launch(each);
  } else if constexpr (std::is_same_v<AnyStep, AliasStep>) {
    take(step.slot, whole);
    take(step.base, &step.offset);
  } else if constexpr (std::is_same_v<AnyStep, HandStep>) {
    take(step.from, whole);
    take(step.to, whole);
  } else if constexpr (std::is_same_v<AnyStep, GuardStep>) {
    take(step.slot, &step.offset);
  } else if constexpr (std::is_same_v<AnyStep, NumberStep>) {
    places(step.operands);
    take(step.result, whole);
  } else if constexpr (std::is_same_v<AnyStep, FreeStep> || std::is_same_v<AnyStep, OwnStep>) {
    if (step.slot != kNoSlot) take(step.slot, whole);
  }
}

template <class AnyStep>
inline constexpr bool kHasCall = std::is_same_v<AnyStep, ExternStep> || std::is_same_v<AnyStep, ContractStep>;

/// Whether its first hole is no slot, but a number.
template <class AnyStep>
inline constexpr bool kHasNumber = kHasCall<AnyStep> || std::is_same_v<AnyStep, GuardStep>;

/// The holes of a step: its call or value, if it has one, then its slots.
template <class AnyStep, class Take>
void for_each_hole(AnyStep& step, Take take) {
  int64_t* const whole = nullptr;
  if constexpr (std::is_same_v<AnyStep, ExternStep>) take(step.external, whole);
  if constexpr (std::is_same_v<AnyStep, ContractStep>) take(step.call, whole);
  if constexpr (std::is_same_v<AnyStep, GuardStep>) take(step.guard, whole);
  for_each_slot(step, take);
}

/// Nothing of a step that stands in no round.
std::optional<RoundStep> as_round_step(const Step& step);

/// The steps of a RepeatStep in one round after the other.
class Round {
 public:
  explicit Round(const RepeatStep& repeat);
  Round(const Round&) = delete;
  Round& operator=(const Round&) = delete;

  void set(int64_t round);
  const std::vector<RoundStep>& steps() const { return steps_; }

 private:
  struct Hole {
    uint32_t* id;
    int64_t* offset;
  };
  const RepeatStep& repeat_;
  std::vector<RoundStep> steps_;
  std::vector<Hole> holes_;  // per RepeatStep::varying
};

/// Calls `take` with the steps of every round, in order.
template <class Take>
void for_each_step(const RepeatStep& repeat, Take take) {
  Round round(repeat);
  for (int64_t i = 0; i < repeat.trip; ++i) {
    round.set(i);
    for (const RoundStep& step : round.steps()) std::visit(take, step);
  }
}

/// Calls `take` with the steps of the program as they run: those of a RepeatStep in its place.
template <class Take>
void for_each_step(const Program& program, Take take) {
  const auto take_one = [&](const auto& step) {
    if constexpr (std::is_same_v<decltype(step), const RepeatStep&>)
      for_each_step(step, take);
    else
      take(step);
  };
  for (const Step& step : program.steps) std::visit(take_one, step);
}

/// The same with those from number `begin` on and before number `end`, which each get, and with the numbers of those
/// that are behind them. The steps of any number of rounds have one number, so that it is theirs at all sizes.
template <class Take, class Behind>
void for_each_number(const Program& program, uint32_t begin, uint32_t end, Take take, Behind behind) {
  uint32_t at = 0;
  const auto is_in = [&] { return at >= begin && at < end; };
  const auto take_one = [&](const auto& step) {
    if (is_in()) {
      take(at, step);
      behind(at);
    }
    ++at;
  };
  for (const Step& step : program.steps) {
    if (at >= end) return;
    const auto* const repeat = std::get_if<RepeatStep>(&step);
    if (!repeat) {
      std::visit(
          [&](const auto& one) {
            if constexpr (!std::is_same_v<decltype(one), const RepeatStep&>) take_one(one);
          },
          step);
    } else if (repeat->takes_any_trip) {
      if (is_in()) {
        for_each_step(*repeat, [&](const auto& each) { take(at, each); });
        behind(at);
      }
      ++at;
    } else {
      const auto count = static_cast<uint32_t>(repeat->trip) * static_cast<uint32_t>(repeat->body.size());
      if (at + count <= begin)
        at += count;
      else
        for_each_step(*repeat, take_one);
    }
  }
}

}  // namespace fastjit::plan
