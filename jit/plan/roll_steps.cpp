// Rounds of steps of any kind: found by tokens, one a step, as loops of launches are (roll.cpp).
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "plan/repeat.h"
#include "plan/repeats.h"
#include "plan/roll.h"
#include "plan/share_slots.h"
#include "plan/work.h"
#include "support/hash_index.h"
#include "support/mix.h"

namespace fastjit::plan {

namespace {

constexpr int64_t kFewestSaved = 16;  // steps
constexpr uint32_t kMostByTurns = 4;  // rounds after which a hole has what it had

using Filling = RepeatStep::Filling;
using Column = RepeatStep::Column;
using support::mix;

bool may_repeat(const Step& step) {
  return std::visit([](const auto& each) { return std::is_constructible_v<RoundStep, decltype(each)>; }, step);
}

bool is_call(const Step& step) {
  return std::visit([](const auto& each) { return kHasCall<std::remove_cvref_t<decltype(each)>>; }, step);
}

bool has_number(const Step& step) {
  return std::visit([](const auto& each) { return kHasNumber<std::remove_cvref_t<decltype(each)>>; }, step);
}

/// Whether steps may be the same one of several rounds.
class Likeness {
 public:
  Likeness(const Program& program, const ir::Graph& graph) : program_(program), graph_(graph) {}

  bool alike(const Step& a, const Step& b) const {
    if (a.index() != b.index()) return false;
    return std::visit([&](const auto& x) { return like(x, std::get<std::remove_cvref_t<decltype(x)>>(b)); }, a);
  }

  uint64_t hash(const Step& step) const {
    return mix(step.index(), std::visit([this](const auto& each) { return hash_of_step(each); }, step));
  }

 private:
  bool like(SlotId a, SlotId b) const {
    if (a == kNoSlot || b == kNoSlot) return a == b;
    const Slot &x = program_.slots[a], &y = program_.slots[b];
    return x.dtype == y.dtype && x.sizes == y.sizes && x.strides == y.strides;
  }
  bool like(const std::vector<SlotId>& a, const std::vector<SlotId>& b) const {
    return std::ranges::equal(a, b, [this](SlotId x, SlotId y) { return like(x, y); });
  }
  bool like(const std::vector<KernelStep>& a, const std::vector<KernelStep>& b) const {
    return std::ranges::equal(a, b, plan::alike);
  }
  bool like(const KernelStep& a, const KernelStep& b) const { return plan::alike(a, b); }
  bool like(const ParallelStep& a, const ParallelStep& b) const { return like(a.launches, b.launches); }
  bool like(const ContractStep& a, const ContractStep& b) const {
    return a.kind == b.kind && a.rows_per_tile == b.rows_per_tile && like(a.operands, b.operands) &&
           like(a.result, b.result) && like(a.epilogue, b.epilogue);
  }
  bool like(const ExternStep& a, const ExternStep& b) const {
    const ir::ExternAttr &x = graph_.externs[a.external], &y = graph_.externs[b.external];
    return x.kind == y.kind && x.name == y.name && x.written == y.written && like(a.operands, b.operands) &&
           like(a.results, b.results);
  }
  bool like(const GuardStep& a, const GuardStep& b) const {
    return like(a.slot, b.slot) && a.sizes == b.sizes && a.strides == b.strides;
  }
  bool like(const FreeStep& a, const FreeStep& b) const { return like(a.slot, b.slot); }
  bool like(const OwnStep& a, const OwnStep& b) const { return like(a.slot, b.slot); }
  bool like(const auto& a, const auto& b) const { return &a == &b; }

  uint64_t hash_of_step(const auto& step) const {
    uint64_t hash = 0;
    for (const KernelStep& launch : launches_of(step)) hash = mix(hash, hash_of(launch));
    return hash;
  }
  uint64_t hash_of_step(const ExternStep& step) const {
    return std::hash<std::string>{}(graph_.externs[step.external].name);
  }

