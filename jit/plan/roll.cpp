#include "plan/roll.h"

#include <algorithm>

#include "plan/loop_step.h"
#include "plan/repeat.h"
#include "plan/repeats.h"
#include "plan/work.h"
#include "support/hash_index.h"
#include "support/mix.h"

namespace fastjit::plan {

namespace {

constexpr int64_t kFewestSaved = 8;  // steps

using Of = SizedNumber::Of;

bool is_of_launch(Of of) {
  return of == Of::LaunchSize || of == Of::LaunchStride || of == Of::LaunchOffset || of == Of::LaunchBlock ||
         of == Of::LaunchScratch || of == Of::LoopTrip || of == Of::LoopDelta || of == Of::LoopPlace;
}

bool is_split(const KernelStep& launch) { return launch.units > launch.grain; }

/// Tokens, one a launch that may be in a loop and one a step that may not; repeats of them; loops in their place.
class Roller {
 public:
  explicit Roller(Program& program) : program_(program) {}

  void run() {
    list_items();
    chosen_ = stretches(tokens_, kFewestSaved, [](uint32_t, uint32_t) { return true; });
    if (chosen_.empty()) return;
    rebuild();
    settle_numbers();
  }

 private:
  struct Item {
    uint32_t step;
    KernelStep* launch = nullptr;  // that may be in a loop
    uint32_t at = 0;               // of the program's launches
  };
  void list_items();
  void add_item(Item item);
  uint64_t hash_of(const Item& item) const;
  bool alike(const Item& a, const Item& b) const;
  bool same_numbers(uint32_t a, uint32_t b) const;
  void rebuild();
  uint32_t keep_items(uint32_t from, uint32_t end);
  LoopStep loop_of(const Stretch& loop) const;
  void note_launch(uint32_t at) { kept_launches_[at] = next_launch_++; }
  void settle_numbers();

