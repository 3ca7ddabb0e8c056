#include "plan/round_steps.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "plan/loop_step.h"
#include "plan/repeat.h"

namespace fastjit::plan {

namespace {

class Writer {
 public:
  explicit Writer(const RoundSlots& slots)
      : slots_(slots), program_(slots.body.program), mapped_(program_.slots.size(), kNoSlot) {
    for (const Body::Sliding& each : slots.body.sliding) sliding_[each.alias] = &each.offsets;
  }

  SizedRepeat run() {
    made_.trip = slots_.attr.trip;
    made_.step.trip = made_.trip.hint();
    made_.launches = slots_.body.dims;
    for (const Step& step : program_.steps) {
      const auto* free = std::get_if<FreeStep>(&step);
      if (!free || free->slot != kNoSlot) add(*as_round_step(step));
    }
    for (const SlotId alias : renewed_) made_.step.body.emplace_back(FreeStep{slot(alias)});
    hand_on();
    find_columns();
    return std::move(made_);
  }

 private:
  /// Of a carried value each round makes a tensor for the next one. What only counts in the last round stays where all
  /// put it.
  void hand_on() {
    const ir::LoopAttr& attr = slots_.attr;
    for (uint32_t i = 0; i < program_.outputs.size(); ++i) {
      const SlotId made = slot(program_.outputs[i]);
      if (i >= attr.carried) {
        made_.after.push_back({made, slots_.finals[attr.placed + i]});
        continue;
      }
      made_.before.push_back({slots_.operands[i], slots_.finals[i], true});
      made_.step.body.emplace_back(HandStep{made, slots_.finals[i]});
    }
  }

  SlotId input(uint32_t index) const {
    return index < slots_.attr.carried ? slots_.finals[index] : slots_.operands[index];
  }

  SlotId slot(SlotId id) {
    if (mapped_[id] != kNoSlot) return mapped_[id];
    const Slot& like = program_.slots[id];
    switch (like.kind) {
      case SlotKind::Input:
        return mapped_[id] = input(like.index);
      case SlotKind::Temp:
        return mapped_[id] = slots_.part(id, slots_.body.places[id]);
      case SlotKind::Alias: {
        const SlotId base = slot(like.base);
        return mapped_[id] = slots_.make(id, base, slots_.body.places[id]);
      }
      default:
        return mapped_[id] = slots_.make(id, kNoSlot, 0);
    }
  }

  /// Whether the alias is the same tensor in all rounds.
  bool is_fixed(SlotId alias) const {
    const Slot& base = program_.slots[program_.slots[alias].base];
    return !sliding_.contains(alias) && base.kind == SlotKind::Input && base.index >= slots_.attr.carried;
  }

  /// The alias is made in each round before it is read there.
  void renew(SlotId alias) {
    const SlotId base = program_.slots[alias].base;
    if (program_.slots[base].kind == SlotKind::Alias) renew(base);
    if (is_fixed(alias) || !renewed_.insert(alias).second) return;
    const auto slides = sliding_.find(alias);
    const Dim first = slides == sliding_.end() ? slots_.body.places[alias] : (*slides->second)[0];
    const Dim delta = slides == sliding_.end() ? Dim(0) : (*slides->second)[1] - first;
    aliases_.emplace(made_.step.body.size(), std::pair(first, delta));
    made_.step.body.emplace_back(AliasStep{slot(alias), slot(base), first.hint()});
  }

  void add(RoundStep step) {
    const auto* free = std::get_if<FreeStep>(&step);
    if (free && program_.slots[free->slot].kind == SlotKind::Alias && renewed_.erase(free->slot) == 0) return;
    const auto renew_alias = [&](SlotId id, int64_t*) {
      if (program_.slots[id].kind == SlotKind::Alias && !free) renew(id);
    };
    std::visit([&](auto& each) { for_each_slot(each, renew_alias); }, step);
    const auto rename = [&](SlotId& id, int64_t*) { id = slot(id); };
    std::visit([&](auto& each) { for_each_slot(each, rename); }, step);
    if (auto* call = std::get_if<ExternStep>(&step)) call->external = slots_.body.calls[call->external];
    made_.step.body.push_back(std::move(step));
  }

  /// What lies further on in each round, and aliases that begin where sizes say.
  void find_columns() {
    std::map<std::pair<uint32_t, uint32_t>, std::pair<Dim, Dim>> moving;  // of launches: (first, delta)
    for (const auto& [of, offsets] : slots_.body.moving)
      moving[{of.launch, of.operand}] = {offsets[0], offsets[1] - offsets[0]};
    uint32_t hole = 0, launch = 0;
    for (size_t at = 0; at < made_.step.body.size(); ++at) {
      std::map<const int64_t*, std::pair<Dim, Dim>> places;
      const auto note_launches = [&](const auto& each) {
        for (const KernelStep& one : launches_of(each)) {
          for (uint32_t k = 0; k < one.operands.size(); ++k)
            if (const auto found = moving.find({launch, k}); found != moving.end())
              places[&one.offsets[k]] = found->second;
          ++launch;
        }
      };
      RoundStep& step = made_.step.body[at];
      std::visit(note_launches, step);
      const auto alias = aliases_.find(at);
      if (alias != aliases_.end()) places[&std::get<AliasStep>(step).offset] = alias->second;
      const auto* const guard = std::get_if<GuardStep>(&step);
      const Dim guards = slots_.body.guards;
      const auto take = [&](uint32_t& id, int64_t* offset) {
        if (guard && &id == &guard->guard) add(hole, {{{id, 0}}, 1, guards.hint(), true}, 0, guards);
        if (const auto found = offset ? places.find(offset) : places.end(); found != places.end())
          add_column(hole, id, *offset, found->second.first, found->second.second);
        ++hole;
      };
      std::visit([&](auto& each) { for_each_hole(each, take); }, step);
    }
  }

  void add_column(uint32_t hole, SlotId id, int64_t& offset, Dim first, Dim delta) {
    offset = first.hint();
    if (!first.is_symbolic() && identical(delta, 0)) return;
    add(hole, {{{id, offset}}, 1, delta.hint(), false}, first, delta);
  }

  void add(uint32_t hole, RepeatStep::Column column, Dim first, Dim delta) {
    made_.step.varying.push_back({hole, static_cast<uint32_t>(made_.step.columns.size())});
    made_.step.columns.push_back(std::move(column));
    made_.places.push_back(first);
    made_.deltas.push_back(delta);
  }

  const RoundSlots& slots_;
  const Program& program_;
  SizedRepeat made_;
  std::vector<SlotId> mapped_;  // per slot of the body
  std::map<SlotId, const std::vector<Dim>*> sliding_;
  std::set<SlotId> renewed_;                       // aliases of the body that this round has made
  std::map<size_t, std::pair<Dim, Dim>> aliases_;  // step of a round -> where its alias begins, and how far it goes
};

}  // namespace

SizedRepeat repeat_step(const RoundSlots& slots) { return Writer(slots).run(); }

bool moves_evenly(const ir::LoopAttr& attr, const Body& body) {
  if (!body.has_calls) return takes_turns(attr, body);
  const auto is_even = [](const auto& each) {
    const std::vector<Dim>& offsets = each.offsets;
    const Dim delta = offsets[1] - offsets[0];
    for (size_t round = 0; round < offsets.size(); ++round)
      if (!identical(offsets[round], offsets[0] + static_cast<int64_t>(round) * delta)) return false;
    return true;
  };
  return std::ranges::all_of(body.moving, is_even) && std::ranges::all_of(body.sliding, is_even);
}

}  // namespace fastjit::plan