  const Program& program_;
  const ir::Graph& graph_;
};

/// All that is in one hole as the rounds go on.
struct Hole {
  enum class Kind : uint8_t { Number, Whole, Element } kind;
  std::vector<Filling> rounds;
};

Column column_of(const Hole& hole) {
  const std::vector<Filling>& rounds = hole.rounds;
  const auto trip = static_cast<int64_t>(rounds.size());
  const bool is_number = hole.kind == Hole::Kind::Number;
  const int64_t delta =
      is_number ? static_cast<int64_t>(rounds[1].id) - rounds[0].id : rounds[1].offset - rounds[0].offset;
  const Column walk{{rounds[0]}, 1, delta, is_number};
  int64_t round = 0;
  while (round < trip && walk.at(round) == rounds[static_cast<size_t>(round)]) ++round;
  if (round == trip) return walk;
  for (uint32_t turns = 1; turns <= kMostByTurns; ++turns) {
    size_t listed = rounds.size();
    while (listed > turns && rounds[listed - 1] == rounds[listed - 1 - turns]) --listed;
    if (2 * listed <= rounds.size()) return {{rounds.begin(), rounds.begin() + listed}, turns, 0, is_number};
  }
  return {rounds, 1, 0, is_number};
}

/// One RepeatStep of the steps of all its rounds.
class Maker {
 public:
  /// `round_of`: per slot the step with which the one round that names it begins.
  Maker(Program& program, const std::vector<uint32_t>& round_of, const Stretch& stretch)
      : program_(program), round_of_(round_of), stretch_(stretch) {}

  RepeatStep run() {
    made_.trip = stretch_.trip;
    for (uint32_t at = 0; at < stretch_.period; ++at) add_step(at);
    return std::move(made_);
  }

 private:
  uint32_t begin_of(size_t round) const { return stretch_.begin + static_cast<uint32_t>(round) * stretch_.period; }
  void add_step(uint32_t at);
  std::vector<Hole> holes_of(uint32_t at) const;
  void add(RoundStep step, const std::vector<Hole>& holes);
  void vary(const Hole& hole);
  bool is_alias_of_round(const Hole& hole) const;
  void make_alias(Hole& hole, bool is_freed);

  Program& program_;
  const std::vector<uint32_t>& round_of_;
  const Stretch stretch_;
  RepeatStep made_;
  uint32_t next_hole_ = 0;
  std::map<std::vector<SlotId>, SlotId> aliases_;  // the slots of all rounds -> the one in their place
  std::set<SlotId> current_;                       // of those: made in this round
};

std::vector<Hole> Maker::holes_of(uint32_t at) const {
  std::vector<Hole> holes;
  for (size_t round = 0; round < static_cast<size_t>(stretch_.trip); ++round) {
    Step& step = program_.steps[begin_of(round) + at];
    size_t next = 0;
    const auto note = [&](uint32_t id, const int64_t* offset) {
      work();
      if (round == 0) {
        const bool is_number = next == 0 && has_number(step);
        holes.push_back({is_number ? Hole::Kind::Number : offset ? Hole::Kind::Element : Hole::Kind::Whole, {}});
      }
      holes[next++].rounds.push_back({id, offset ? *offset : 0});
    };
    std::visit([&](auto& each) { for_each_hole(each, note); }, step);
  }
  return holes;
}

void Maker::add_step(uint32_t at) {
  std::vector<Hole> holes = holes_of(at);
  const Step& first = program_.steps[stretch_.begin + at];
  for (Hole& hole : holes)
    if (is_alias_of_round(hole)) make_alias(hole, std::holds_alternative<FreeStep>(first));
  add(*as_round_step(first), holes);
}

void Maker::add(RoundStep step, const std::vector<Hole>& holes) {
  size_t next = 0;
  const auto set = [&](uint32_t& id, int64_t*) { id = holes[next++].rounds[0].id; };
  std::visit([&](auto& each) { for_each_hole(each, set); }, step);
  made_.body.push_back(std::move(step));
  for (const Hole& hole : holes) vary(hole);
}

void Maker::vary(const Hole& hole) {
  const uint32_t number = next_hole_++;
  if (std::ranges::all_of(hole.rounds, [&](const Filling& each) { return each == hole.rounds[0]; })) return;
  Column column = column_of(hole);
  const auto found = std::ranges::find(made_.columns, column);
  made_.varying.push_back({number, static_cast<uint32_t>(found - made_.columns.begin())});
  if (found == made_.columns.end()) made_.columns.push_back(std::move(column));
}

/// Whether it holds an alias that nothing but its own round names.
bool Maker::is_alias_of_round(const Hole& hole) const {
  if (hole.kind != Hole::Kind::Whole) return false;
  for (size_t round = 0; round < hole.rounds.size(); ++round) {
    const SlotId slot = hole.rounds[round].id;
    if (program_.slots[slot].kind != SlotKind::Alias || round_of_[slot] != begin_of(round)) return false;
  }
  return true;
}

/// One slot in place of those, which each round makes before it needs it.
void Maker::make_alias(Hole& hole, bool is_freed) {
  std::vector<SlotId> slots;
  Hole base{Hole::Kind::Element, {}};
  for (const Filling& each : hole.rounds) {
    slots.push_back(each.id);
    base.rounds.push_back({program_.slots[each.id].base, program_.slots[each.id].offset});
  }
  const auto [found, fresh] = aliases_.try_emplace(std::move(slots), static_cast<SlotId>(program_.slots.size()));
  if (fresh) program_.slots.push_back(program_.slots[hole.rounds[0].id]);
  const SlotId slot = found->second;
  std::ranges::fill(hole.rounds, Filling{slot, 0});
  if (is_freed)
    current_.erase(slot);
  else if (current_.insert(slot).second)
    add(AliasStep{slot, base.rounds[0].id, base.rounds[0].offset}, {hole, base});
}

class StepRoller {
 public:
  StepRoller(Program& program, const ir::Graph& graph) : program_(program), likeness_(program, graph) {}

