#include "plan/share_slots.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "plan/repeat.h"

namespace fastjit::plan {

namespace {

/// Every place in the steps that names a slot.
template <class Take>
void for_each_slot_of(Program& program, Take take) {
  const auto take_all = [&](auto& step) { for_each_slot(step, [&](SlotId& id, int64_t*) { take(id); }); };
  for (Step& step : program.steps) {
    std::visit(take_all, step);
    auto* repeat = std::get_if<RepeatStep>(&step);
    if (!repeat) continue;
    for (RoundStep& each : repeat->body) std::visit(take_all, each);
    for (RepeatStep::Column& column : repeat->columns)
      for (RepeatStep::Filling& filling : column.listed)
        if (!column.is_number) take(filling.id);
  }
}

class Sharer {
 public:
  explicit Sharer(Program& program) : program_(program), names_(program.slots.size(), kNoSlot) {}

  void run() {
    find_brief();
    for (Step& step : program_.steps) {
      std::visit([&](auto& each) { for_each_slot(each, [this](SlotId& id, int64_t*) { id = name(id); }); }, step);
      const auto* free = std::get_if<FreeStep>(&step);
      if (free && free->slot != kNoSlot && is_brief_[free->slot]) left_[shape(free->slot)].insert(free->slot);
    }
    for (Verdict& verdict : program_.verdicts)
      if (verdict.slot != kNoSlot && names_[verdict.slot] != kNoSlot) verdict.slot = names_[verdict.slot];
  }

 private:
  using Shape = std::tuple<SlotKind, ir::DType, std::vector<int64_t>, std::vector<int64_t>>;
  using Memory = std::tuple<Shape, SlotId, int64_t>;

  Shape shape(SlotId id) const {
    const Slot& slot = program_.slots[id];
    return {slot.kind, slot.dtype, slot.sizes, slot.strides};
  }

  /// A slot is brief if one FreeStep ends it, and all between is in steps that may stand in a round.
  void find_brief() {
    is_brief_.assign(program_.slots.size(), false);
    for (SlotId id = 0; id < program_.slots.size(); ++id) {
      const Slot& slot = program_.slots[id];
      is_brief_[id] = slot.brief && (slot.kind == SlotKind::Tensor || slot.kind == SlotKind::Extern);
    }
    for (Step& step : program_.steps)
      if (std::holds_alternative<LoopStep>(step) || std::holds_alternative<GuardStep>(step) ||
          std::holds_alternative<NumberStep>(step))
        std::visit([&](auto& each) { for_each_slot(each, [this](SlotId id, int64_t*) { is_brief_[id] = false; }); },
                   step);
  }

  /// What the slot is called from its first step on.
  SlotId name(SlotId id) {
    if (names_[id] == kNoSlot) names_[id] = find_name(id);
    return names_[id];
  }

  SlotId find_name(SlotId id) {
    Slot& slot = program_.slots[id];
    if (slot.kind == SlotKind::Temp) return places_.try_emplace({shape(id), kNoSlot, slot.offset}, id).first->second;
    if (slot.kind == SlotKind::Alias) {  // it is freed with its base
      slot.base = name(slot.base);
      return places_.try_emplace({shape(id), slot.base, slot.offset}, id).first->second;
    }
    if (!is_brief_[id]) return id;
    const auto left = left_.find(shape(id));
    if (left == left_.end() || left->second.empty()) return id;
    return left->second.extract(left->second.begin()).value();
  }

  Program& program_;
  std::vector<SlotId> names_;
  std::vector<bool> is_brief_;
  std::map<Shape, std::set<SlotId>> left_;  // slots that were freed
  std::map<Memory, SlotId> places_;
};

}  // namespace

void share_slots(Program& program) { Sharer(program).run(); }

void drop_unused_slots(Program& program) {
  std::vector<SlotId> kept(program.slots.size(), kNoSlot);
  const std::function<void(SlotId)> keep = [&](SlotId id) {
    kept[id] = id;
    if (program.slots[id].kind == SlotKind::Alias) keep(program.slots[id].base);
  };
  for_each_slot_of(program, keep);
  std::ranges::for_each(program.outputs, keep);
  std::vector<Slot> slots;
  for (SlotId id = 0; id < kept.size(); ++id) {
    if (kept[id] == kNoSlot) continue;
    kept[id] = static_cast<SlotId>(slots.size());
    slots.push_back(std::move(program.slots[id]));
  }
  for (Slot& slot : slots)
    if (slot.kind == SlotKind::Alias) slot.base = kept[slot.base];
  program.slots = std::move(slots);
  const auto move = [&](SlotId& id) { id = kept[id]; };
  for_each_slot_of(program, move);
  std::ranges::for_each(program.outputs, move);
  for (Verdict& verdict : program.verdicts)
    if (verdict.slot != kNoSlot) move(verdict.slot);
  number_tensors(program);
}

void number_tensors(Program& program) {
  program.tensors = 0;
  for (Slot& slot : program.slots)
    if (slot.kind != SlotKind::Input && slot.kind != SlotKind::Temp) slot.index = program.tensors++;
}

}  // namespace fastjit::plan
