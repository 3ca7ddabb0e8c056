// Functions that have one body in a kernel: the same bits as inlined, in whole vectors, tails and single numbers.
#include <cmath>
#include <limits>

#include "kernel_harness.h"
#include "plan/share.h"

namespace fastjit::test {
namespace {

using ir::DType;
using ir::Op;

template <class T>
constexpr DType kType = sizeof(T) == 4 ? DType::F32 : DType::F64;

template <class T>
std::vector<T> samples() {
  using L = std::numeric_limits<T>;
  std::vector<T> out = {0,
                        T(-0.0),
                        1,
                        -1,
                        T(0.5),
                        T(1e-6),
                        T(2.5),
                        T(-7.25),
                        T(88.7),
                        T(-103.9),
                        T(710.1),
                        T(3e4),
                        T(1e10),
                        T(-1e30),
                        T(0.99999),
                        L::max(),
                        L::min(),
                        L::denorm_min(),
                        L::infinity(),
                        -L::infinity(),
                        L::quiet_NaN(),
                        L::lowest()};
  for (int i = 0; i < 45; ++i) out.push_back(static_cast<T>(std::ldexp(1 + 0.0713 * i, i % 16 - 9)) * (i % 3 ? 1 : -1));
  return out;
}

/// `uses` times op(x * k, y), each to an output of its own; x moves along the dim or is one number for all.
template <class T>
plan::KernelPlan many(Op op, int uses, bool shared, backend::Isa isa, int unroll, bool moves) {
  PlanBuilder p("k", 0, backend::lanes_for(isa), unroll);
  const auto x = p.in(kType<T>, moves ? "1" : "0"), y = p.in(kType<T>, moves ? "1" : "0");
  for (int i = 0; i < uses; ++i) {
    const auto scaled = p.op(Op::Mul, x, p.constant(kType<T>, 1 + 0.25 * i));
    const auto made = p.op(op, scaled, y);
    p.plan.code[made].shared = shared;
    p.out(made, "1");
  }
  return p.plan;
}

template <class T>
void same_as_inlined(Op op, int uses, int unroll = 1, bool moves = true) {
  const auto values = samples<T>();
  const size_t n = values.size();
  for (backend::Isa isa : host_isas()) {
    std::vector<std::vector<Array<T>>> results;
    for (const bool shared : {false, true}) {
      const plan::KernelPlan plan = many<T>(op, uses, shared, isa, unroll, moves);
      ASSERT_EQ(plan::verify(plan), "");
      Array<T> x(n), y(n);
      for (size_t i = 0; i < n; ++i) x[i] = values[i], y[i] = values[(i * 7 + 3) % n];
      if (!moves) x[0] = T(2.7), y[0] = T(-1.3);
      results.emplace_back();
      for (int i = 0; i < uses; ++i) results.back().emplace_back(n);
      Launch launch{{x.data(), y.data()}, {static_cast<int64_t>(n)}, {}};
      for (Array<T>& out : results.back()) launch.ptrs.push_back(out.data());
      run(plan, *build(plan, isa), launch);
    }
    for (int use = 0; use < uses; ++use)
      for (size_t i = 0; i < n; ++i)
        ASSERT_TRUE(same_bits(results[0][use][i], results[1][use][i]))
            << ir::text(op) << " " << ir::text(kType<T>) << " " << backend::text(isa) << " use " << use << " of "
            << values[i] << ": inlined " << results[0][use][i] << ", called " << results[1][use][i];
    for (Array<T>& out : results[1]) ASSERT_TRUE(out.guard_intact());
  }
}

TEST(CodegenShared, EveryFunctionHasTheBitsOfTheInlinedOne) {
  size_t tried = 0;
  for (size_t i = 0; i < ir::kOpCount; ++i) {
    const Op op = static_cast<Op>(i);
    if (!plan::has_long_code(op, DType::F32)) continue;
    ++tried;
    same_as_inlined<float>(op, 2);
    same_as_inlined<double>(op, 2);
  }
  EXPECT_EQ(tried, 29u);
}

TEST(CodegenShared, AnyNumberOfUses) {
  for (const int uses : {1, 4, 24, 48}) {
    same_as_inlined<float>(Op::Sin, uses);
    same_as_inlined<float>(Op::Exp, uses, 4);
    same_as_inlined<float>(Op::Erf, uses, 2);
  }
  same_as_inlined<double>(Op::Exp, 24);
}

TEST(CodegenShared, NumbersAndSeveralVectorsInFlight) {
  for (const Op op : {Op::Sin, Op::Pow, Op::Fmod, Op::Tanh}) {
    same_as_inlined<float>(op, 3, 1, false);
    same_as_inlined<double>(op, 3, 1, false);
    same_as_inlined<float>(op, 3, 4);
    same_as_inlined<double>(op, 2, 4);
    same_as_inlined<double>(op, 2, 2);
  }
}

/// Sum of f(x) + f(y) + ... over rows, with values that live across the calls.
TEST(CodegenShared, InsideReductions) {
  for (backend::Isa isa : host_isas()) {
    std::vector<std::vector<float>> sums;
    for (const bool shared : {false, true}) {
      PlanBuilder p("kr", 1, backend::lanes_for(isa), 2);
      p.elem();
      const auto x = p.in(DType::F32, "*1");
      auto sum = x;
      for (int i = 0; i < 12; ++i) {
        const auto made = p.op(Op::Sin, p.op(Op::Mul, x, p.constant(DType::F32, i + 0.5)));
        p.plan.code[made].shared = shared;
        sum = p.op(Op::Add, sum, made);
      }
      const auto total = p.reduce(ir::ReduceKind::Sum, sum, DType::F32);
      p.row().out(total, "*");
      p.plan.operands.back().strides = {plan::StrideClass::Unit, plan::StrideClass::Zero};
      ASSERT_EQ(plan::verify(p.plan), "");
      constexpr int64_t rows = 3, columns = 77;
      Array<float> in(rows * columns), out(rows);
      for (size_t i = 0; i < in.size(); ++i) in[i] = 0.37f * static_cast<float>(i % 100) - 11;
      run(p.plan, *build(p.plan, isa), {{in.data(), out.data()}, {rows, columns}, {columns, 1, 1, 0}});
      sums.push_back({out[0], out[1], out[2]});
    }
    EXPECT_EQ(sums[0], sums[1]) << backend::text(isa);
    EXPECT_NE(sums[0][0], 0);
  }
}

TEST(CodegenShared, OneBodyHoweverManyUses) {
  for (backend::Isa isa : {backend::Isa::Avx2, backend::Isa::Avx512}) {
    auto size = [&](int uses, bool shared) {
      const auto object = backend::compile_cpu(many<float>(Op::Sin, uses, shared, isa, 1, true), cpu(isa)).object;
      EXPECT_EQ(backend::validate_object(object), "") << uses;
      return object.size();
    };
    EXPECT_LT(size(48, true), size(12, false));
    EXPECT_LT(size(48, true) - size(24, true), size(4, false) - size(1, false));
  }
}

TEST(CodegenShared, OnlyFunctionsAreCalled) {
  PlanBuilder p("k", 0, 8);
  const auto x = p.in(DType::F32, "1");
  const auto sum = p.op(Op::Add, x, x);
  p.out(sum, "1");
  EXPECT_EQ(plan::verify(p.plan), "");
  p.plan.code[sum].shared = true;
  EXPECT_NE(plan::verify(p.plan).find("no function is made of it"), std::string::npos);
}

}  // namespace
}  // namespace fastjit::test