  void run() {
    const auto has_call = [this](uint32_t begin, uint32_t end) {
      return std::any_of(program_.steps.begin() + begin, program_.steps.begin() + end, is_call);
    };
    const std::vector<Stretch> found = stretches(tokens(), kFewestSaved, has_call);
    if (found.empty()) return;
    share_slots(program_);
    rebuild(found, rounds_of_slots(found));
    drop_unused_slots(program_);
  }

 private:
  /// One a step: alike ones have the number of the first of them.
  std::vector<uint32_t> tokens() const {
    std::vector<uint32_t> tokens;
    support::HashIndex by_hash;
    for (uint32_t i = 0; i < program_.steps.size(); ++i) {
      const Step& step = program_.steps[i];
      tokens.push_back(i);
      if (!may_repeat(step)) continue;
      work();
      const uint64_t hash = likeness_.hash(step);
      const auto is_it = [&](uint32_t at) { return likeness_.alike(program_.steps[at], step); };
      if (const uint32_t found = by_hash.find(hash, is_it); found != support::HashIndex::kNone)
        tokens.back() = found;
      else
        by_hash.add(hash, i);
    }
    return tokens;
  }

  /// Per slot the first step of the one round that names it; kNoSlot: it is named elsewhere too.
  std::vector<uint32_t> rounds_of_slots(const std::vector<Stretch>& found) {
    constexpr uint32_t kNone = kNoSlot - 1;
    std::vector<uint32_t> rounds(program_.slots.size(), kNone);
    auto next = found.begin();
    for (uint32_t i = 0; i < program_.steps.size(); ++i) {
      if (next != found.end() && i == next->end()) ++next;
      const bool is_in = next != found.end() && i >= next->begin;
      const uint32_t round = is_in ? i - (i - next->begin) % next->period : kNoSlot;
      const auto note = [&](SlotId id, int64_t*) {
        rounds[id] = rounds[id] == kNone || rounds[id] == round ? round : kNoSlot;
      };
      std::visit([&](auto& each) { for_each_slot(each, note); }, program_.steps[i]);
    }
    for (const SlotId id : program_.outputs) rounds[id] = kNoSlot;
    return rounds;
  }

  void rebuild(const std::vector<Stretch>& found, const std::vector<uint32_t>& rounds) {
    std::vector<Step> steps;
    uint32_t at = 0;
    const auto keep = [&](uint32_t end) {
      for (; at < end; ++at) steps.push_back(std::move(program_.steps[at]));
    };
    for (const Stretch& stretch : found) {
      keep(stretch.begin);
      steps.emplace_back(Maker(program_, rounds, stretch).run());
      at = stretch.end();
    }
    keep(static_cast<uint32_t>(program_.steps.size()));
    program_.steps = std::move(steps);
  }

  Program& program_;
  const Likeness likeness_;
};

}  // namespace

void roll_steps(Program& program, const ir::Graph& graph) {
  if (program.sized.empty()) StepRoller(program, graph).run();
}

}  // namespace fastjit::plan
