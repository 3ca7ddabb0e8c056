#include "plan/loop_step.h"

#include <map>
#include <optional>

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

  LoopStep run() {
    LoopStep step;
    step.trip = slots_.attr.trip;
    step.body = slots_.body.launches;
    std::vector<std::vector<Place>> columns;
    std::map<std::pair<uint32_t, uint32_t>, const std::vector<int64_t>*> moving;
    for (const Body::Moving& each : slots_.body.moving) moving[{each.of.launch, each.of.operand}] = &each.offsets;
    for (uint32_t launch = 0; launch < step.body.size(); ++launch)
      for (uint32_t k = 0; k < step.body[launch].operands.size(); ++k) {
        KernelStep& of = step.body[launch];
        const auto moves = moving.find({launch, k});
        std::vector<Place> places;
        for (int64_t round = 0; round < step.trip; ++round) {
          work();
          Place place = where(of.operands[k], round);
          place.offset += moves == moving.end() ? of.offsets[k] : (*moves->second)[static_cast<size_t>(round)];
          places.push_back(place);
        }
        of.operands[k] = places[0].slot;
        of.offsets[k] = places[0].offset;
        add_places(step, {launch, k}, std::move(places), columns);
      }
    fill_table(step, columns);
    return step;
  }

 private:
  /// The first element of the body's slot in this round.
  Place where(SlotId id, int64_t round) {
    const Slot& slot = program_.slots[id];
    if (slot.kind == SlotKind::Input) return input(slot.index, round);
    if (slot.kind == SlotKind::Temp) {
      if (own_[id] == kNoSlot) own_[id] = slots_.part(slot, slot.offset);
      return {own_[id], 0};
    }
    const uint32_t which = outputs_.at(id);
    return which < slots_.attr.carried ? carried(which, round) : Place{slots_.finals[which + slots_.attr.placed], 0};
  }

  Place input(uint32_t index, int64_t round) {
    const ir::LoopAttr& attr = slots_.attr;
    const uint32_t single = attr.carried + attr.placed + attr.fixed;
    if (index >= single) return slots_.operands[single + static_cast<size_t>((index - single) * attr.trip + round)];
    return index < attr.carried && round > 0 ? carried(index, round - 1) : slots_.operands[index];
  }

  /// Where a round leaves a carried value: the last one where it is final, those before by turns.
  Place carried(uint32_t which, int64_t round) {
    if ((slots_.attr.trip - 1 - round) % 2 == 0) return {slots_.finals[which], 0};
    if (spare_[which] == kNoSlot)
      spare_[which] = slots_.part(program_.slots[program_.outputs[which]], slots_.body.spare[which]);
    return {spare_[which], 0};
  }

  const LoopSlots& slots_;
  const Program& program_;
  std::map<SlotId, uint32_t> outputs_;  // slot of an output -> which
  std::vector<SlotId> spare_, own_;     // per carried value; per slot of the body
};

}  // namespace

void add_places(LoopStep& step, LoopStep::Operand of, std::vector<Place> places,
                std::vector<std::vector<Place>>& columns) {
  const int64_t delta = places.size() > 1 ? places[1].offset - places[0].offset : 0;
  bool walks = true;
  for (size_t round = 1; round < places.size() && walks; ++round)
    walks = places[round] == Place{places[0].slot, places[0].offset + static_cast<int64_t>(round) * delta};
  if (!walks) {
    step.jumps.push_back(of);
    columns.push_back(std::move(places));
  } else if (delta != 0) {
    step.walks.push_back({of, delta});
  }
}

void fill_table(LoopStep& step, const std::vector<std::vector<Place>>& columns) {
  for (size_t round = 0; round < static_cast<size_t>(step.trip); ++round)
    for (const std::vector<Place>& column : columns) step.table.push_back(column[round]);
}

LoopStep loop_step(const LoopSlots& slots) { return Installer(slots).run(); }

}  // namespace fastjit::plan
