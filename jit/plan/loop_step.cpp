#include "plan/loop_step.h"

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>

#include "plan/work.h"

namespace fastjit::plan {

namespace {

class Installer {
 public:
  explicit Installer(const LoopSlots& slots) : slots_(slots), program_(slots.body.program) {
    for (SlotId slot = 0; slot < program_.slots.size(); ++slot)
      if (program_.slots[slot].kind == SlotKind::Tensor) outputs_[slot] = 0;
    for (uint32_t i = 0; i < program_.outputs.size(); ++i) outputs_[program_.outputs[i]] = i;
    spare_.resize(slots.attr.carried, kNoSlot);
    own_.resize(program_.slots.size(), kNoSlot);
  }

  SizedLoop run() {
    SizedLoop loop{{}, slots_.attr.trip, slots_.body.dims, {}, {}};
    LoopStep& step = loop.step;
    step.trip = loop.trip.hint();
    step.body = slots_.body.launches;
    Columns columns;
    std::map<std::pair<uint32_t, uint32_t>, const std::vector<Dim>*> moving;
    for (const Body::Moving& each : slots_.body.moving) moving[{each.of.launch, each.of.operand}] = &each.offsets;
    for (uint32_t launch = 0; launch < step.body.size(); ++launch)
      for (uint32_t k = 0; k < step.body[launch].operands.size(); ++k) {
        SlotId& slot = step.body[launch].operands[k];
        Dim& offset = loop.body[launch].offsets[k];
        const auto moves = moving.find({launch, k});
        std::vector<SizedPlace> places;
        places.reserve(static_cast<size_t>(step.trip));
        for (int64_t round = 0; round < step.trip; ++round) {
          work();
          SizedPlace place = where(slot, round);
          place.offset += moves == moving.end() ? offset : (*moves->second)[static_cast<size_t>(round)];
          places.push_back(place);
        }
        slot = places[0].slot;
        offset = places[0].offset;
        step.body[launch].offsets[k] = offset.hint();
        if (!add_places(loop, {launch, k}, std::move(places), columns))
          throw std::runtime_error("planner: what rounds hand on does not lie by turns");
      }
    fill_table(loop, columns);
    return loop;
  }

 private:
  /// The first element of the body's slot in this round.
  SizedPlace where(SlotId id, int64_t round) {
    const Slot& slot = program_.slots[id];
    if (slot.kind == SlotKind::Input) return input(slot.index, round);
    if (slot.kind == SlotKind::Temp) {
      if (own_[id] == kNoSlot) own_[id] = slots_.part(id, slots_.body.places[id]);
      return {own_[id], 0};
    }
    const uint32_t which = outputs_.at(id);
    return which < slots_.attr.carried ? carried(which, round)
                                       : SizedPlace{slots_.finals[which + slots_.attr.placed], 0};
  }

  SizedPlace input(uint32_t index, int64_t round) {
    const ir::LoopAttr& attr = slots_.attr;
    const uint32_t single = attr.carried + attr.placed + attr.fixed;
    if (index >= single)
      return slots_.operands[single + static_cast<size_t>((index - single) * attr.trip.hint() + round)];
    return index < attr.carried && round > 0 ? carried(index, round - 1) : slots_.operands[index];
  }

  /// Where a round leaves a carried value: the last one where it is final, those before by turns.
  SizedPlace carried(uint32_t which, int64_t round) {
    if ((slots_.attr.trip.hint() - 1 - round) % 2 == 0) return {slots_.finals[which], 0};
    if (spare_[which] == kNoSlot) spare_[which] = slots_.part(program_.outputs[which], slots_.body.spare[which]);
    return {spare_[which], 0};
  }

  const LoopSlots& slots_;
  const Program& program_;
  std::map<SlotId, uint32_t> outputs_;  // slot of an output -> which
  std::vector<SlotId> spare_, own_;     // per carried value; per slot of the body
};

}  // namespace

/// Of a jump of a loop of any number of rounds, which has three at least.
static std::optional<std::array<SizedPlace, 3>> turn_of(const std::vector<SizedPlace>& places) {
  const auto is_at = [](const SizedPlace& a, const SizedPlace& b) {
    return a.slot == b.slot && identical(a.offset, b.offset);
  };
  const size_t count = places.size();
  if (count < 3) return std::nullopt;
  std::array<SizedPlace, 3> turn{places[0], places[count - 1], places[count - 2]};
  const auto usual = [&](size_t round) { return turn[(count - 1 - round) % 2 == 0 ? 1 : 2]; };
  for (size_t round = 1; round < count; ++round)
    if (!is_at(places[round], usual(round))) return std::nullopt;
  if (is_at(places[0], usual(0))) turn[0] = {};
  return turn;
}

bool add_places(SizedLoop& loop, LoopStep::Operand of, std::vector<SizedPlace> places, Columns& columns) {
  const Dim delta = places.size() > 1 ? places[1].offset - places[0].offset : 0;
  Dim expected = places[0].offset + delta;
  const auto walks_to = [&](const SizedPlace& place) {
    return place.slot == places[0].slot && identical(place.offset, expected);
  };
  size_t round = 1;
  for (; round < places.size() && walks_to(places[round]); ++round) expected += delta;
  if (round < places.size()) {
    loop.step.jumps.push_back(of);
    if (loop.trip.is_symbolic()) {
      const auto turn = turn_of(places);
      if (!turn) return false;
      const auto& [first, last, other] = *turn;
      const auto place = [](const SizedPlace& sized) { return Place{sized.slot, sized.offset.hint()}; };
      loop.step.turns.push_back({place(first), place(last), place(other)});
      for (const SizedPlace& each : *turn) loop.places.push_back(each.offset);
    }
    columns.push_back(std::move(places));
  } else if (!identical(delta, 0)) {
    loop.step.walks.push_back({of, delta.hint()});
    loop.deltas.push_back(delta);
  }
  return true;
}

void fill_table(SizedLoop& loop, const Columns& columns) {
  for (size_t round = 0; round < static_cast<size_t>(loop.step.trip); ++round)
    for (const std::vector<SizedPlace>& column : columns) {
      loop.step.table.push_back({column[round].slot, column[round].offset.hint()});
      if (!loop.trip.is_symbolic()) loop.places.push_back(column[round].offset);
    }
}

LoopSlots slots_apart(const ir::LoopAttr& attr, const Body& body) {
  LoopSlots slots{attr, body, {}, {}, {}};
  const auto next = std::make_shared<SlotId>(0);
  for (size_t i = 0; i < attr.operands.size(); ++i) slots.operands.push_back({(*next)++, 0});
  for (uint32_t i = 0; i < attr.finals(); ++i) slots.finals.push_back((*next)++);
  slots.part = [next](SlotId, Dim) { return (*next)++; };
  return slots;
}

bool takes_turns(const ir::LoopAttr& attr, const Body& body) {
  try {
    static_cast<void>(loop_step(slots_apart(attr, body)));
  } catch (const std::runtime_error&) {
    return false;
  }
  return true;
}

SizedLoop loop_step(const LoopSlots& slots) { return Installer(slots).run(); }

}  // namespace fastjit::plan
