// Loops: found where launches repeat, and the launches of their rounds are those that were there before.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <tuple>

#include "plan/program.h"
#include "plan/repeats.h"
#include "plan/roll.h"
#include "plan/team.h"
#include "plan/work.h"

namespace fastjit::test {
namespace {

using plan::KernelStep;
using plan::Program;
using plan::Repeat;
using Of = plan::SizedNumber::Of;

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  uint32_t operator()() { return static_cast<uint32_t>(engine_()); }

 private:
  std::mt19937 engine_;
};

KernelStep launch(uint32_t kernel, std::vector<plan::SlotId> operands, std::vector<int64_t> offsets,
                  std::vector<int64_t> sizes) {
  KernelStep made;
  made.kernel = kernel;
  made.operands = std::move(operands);
  made.offsets = std::move(offsets);
  made.sizes = std::move(sizes);
  return made;
}

// ---- repeats ----

std::vector<Repeat> slow_repeats(const std::vector<uint32_t>& tokens) {
  std::vector<Repeat> found;
  const auto size = static_cast<uint32_t>(tokens.size());
  for (uint32_t period = 1; 3 * period <= size; ++period)
    for (uint32_t begin = 0; begin + period < size; ++begin) {
      if (begin > 0 && tokens[begin - 1] == tokens[begin - 1 + period]) continue;
      uint32_t end = begin + period;
      while (end < size && tokens[end] == tokens[end - period]) ++end;
      const auto holds = [&](const Repeat& other) {
        return other.begin <= begin && end <= other.end && period % other.period == 0;
      };
      if (end - begin >= 3 * period && std::ranges::none_of(found, holds)) found.push_back({begin, end, period});
    }
  return found;
}

std::vector<Repeat> in_order(std::vector<Repeat> found) {
  std::ranges::sort(found, {}, [](const Repeat& r) { return std::tuple(r.begin, r.period); });
  return found;
}

TEST(Repeats, AreThoseOfASlowSearch) {
  Random random(1);
  for (int trial = 0; trial < 3000; ++trial) {
    std::vector<uint32_t> tokens(random() % 60);
    const auto kinds = 1 + random() % 3;
    for (uint32_t& token : tokens) token = random() % kinds;
    ASSERT_EQ(in_order(plan::repeats(tokens)), in_order(slow_repeats(tokens))) << "trial " << trial;
  }
}

TEST(Repeats, OfStepsThatRepeatThemselvesAreFoundOnce) {
  Random random(3);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<uint32_t> layer(2 + random() % 4), step{9}, tokens(random() % 5, 7);
    for (uint32_t& token : layer) token = random() % 3;
    for (auto layers = 3 + random() % 4; layers > 0; --layers) step.insert(step.end(), layer.begin(), layer.end());
    for (auto rounds = 6 + random() % 7; rounds > 0; --rounds) tokens.insert(tokens.end(), step.begin(), step.end());
    tokens.resize(tokens.size() - random() % step.size());
    ASSERT_EQ(in_order(plan::repeats(tokens)), in_order(slow_repeats(tokens))) << "trial " << trial;
  }
}

TEST(Repeats, TakeNoMoreThanNLogNSteps) {
  Random random(2);
  const auto fibonacci = [](uint32_t n) {
    std::vector<uint32_t> a{0}, b{0, 1};
    while (b.size() < n) {
      std::vector<uint32_t> next = b;
      next.insert(next.end(), a.begin(), a.end());
      a = std::exchange(b, std::move(next));
    }
    return b;
  };
  for (const uint32_t n : {1000u, 10'000u, 100'000u}) {
    std::vector<uint32_t> equal(n), pairs(n), chance(n);
    for (uint32_t i = 0; i < n; ++i) {
      pairs[i] = i % 2;
      chance[i] = random() % 2;
    }
    for (const auto& tokens : {equal, pairs, chance, fibonacci(n)}) {
      plan::work_done = 0;
      plan::repeats(tokens);
      const auto size = static_cast<double>(tokens.size());
      EXPECT_LE(static_cast<double>(plan::work_done), 4 * size * std::log2(size));
    }
  }
}

// ---- programs ----

auto fields(const KernelStep& s) {
  return std::tie(s.kernel, s.operands, s.offsets, s.sizes, s.strides, s.scalars, s.block, s.units, s.grain,
                  s.scratch_stride, s.grid.blocks, s.grid.threads);
}