  Program& program_;
  std::vector<Item> items_;
  std::vector<uint32_t> tokens_;  // per item
  support::HashIndex tokens_by_hash_;
  std::vector<std::vector<SizedNumber>> numbers_;  // per launch; empty where no size is a symbol
  std::vector<Stretch> chosen_;
  std::vector<Step> steps_;
  std::vector<uint32_t> kept_launches_;  // per launch: which it is now
  uint32_t next_launch_ = 0;
};

void Roller::list_items() {
  uint32_t launches = 0;
  for_each_launch(std::as_const(program_), [&](const KernelStep&) { ++launches; });
  kept_launches_.assign(launches, support::HashIndex::kNone);
  if (!program_.sized.empty()) numbers_.resize(launches);
  for (const SizedNumber& number : program_.sized)
    if (is_of_launch(number.of)) numbers_[number.at].push_back(number);
  uint32_t launch = 0;
  for (uint32_t i = 0; i < program_.steps.size(); ++i) {
    Step& step = program_.steps[i];
    auto* parallel = std::get_if<ParallelStep>(&step);
    if (auto* kernel = std::get_if<KernelStep>(&step)) {
      add_item({i, kernel, launch++});
    } else if (parallel && std::ranges::none_of(parallel->launches, is_split)) {
      for (KernelStep& each : parallel->launches) add_item({i, &each, launch++});
    } else {
      add_item({i, nullptr, launch});
      launch += launches_in(step);
    }
  }
}

/// Alike items have the number of the first of them.
void Roller::add_item(Item item) {
  const auto number = static_cast<uint32_t>(items_.size());
  items_.push_back(item);
  tokens_.push_back(number);
  if (!item.launch) return;
  work(item.launch->operands.size());
  const uint64_t hash = hash_of(item);
  const uint32_t found = tokens_by_hash_.find(hash, [&](uint32_t at) { return alike(items_[at], item); });
  if (found != support::HashIndex::kNone)
    tokens_.back() = found;
  else
    tokens_by_hash_.add(hash, number);
}

uint64_t Roller::hash_of(const Item& item) const {
  uint64_t hash = plan::hash_of(*item.launch);
  if (!numbers_.empty())
    for (const SizedNumber& number : numbers_[item.at]) hash = support::mix(hash, number.expr);
  return hash;
}

bool Roller::alike(const Item& a, const Item& b) const {
  return plan::alike(*a.launch, *b.launch) && (numbers_.empty() || same_numbers(a.at, b.at));
}

/// A body has one set of numbers for all rounds. Offsets that depend on sizes stay out of loops.
bool Roller::same_numbers(uint32_t a, uint32_t b) const {
  return std::ranges::equal(numbers_[a], numbers_[b], [](const SizedNumber& x, const SizedNumber& y) {
    return x.of == y.of && x.index == y.index && x.expr == y.expr && x.of != Of::LaunchOffset;
  });
}

void Roller::rebuild() {
  uint32_t at = 0;
  for (const Stretch& loop : chosen_) {
    while (at < loop.begin) at = keep_items(at, loop.begin);
    for (uint32_t i = 0; i < loop.period; ++i) note_launch(items_[loop.begin + i].at);
    steps_.emplace_back(loop_of(loop));
    at = loop.end();
  }
  while (at < items_.size()) at = keep_items(at, static_cast<uint32_t>(items_.size()));
  program_.steps = std::move(steps_);
}

/// The step of the item at `from`, or what loops leave of it. Returns the item behind.
uint32_t Roller::keep_items(uint32_t from, uint32_t end) {
  const Item& first = items_[from];
  Step& step = program_.steps[first.step];
  auto* parallel = std::get_if<ParallelStep>(&step);
  if (!parallel || !first.launch) {
    for (uint32_t i = 0; i < launches_in(step); ++i) note_launch(first.at + i);
    steps_.push_back(std::move(step));
    return from + 1;
  }
  ParallelStep left;
  uint32_t at = from;
  for (; at < end && items_[at].step == first.step; ++at) {
    note_launch(items_[at].at);
    left.launches.push_back(std::move(*items_[at].launch));
  }
  if (left.launches.size() == 1)
    steps_.emplace_back(std::move(left.launches[0]));
  else
    steps_.emplace_back(std::move(left));
  return at;
}

LoopStep Roller::loop_of(const Stretch& loop) const {
  SizedLoop made;
  made.step.trip = loop.trip;
  made.trip = loop.trip;
  for (uint32_t i = 0; i < loop.period; ++i) made.step.body.push_back(*items_[loop.begin + i].launch);
  Columns columns;
  for (uint32_t i = 0; i < loop.period; ++i)
    for (uint32_t k = 0; k < made.step.body[i].operands.size(); ++k) {
      work(static_cast<uint64_t>(loop.trip));
      std::vector<SizedPlace> places;
      for (uint32_t round = 0; round < loop.trip; ++round) {
        const KernelStep& launch = *items_[loop.begin + round * loop.period + i].launch;
        places.push_back({launch.operands[k], launch.offsets[k]});
      }
      add_places(made, {i, k}, std::move(places), columns);
    }
  fill_table(made, columns);
  return std::move(made.step);
}

/// Of a body's launches the numbers of the first round stay.
void Roller::settle_numbers() {
  std::erase_if(program_.sized, [&](SizedNumber& number) {
    if (!is_of_launch(number.of)) return false;
    number.at = kept_launches_[number.at];
    return number.at == support::HashIndex::kNone;
  });
}

}  // namespace

void set_round(const LoopStep& loop, int64_t round, std::span<KernelStep> launches) {
  for (const auto& [of, delta] : loop.walks)
    launches[of.launch].offsets[of.operand] = loop.body[of.launch].offsets[of.operand] + round * delta;
  const Place* place = loop.table.data() + static_cast<size_t>(round) * loop.jumps.size();
  for (const auto& [launch, operand] : loop.jumps) {
    launches[launch].operands[operand] = place->slot;
    launches[launch].offsets[operand] = place->offset;
    ++place;
  }
}

void roll(Program& program) { Roller(program).run(); }

}  // namespace fastjit::plan
