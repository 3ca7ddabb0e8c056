// What of a program follows from sizes.
#include <algorithm>
#include <map>

#include "plan/program.h"

namespace fastjit::plan {

void settle_launches(Program& program, const PlanOptions& options) {
  program.scratch_bytes = 0;
  for_each_launch(program, [&](KernelStep& step) {
    const KernelPlan& plan = program.kernels[step.kernel];
    cut(plan, step, options);
    const int64_t blocks = !options.cuda ? 1 : step.grid.shared_bytes > 0 ? 0 : step.grid.blocks;
    const int64_t slots = static_cast<int64_t>(plan.scratch.size()) * blocks;
    program.scratch_bytes = std::max(program.scratch_bytes, step.scratch_stride * slots);
  });
}

void settle_trips(Program& program) {
  for (Step& step : program.steps) {
    auto* loop = std::get_if<LoopStep>(&step);
    if (!loop || loop->turns.empty()) continue;
    loop->table.clear();
    for (int64_t round = 0; round < loop->trip; ++round)
      for (const LoopStep::Turn& turn : loop->turns) {
        const bool is_first = round == 0 && turn.first.slot != kNoSlot;
        loop->table.push_back(is_first ? turn.first : (loop->trip - 1 - round) % 2 == 0 ? turn.last : turn.other);
      }
    set_round(*loop, 0, loop->body);
  }
}

/// The offset of one of three places for each turn.
static int64_t* turn_place(LoopStep& loop, uint32_t index) {
  LoopStep::Turn& turn = loop.turns[index / 3];
  return &(index % 3 == 0 ? turn.first : index % 3 == 1 ? turn.last : turn.other).offset;
}

std::vector<int64_t*> places_of_sizes(Program& program) {
  using Of = SizedNumber::Of;
  std::vector<KernelStep*> launches;
  std::map<uint32_t, LoopStep*> loops;  // by their first launch
  std::vector<GuardStep*> guards;
  std::vector<RepeatStep*> repeats;
  for (Step& step : program.steps) {
    if (auto* guard = std::get_if<GuardStep>(&step)) guards.push_back(guard);
    if (auto* repeat = std::get_if<RepeatStep>(&step)) repeats.push_back(repeat);
  }
  for_each_launch(program, [&](KernelStep& step) { launches.push_back(&step); });
  uint32_t launch = 0;
  for (Step& step : program.steps) {
    if (auto* loop = std::get_if<LoopStep>(&step)) loops[launch] = loop;
    launch += launches_in(step);
    if (const auto* repeat = std::get_if<RepeatStep>(&step))
      for (const RoundStep& each : repeat->body)
        launch += static_cast<uint32_t>(std::visit([](const auto& one) { return launches_of(one).size(); }, each));
  }
  std::vector<int64_t*> places;
  for (const auto& [of, at, index, expr] : program.sized) {
    const auto place = [&]() -> int64_t* {
      switch (of) {
        case Of::SlotSize:
          return &program.slots[at].sizes[index];
        case Of::SlotStride:
          return &program.slots[at].strides[index];
        case Of::SlotOffset:
          return &program.slots[at].offset;
        case Of::LaunchSize:
          return &launches[at]->sizes[index];
        case Of::LaunchStride:
          return &launches[at]->strides[index];
        case Of::LaunchOffset:
          return &launches[at]->offsets[index];
        case Of::LaunchBlock:
          return &launches[at]->block;
        case Of::LaunchScratch:
          return &launches[at]->scratch_stride;
        case Of::LoopDelta:
          return &loops.at(at)->walks[index].delta;
        case Of::LoopTrip:
          return &loops.at(at)->trip;
        case Of::LoopPlace:
          return loops.at(at)->turns.empty() ? &loops.at(at)->table[index].offset : turn_place(*loops.at(at), index);
        case Of::RepeatTrip:
          return &repeats[at]->trip;
        case Of::RepeatDelta:
          return &repeats[at]->columns[index].delta;
        case Of::RepeatPlace:
          return &repeats[at]->columns[index].listed[0].offset;
        case Of::GuardSize:
          return &guards[at]->sizes[index];
        case Of::GuardStride:
          return &guards[at]->strides[index];
        case Of::GuardOffset:
          return &guards[at]->offset;
        case Of::ArenaBytes:
          return &program.arena_bytes;
      }
      return nullptr;
    };
    places.push_back(place());
  }
  return places;
}

}  // namespace fastjit::plan