/// All that runs, in order; a step without launches is one of a kernel that no launch has.
std::vector<KernelStep> flat(const Program& program) {
  std::vector<KernelStep> out;
  for (const plan::Step& step : program.steps) {
    if (const auto* kernel = std::get_if<KernelStep>(&step)) out.push_back(*kernel);
    if (const auto* parallel = std::get_if<plan::ParallelStep>(&step))
      out.insert(out.end(), parallel->launches.begin(), parallel->launches.end());
    if (const auto* loop = std::get_if<plan::LoopStep>(&step))
      plan::for_each_round(*loop, [&](const KernelStep& launch) { out.push_back(launch); });
    if (const auto* free = std::get_if<plan::FreeStep>(&step)) out.push_back(launch(1000 + free->slot, {}, {}, {}));
    if (const auto* product = std::get_if<plan::ContractStep>(&step)) {
      out.push_back(launch(2000 + product->call, {}, {}, {}));
      out.insert(out.end(), product->epilogue.begin(), product->epilogue.end());
    }
  }
  return out;
}

void expect_same(const Program& rolled, const Program& plain) {
  const std::vector<KernelStep> a = flat(rolled), b = flat(plain);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_TRUE(fields(a[i]) == fields(b[i])) << "launch " << i;
}

KernelStep launch_of(uint32_t kernel, Random& random) {
  KernelStep made = launch(kernel, {}, {}, {4, kernel + 1});
  for (uint32_t i = 0; i < 1 + kernel % 3; ++i) {
    made.operands.push_back(random() % 4);
    made.offsets.push_back(random() % 2 ? 0 : random() % 100);
  }
  made.units = made.grain = 4;
  return made;
}

/// The next round of a body: each operand stays, walks or jumps.
void move_on(KernelStep& launch, uint32_t seed, Random& random) {
  for (size_t i = 0; i < launch.operands.size(); ++i) {
    const uint32_t how = (seed + static_cast<uint32_t>(i)) % 3;
    if (how == 1) launch.offsets[i] += 8;
    if (how == 2) launch.operands[i] = random() % 40;
  }
}

/// Launches by chance, bodies again and again with a launch that now and then is another one, and other steps.
Program random_program(Random& random) {
  Program program;
  const auto kinds = 2 + random() % 4;
  const auto add = [&](std::vector<KernelStep> launches) {
    if (launches.size() == 1)
      program.steps.emplace_back(std::move(launches[0]));
    else
      program.steps.emplace_back(plan::ParallelStep{std::move(launches)});
  };
  for (auto parts = 1 + random() % 5; parts > 0; --parts) {
    std::vector<KernelStep> body;
    for (auto i = 1 + random() % 5; i > 0; --i) body.push_back(launch_of(random() % kinds, random));
    const uint32_t seed = random();
    for (auto rounds = random() % 15; rounds > 0; --rounds) {
      std::vector<KernelStep> batch;
      for (KernelStep now : body) {
        if (random() % 60 == 0) now.sizes[0] = 5;
        if (random() % 60 == 0) now.units = 9;
        batch.push_back(std::move(now));
        if (random() % 2) add(std::exchange(batch, {}));
      }
      if (!batch.empty()) add(std::move(batch));
      for (KernelStep& now : body) move_on(now, seed, random);
      if (random() % 40 == 0) program.steps.emplace_back(plan::FreeStep{random() % 9});
    }
    if (random() % 3 == 0) {
      plan::ContractStep product;
      product.call = random() % 9;
      for (auto i = random() % 3; i > 0; --i) product.epilogue.push_back(launch_of(random() % kinds, random));
      program.steps.emplace_back(std::move(product));
    }
  }
  return program;
}

size_t loops(const Program& program) {
  return static_cast<size_t>(std::ranges::count_if(
      program.steps, [](const plan::Step& step) { return std::holds_alternative<plan::LoopStep>(step); }));
}

TEST(Roll, TheRoundsAreTheLaunchesThatWereThere) {
  Random random(3);
  size_t found = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const Program plain = random_program(random);
    Program rolled = plain;
    plan::roll(rolled);
    expect_same(rolled, plain);
    if (HasFatalFailure()) FAIL() << "trial " << trial;
    found += loops(rolled);
  }
  EXPECT_GT(found, 2000u);
}

/// The numbers of a loop are those of all its rounds.
TEST(Roll, NumbersThatDependOnSizesKeepTheirPlaces) {
  Random random(4);
  size_t found = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    Program plain = random_program(random);
    uint32_t at = 0;
    plan::for_each_launch(std::as_const(plain), [&](const KernelStep& launch) {
      if (launch.kernel % 2) plain.sized.push_back({Of::LaunchSize, at, 1, launch.kernel + random() % 30 / 29});
      if (random() % 50 == 0) plain.sized.push_back({Of::LaunchOffset, at, 0, 7});
      ++at;
    });
    Program rolled = plain;
    plan::roll(rolled);
    for (Program* program : {&plain, &rolled}) {
      const std::vector<int64_t*> places = plan::places_of_sizes(*program);
      for (size_t i = 0; i < places.size(); ++i) *places[i] = 10 + program->sized[i].expr;
    }
    expect_same(rolled, plain);
    if (HasFatalFailure()) FAIL() << "trial " << trial;
    found += loops(rolled);
  }
  EXPECT_GT(found, 500u);
}

