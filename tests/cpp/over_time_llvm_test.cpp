// Kernels over time: all rounds in one launch, against one launch a round of the kernel without time.
#include <random>

#include "kernel_harness.h"

namespace fastjit::test {
namespace {

using ir::DType;
using ir::Op;
using plan::Carry;

/// How an operand goes from round to round: so many elements further. What is carried takes turns between two places.
using Deltas = std::vector<int64_t>;

plan::KernelPlan over_time(plan::KernelPlan plan, const Deltas& deltas, std::vector<Carry> carries) {
  plan.dims.push_back(plan::DimKind::Time);
  plan.carries = std::move(carries);
  for (size_t k = 0; k < plan.operands.size(); ++k)
    plan.operands[k].strides.push_back(deltas[k] == 0   ? plan::StrideClass::Zero
                                       : deltas[k] == 1 ? plan::StrideClass::Unit
                                                        : plan::StrideClass::Any);
  std::swap(plan.phases[0].elem, plan.phases[0].row);
  return plan;
}

template <class T>
struct Memory {
  std::vector<Array<T>> arrays;
  std::vector<void*> pointers() {
    std::vector<void*> result;
    for (Array<T>& array : arrays) result.push_back(array.data());
    return result;
  }
};

template <class T>
Memory<T> filled(size_t operands, size_t elements) {
  std::mt19937 random(3);
  Memory<T> memory;
  for (size_t k = 0; k < operands; ++k) {
    memory.arrays.emplace_back(elements);
    for (size_t i = 0; i < elements; ++i)
      memory.arrays.back()[i] = sizeof(T) == 2 ? static_cast<T>(0x3f00 + random() % 64)
                                               : static_cast<T>(static_cast<int>(random() % 64)) / 64;
  }
  return memory;
}

/// Rounds one after the other: what a carry stored is copied to where the next round loads it.
template <class T>
void run_rounds(const plan::KernelPlan& plan, const backend::Kernel& kernel, Memory<T>& memory, Launch launch,
                const Deltas& deltas, const std::vector<Carry>& carries, int64_t trip) {
  for (int64_t round = 0; round < trip; ++round) {
    launch.ptrs = memory.pointers();
    for (size_t k = 0; k < deltas.size(); ++k) launch.ptrs[k] = static_cast<T*>(launch.ptrs[k]) + round * deltas[k];
    run(plan, kernel, launch);
    const std::vector<Array<T>> after = memory.arrays;
    for (const auto& [from, to] : carries)
      if (from != Carry::kNone && from != to && round + 1 < trip) memory.arrays[from] = after[to];
  }
}

/// `plan` has kept dims only; its strides are the same for all operands.
template <class T>
void check(const plan::KernelPlan& plan, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
           const Deltas& deltas, const std::vector<Carry>& carries, int64_t block) {
  ASSERT_EQ(plan::verify(plan), "");
  const plan::KernelPlan timed = over_time(plan, deltas, carries);
  ASSERT_EQ(plan::verify(timed), "") << plan::text(timed);
  const size_t count = plan.operands.size(), elements = 4000;
  for (const backend::Isa isa : host_isas()) {
    const auto one = build(plan, isa), all = build(timed, isa);
    for (const int64_t trip : {1, 2, 5, 40}) {
      Memory<T> expected = filled<T>(count, elements), found = filled<T>(count, elements);
      Launch launch{{}, sizes, {}, {}, block};
      for (size_t k = 0; k < count; ++k) launch.strides.insert(launch.strides.end(), strides.begin(), strides.end());
      run_rounds(plan, *one, expected, launch, deltas, carries, trip);
      Launch rounds{found.pointers(), sizes, {}, {}, block};
      rounds.sizes.push_back(trip);
      for (size_t k = 0; k < count; ++k) {
        rounds.strides.insert(rounds.strides.end(), strides.begin(), strides.end());
        rounds.strides.push_back(deltas[k]);
      }
      run(timed, *all, rounds, 2);
      for (size_t k = 0; k < count; ++k) {
        if (!plan.operands[k].output) continue;
        for (size_t i = 0; i < elements; ++i)
          ASSERT_TRUE(same_bits(expected.arrays[k][i], found.arrays[k][i]))
              << "operand " << k << " element " << i << " of " << trip << " rounds, " << plan::text(timed);
        EXPECT_TRUE(found.arrays[k].guard_intact());
      }
    }
  }
}

/// h = a * h + x[t], y[t] = h; the last h too.
plan::KernelPlan scan(DType type, int lanes, int unroll) {
  PlanBuilder p("k", 0, lanes, unroll);
  p.row();
  const uint32_t sum = p.op(Op::Add, p.op(Op::Mul, p.in(type, "1"), p.in(type, "1")), p.in(type, "1"));
  p.out(sum, "1");
  p.out(sum, "1");
  return p.plan;
}

TEST(OverTime, AScan) {
  for (const int64_t points : {1, 7, 16, 37, 64})
    for (const int lanes : {4, 16})
      for (const int unroll : {1, 4}) {
        const Deltas deltas{0, 0, points, points, 0};
        check<float>(scan(DType::F32, lanes, unroll), {points}, {1}, deltas, {{1, 4}}, 64);
        check<double>(scan(DType::F64, lanes, unroll), {points}, {1}, deltas, {{1, 4}}, 64);
      }
}

TEST(OverTime, SteppedBlocks) { check<float>(scan(DType::F32, 8, 2), {60}, {1}, {0, 0, 60, 60, 0}, {{1, 4}}, 16); }

/// Two states that change places: a store of this round is no load of it.
TEST(OverTime, StatesThatChangePlaces) {
  PlanBuilder p("k", 0, 8, 2);
  p.row();
  const uint32_t a = p.operand(DType::F32, "1"), b = p.operand(DType::F32, "1");
  p.out(p.op(Op::Add, p.load(b), p.constant(DType::F32, 0.25)), "1");
  p.out(p.op(Op::Mul, p.load(a), p.constant(DType::F32, 0.5)), "1");
  check<float>(p.plan, {37}, {1}, {0, 0, 0, 0}, {{0, 2}, {1, 3}}, 64);
}

/// A state in the very memory where it is loaded, and a store of which the last counts.
TEST(OverTime, InPlace) {
  PlanBuilder p("k", 0, 8, 2);
  p.row();
  const uint32_t state = p.operand(DType::F32, "1", true);
  const uint32_t next = p.op(Op::Add, p.load(state), p.in(DType::F32, "1"));
  p.store(state, next);
  p.out(p.op(Op::Neg, next), "1");
  check<float>(p.plan, {29}, {1}, {0, 29, 0}, {{0, 0}, {Carry::kNone, 2}}, 64);
}

/// What is handed on is rounded as memory would round it.
TEST(OverTime, HalfTypes) {
  PlanBuilder p("k", 0, 8, 2);
  p.row();
  const uint32_t h = p.convert(p.in(DType::BF16, "1"), DType::F32), x = p.convert(p.in(DType::BF16, "1"), DType::F32);
  p.out(p.convert(p.op(Op::Mul, p.op(Op::Add, h, x), p.constant(DType::F32, 0.7)), DType::BF16), "1");
  check<uint16_t>(p.plan, {37}, {1}, {0, 37, 0}, {{0, 2}}, 64);
}

/// Along time the elements are neighbours, the points lie apart; several rows at once.
TEST(OverTime, RowsWhoseTimeIsTheLastDim) {
  for (const uint8_t rows : {1, 4}) {
    PlanBuilder p("kk", 1, 8);
    p.row();
    const uint32_t h = p.in(DType::F32, "**"), x = p.in(DType::F32, "**");
    p.out(p.op(Op::Sub, x, h), "**");
    p.out(p.op(Op::Add, x, h), "**");
    p.plan.rows = rows;
    check<float>(p.plan, {3, 9}, {9 * 60, 60}, {0, 1, 1, 0}, {{0, 3}}, 64);
  }
}

/// x = tanh(w[layer] @ x + b[layer]), with the layers in lists.
TEST(OverTime, SmallLayers) {
  constexpr int64_t kLayers = 9;
  PlanBuilder p("kkr", -1, 1);
  p.elem();
  const uint32_t sum = p.dot(p.in(DType::F32, "*01"), p.in(DType::F32, "0*1"));
  p.row();
  p.out(p.op(Op::Tanh, p.op(Op::Add, p.in(DType::F32, "010"), sum)), "*10");
  p.plan.sizes = {4, 4, 4};
  p.plan.strides = {4, 0, 1, 0, 4, 1, 0, 1, 0, 4, 1, 0};
  plan::KernelPlan once = p.plan, timed = p.plan;
  timed.dims.push_back(plan::DimKind::Time);
  timed.sizes.push_back(1);
  timed.strides = {4, 0, 1, 0, 0, 4, 1, 0, 0, 1, 0, 0, 4, 1, 0, 0};
  timed.carries = {{0, 3}};
  for (plan::Operand& operand : timed.operands) operand.strides.push_back(plan::StrideClass::Zero);
  timed.operands[1].listed = timed.operands[2].listed = true;
  ASSERT_EQ(plan::verify(timed), "");
  for (const backend::Isa isa : host_isas()) {
    Memory<float> weights = filled<float>(2 * kLayers, 16), states = filled<float>(2, 16);
    std::vector<void*> w, b;
    for (size_t i = 0; i < kLayers; ++i) {
      w.push_back(weights.arrays[2 * i].data());
      b.push_back(weights.arrays[2 * i + 1].data());
    }
    Array<float> x = states.arrays[0], y(16), found(16);
    const auto one = build(once, isa), all = build(timed, isa);
    run(timed, *all,
        {{x.data(), static_cast<void*>(w.data()), static_cast<void*>(b.data()), found.data()},
         {4, 4, 4, kLayers},
         std::vector<int64_t>(16, 0)});
    for (size_t i = 0; i < kLayers; ++i) {
      run(once, *one, {{x.data(), w[i], b[i], y.data()}, once.sizes, once.strides});
      x = y;
    }
    for (size_t i = 0; i < 16; ++i) EXPECT_EQ(found[i], x[i]) << i;
    EXPECT_TRUE(found.guard_intact());
  }
}

TEST(OverTime, WhatIsRefused) {
  const plan::KernelPlan legal = over_time(scan(DType::F32, 8, 2), {0, 0, 64, 64, 0}, {{1, 4}});
  ASSERT_EQ(plan::verify(legal), "");
  const auto refused = [&](auto change, std::string_view why) {
    plan::KernelPlan plan = legal;
    change(plan);
    EXPECT_NE(plan::verify(plan).find(why), std::string::npos) << plan::verify(plan);
    EXPECT_NE(plan::text(plan), plan::text(legal));
  };
  refused([](auto& p) { p.carries = {{1, 2}}; }, "stored to an output");
  refused([](auto& p) { p.carries.push_back({0, 4}); }, "an output of its own");
  refused([](auto& p) { p.carries = {{7, 4}}; }, "loaded from an operand");
  refused([](auto& p) { p.carries = {{1, 3}}; }, "moves with no round");
  refused([](auto& p) { p.operands[0].listed = true; }, "listed operand");
  refused([](auto& p) { std::swap(p.phases[0].elem, p.phases[0].row); }, "one phase, in its rounds");
}

}  // namespace
}  // namespace fastjit::test
