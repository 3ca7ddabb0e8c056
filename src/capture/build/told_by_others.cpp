#include "capture/build/told_by_others.h"

#include <span>

#include "capture/record/loops_back.h"

namespace fastjit::capture {

ToldByOthers::ToldByOthers(const Trace& trace) {
  const auto tells = [&](const PythonLoop& loop, uint32_t of_all) {  // all but the last, which may be another
    for (uint32_t round = of_all + 1; round + 1 < loop.rounds(); ++round)
      for (uint32_t event = loop.begins[round].event; event < loop.begins[round + 1].event; ++event)
        by_.emplace(event, in_round(loop, event, round, of_all));
  };
  for (const PythonLoop& back : trace.loops) {
    if (back.back_of == kNone) continue;
    tells(trace.loops[back.back_of], 1);
    tells(back, kSameBack);
    for (const Shares& shares : back.shares)
      for (const uint32_t event : std::span(shares.events).subspan(1)) by_.emplace(event, shares.events[0]);
  }
  for (const PythonLoop& loop : trace.loops)
    if (is_left_out(trace, loop)) tells(loop, 1);
  for (const InstructionUse<RoundsUse>& use : trace.rounds_uses)
    if (trace.loops[use.told.loop].back_of != kNone) lists_.insert(use.events.begin(), use.events.end());
}

uint32_t ToldByOthers::by(uint32_t event) const {
  const auto found = by_.find(event);
  return found == by_.end() ? kNone : found->second;
}

}  // namespace fastjit::capture