/// One kernel on a chain of temporaries, with an operand that walks and one that stays.
TEST(Roll, AnOperandStaysWalksOrJumps) {
  Program program;
  for (uint32_t i = 0; i < 50; ++i)
    program.steps.emplace_back(launch(0, {10 + i, 0, 1, 11 + i}, {0, 3, 4 * i, 0}, {8}));
  plan::roll(program);
  ASSERT_EQ(program.steps.size(), 1u);
  const auto& loop = std::get<plan::LoopStep>(program.steps[0]);
  EXPECT_EQ(loop.trip, 50);
  EXPECT_EQ(loop.body.size(), 1u);
  ASSERT_EQ(loop.walks.size(), 1u);
  EXPECT_EQ(loop.walks[0].of.operand, 2u);
  EXPECT_EQ(loop.walks[0].delta, 4);
  ASSERT_EQ(loop.jumps.size(), 2u);
  EXPECT_EQ(loop.table[3], (plan::Place{12, 0}));
}

TEST(Roll, FewRoundsStayAsTheyAre) {
  for (const uint32_t rounds : {8u, 9u}) {
    Program program;
    for (uint32_t i = 0; i < rounds; ++i) program.steps.emplace_back(launch(0, {i}, {0}, {8}));
    plan::roll(program);
    EXPECT_EQ(loops(program), rounds == 9);
  }
}

// ---- teams ----

/// Launches on the slots of `operands`, in a loop of two threads; `kernel` has one operand in and one out.
Program team_of(const std::vector<std::pair<plan::SlotId, plan::SlotId>>& operands, plan::SlotId slots) {
  ir::Graph g;
  const ir::NodeId x = g.input(ir::DType::F32, {{4}, {1}}, {"x"});
  g.outputs = {g.pointwise(ir::Op::Neg, {x})};
  Program program = plan::plan(g, {});
  const auto like = std::get<KernelStep>(program.steps[0]);
  const bool first_is_out = program.kernels[0].operands[0].output;
  program.slots.clear();
  for (plan::SlotId id = 0; id < slots; ++id) {
    plan::Slot temp{plan::SlotKind::Temp, ir::DType::F32};
    temp.offset = 16 * id;
    temp.sizes = {4 + 2 * (id % 3)};
    temp.strides = {1};
    program.slots.push_back(std::move(temp));
  }
  plan::LoopStep loop;
  loop.trip = 10;
  for (const auto& [in, out] : operands) {
    loop.body.push_back(like);
    loop.body.back().operands = first_is_out ? std::vector{out, in} : std::vector{in, out};
  }
  program.steps.assign(1, std::move(loop));
  plan::PlanOptions options;
  options.threads = 2;
  plan::share_rounds(program, options);
  return program;
}

bool meet(const plan::Slot& a, const plan::Slot& b) {
  return a.offset < b.offset + 4 * b.sizes[0] && b.offset < a.offset + 4 * a.sizes[0];
}

TEST(Team, ALaunchWaitsForWhatItSharesMemoryWith) {
  Random random(5);
  for (int trial = 0; trial < 500; ++trial) {
    const auto slots = static_cast<plan::SlotId>(2 + random() % 40);
    std::vector<std::pair<plan::SlotId, plan::SlotId>> operands;
    for (auto i = 1 + random() % 12; i > 0; --i) operands.emplace_back(random() % slots, random() % slots);
    const Program program = team_of(operands, slots);
    const auto& waits = std::get<plan::LoopStep>(program.steps[0]).waits;
    const auto& at = program.slots;
    std::vector<bool> expected(operands.size(), false);
    size_t since = 0;
    for (size_t i = 0; i < 2 * operands.size(); ++i) {
      const auto& [in, out] = operands[i % operands.size()];
      bool waits_now = expected[i % operands.size()];
      for (size_t k = since; k < i && !waits_now; ++k) {
        const auto& [read, written] = operands[k % operands.size()];
        waits_now = meet(at[out], at[read]) || meet(at[out], at[written]) || meet(at[in], at[written]);
      }
      if (waits_now) since = i;
      expected[i % operands.size()] = waits_now;
    }
    EXPECT_EQ(waits, expected) << "trial " << trial;
  }
}

TEST(Team, WaitsAreFoundInStepsThatGrowWithTheLaunches) {
  for (const uint32_t count : {100u, 1000u, 10'000u}) {
    std::vector<std::pair<plan::SlotId, plan::SlotId>> apart;
    for (uint32_t i = 0; i < count; ++i) apart.emplace_back(3 * i, 3 * i);
    plan::work_done = 0;
    const Program program = team_of(apart, 3 * count);
    EXPECT_LE(plan::work_done, 20u * count + 1000);
  }
}

}  // namespace
}  // namespace fastjit::test
