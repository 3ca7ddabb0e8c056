// Sizes as expressions: what is computed, asked and guarded holds for every size that the guards let in.
#include "ir/dim.h"

#include <gtest/gtest.h>

#include <random>

namespace fastjit::test {
namespace {

using ir::Dim;
using ir::SizeCode;
using ir::Symbols;

struct Sizes : testing::Test {
  Symbols symbols;
  Symbols::Scope scope{&symbols};
  /// What an expression is at other sizes; nothing where a guard fails.
  std::optional<int64_t> at(Dim dim, std::vector<int64_t> sizes) const {
    const std::vector<uint32_t> wanted{dim.expr()};
    const SizeCode code = symbols.code(wanted);
    sizes.resize(code.registers());
    if (!code.run(sizes.data())) return std::nullopt;
    return dim.is_symbolic() ? sizes[code.place[dim.expr()]] : dim.hint();
  }
};

TEST_F(Sizes, NumbersAreNumbers) {
  const Dim a = 7, b = 3;
  EXPECT_EQ((a * b + a / b - a % b).hint(), 22);
  EXPECT_FALSE((a * b).is_symbolic());
  EXPECT_TRUE(symbols.guards().empty());
}

TEST_F(Sizes, EqualExpressionsAreOne) {
  const Dim n = symbols.add(5, "n"), m = symbols.add(6, "m");
  EXPECT_TRUE(identical(n * m + 4, Dim(4) + m * n));
  EXPECT_TRUE(identical(n * 8 * m / n, m * 8));
  EXPECT_TRUE(identical(n - n + 3, 3));
  EXPECT_TRUE(identical((n * 4 + 8) / 4, n + 2));
  EXPECT_TRUE(identical(n * 4 % 4, 0));
  EXPECT_TRUE(identical((n + m) * (n - 1) * 3 / (n - 1), (n + m) * 3));
  EXPECT_TRUE(identical(((n + m) * n + 1) / (n + m), n));
  EXPECT_EQ(symbols.guards(), (std::vector<std::string>{"n >= 2", "m >= 2"}));
}

TEST_F(Sizes, WhatHoldsForAllSizesIsNoGuard) {
  const Dim n = symbols.add(5, "n"), m = symbols.add(6, "m");
  EXPECT_FALSE(n == 1);
  EXPECT_FALSE(n == 0);
  EXPECT_TRUE(n * m > m);
  EXPECT_TRUE(n * m * 3 >= n * 2 + m);
  EXPECT_TRUE(n < n + m);
  EXPECT_TRUE(identical(min(n, n * m), n));
  EXPECT_EQ(symbols.guards(), (std::vector<std::string>{"n >= 2", "m >= 2"}));
}

TEST_F(Sizes, WhatIsSupposedHoldsOfEqualSizesToo) {
  const Dim n = symbols.add(8, "n"), m = symbols.add(8, "m"), k = symbols.add(8, "k");
  EXPECT_TRUE(n == m);
  EXPECT_TRUE(k == m);
  symbols.suppose(n, 8);
  EXPECT_TRUE(m > 7);
  EXPECT_TRUE(k * 2 > 15);
  EXPECT_FALSE(k < 5);
  EXPECT_EQ(symbols.guards(), (std::vector<std::string>{"n >= 2", "m >= 2", "k >= 2", "n == m", "k == m"}));
  symbols.suppose(0, 0);
  EXPECT_TRUE(m > 7);
  EXPECT_EQ(symbols.guards().size(), 6U);
}

TEST_F(Sizes, AnswersAreGuards) {
  const Dim n = symbols.add(8, "n"), m = symbols.add(8, "m");
  EXPECT_TRUE(n == m);
  EXPECT_TRUE(n % 4 == 0);
  EXPECT_TRUE(m < 20);
  const std::vector<std::string> guards{"n >= 2", "m >= 2", "n == m", "n % 4 == 0", "m < 20"};
  EXPECT_EQ(symbols.guards(), guards);
  EXPECT_EQ(at(n * m, {12, 12}), 144);
  EXPECT_EQ(at(n * m, {12, 16}), std::nullopt);
  EXPECT_EQ(at(n * m, {10, 10}), std::nullopt);
  EXPECT_EQ(at(n * m, {20, 20}), std::nullopt);
  EXPECT_EQ(at(n * m, {0, 0}), std::nullopt);
}

TEST_F(Sizes, FixedIsAGuard) {
  const Dim n = symbols.add(5, "n");
  EXPECT_EQ((n * 2).fixed(), 10);
  EXPECT_EQ(at(n, {5}), 5);
  EXPECT_EQ(at(n, {6}), std::nullopt);
}

TEST_F(Sizes, BeyondSixtyFourBitsIsNoSize) {
  const Dim n = symbols.add(5, "n");
  EXPECT_EQ(at(n * n * 3, {int64_t{1} << 32}), std::nullopt);
  EXPECT_EQ(at(n * 3, {int64_t{1} << 32}), int64_t{3} << 32);
}

// Random formulas, computed with numbers at other sizes: wherever the guards let a size in, the expression has that
// value and each question the answer that it had.
TEST_F(Sizes, RandomFormulas) {
  std::mt19937 random(1);
  for (int round = 0; round < 400; ++round) {
    Symbols all;
    const Symbols::Scope one(&all);
    std::vector<std::vector<int64_t>> samples;
    std::vector<Dim> dims;
    std::vector<std::vector<int64_t>> values;  // per dim, at each sample
    const auto size = [&] { return static_cast<int64_t>(2 + random() % 9); };
    for (int i = 0; i < 40; ++i) samples.push_back({size(), size(), size()});
    for (size_t s = 0; s < 3; ++s) {
      dims.push_back(all.add(samples[0][s], "s" + std::to_string(s)));
      values.emplace_back();
      for (const auto& sample : samples) values.back().push_back(sample[s]);
    }
    dims.emplace_back(static_cast<int64_t>(random() % 5));
    values.emplace_back(samples.size(), dims.back().hint());
    std::vector<std::vector<bool>> answers;  // per question, at each sample
    for (int step = 0; step < 12; ++step) {
      const size_t x = random() % dims.size(), y = random() % dims.size();
      const uint32_t what = random() % 9;
      const auto combine = [&](auto f, auto g) {
        std::vector<int64_t> out;
        for (size_t i = 0; i < samples.size(); ++i) out.push_back(g(values[x][i], values[y][i]));
        dims.push_back(f(dims[x], dims[y]));
        values.push_back(std::move(out));
      };
      const auto ask = [&](auto f) {
        const bool answer = f(dims[x], dims[y]);
        std::vector<bool> out;
        for (size_t i = 0; i < samples.size(); ++i) out.push_back(f(values[x][i], values[y][i]) == answer);
        answers.push_back(std::move(out));
      };
      const bool divides = dims[y].hint() > 0 && dims[x].hint() >= 0;
      const auto quotient = [](auto a, auto b) { return a / b; };
      if (what == 0) combine(std::plus<>(), std::plus<>());
      if (what == 1) combine(std::minus<>(), std::minus<>());
      if (what == 2 && dims[x].hint() < 10000 && dims[y].hint() < 10000)
        combine(std::multiplies<>(), std::multiplies<>());
      if (what == 3 && divides) combine(quotient, [](int64_t a, int64_t b) { return b == 0 ? 0 : a / b; });
      if (what == 4 && divides)
        combine([](Dim a, Dim b) { return a % b; }, [](int64_t a, int64_t b) { return b == 0 ? 0 : a % b; });
      if (what == 5)
        combine([](Dim a, Dim b) { return min(a, b); }, [](int64_t a, int64_t b) { return std::min(a, b); });
      if (what == 6)
        combine([](Dim a, Dim b) { return max(a, b); }, [](int64_t a, int64_t b) { return std::max(a, b); });
      if (what == 7) ask(std::equal_to<>());
      if (what == 8) ask(std::less<>());
    }
    std::vector<uint32_t> wanted;
    for (const Dim dim : dims) wanted.push_back(dim.expr());
    const SizeCode code = all.code(wanted);
    for (size_t i = 0; i < samples.size(); ++i) {
      std::vector<int64_t> registers = samples[i];
      registers.resize(code.registers());
      if (!code.run(registers.data())) {
        EXPECT_NE(i, 0u) << "the guards must let the recorded size in";
        continue;
      }
      for (size_t d = 0; d < dims.size(); ++d)
        EXPECT_EQ(dims[d].is_symbolic() ? registers[code.place[dims[d].expr()]] : dims[d].hint(), values[d][i])
            << all.text(dims[d].expr());
      for (const auto& answer : answers) EXPECT_TRUE(answer[i]);
    }
  }
}

TEST_F(Sizes, RemaindersHaveNames) {
  const Dim n = symbols.add(16, "n"), m = symbols.add(5, "m");
  EXPECT_TRUE(n % 8 == 0);
  EXPECT_FALSE((n + m) % 2 == 0);
  EXPECT_EQ(symbols.guards(), (std::vector<std::string>{"n >= 2", "m >= 2", "n % 8 == 0", "(m + n) % 2 != 0"}));
  EXPECT_EQ(at(n, {24, 9}), 24);
  EXPECT_EQ(at(n, {20, 9}), std::nullopt);
  EXPECT_EQ(at(n, {24, 8}), std::nullopt);
}

TEST_F(Sizes, LateOnesAreComputedOnceTheyAreKnown) {
  const Dim n = symbols.add(16, "n"), u = symbols.add_late(5, "u"), v = symbols.add_late(7, "v");
  EXPECT_EQ(symbols.late_in(n), 0u);
  EXPECT_EQ(symbols.late_in(n * u), 1u);
  EXPECT_EQ(symbols.late_in(min(u * 4, v) + n), 3u);
  const std::vector<Dim> asked{n * 2 + 1, u * n, u * v / 2};
  EXPECT_TRUE(u + 1 < v);
  EXPECT_TRUE(n > 3);
  std::vector<uint32_t> wanted;
  for (const Dim dim : asked) wanted.push_back(dim.expr());
  const SizeCode code = symbols.code(wanted);
  EXPECT_EQ(code.given, 1u);
  std::vector<int64_t> registers(code.registers(), -1);
  const auto value = [&](size_t which) { return registers[code.place[asked[which].expr()]]; };
  registers[0] = 20;
  ASSERT_TRUE(code.run(registers.data()));
  EXPECT_EQ(value(0), 41);
  EXPECT_TRUE(code.is_late(code.place[asked[1].expr()]));
  EXPECT_FALSE(code.is_late(code.place[asked[0].expr()]));
  registers[1] = 9, registers[2] = 2;  // v is not known yet: no guard on it is asked
  ASSERT_TRUE(code.run_late(registers.data(), 1));
  EXPECT_EQ(value(1), 180);
  EXPECT_FALSE(code.run_late(registers.data(), 3)) << "10 < 2";
  registers[2] = 100;
  ASSERT_TRUE(code.run_late(registers.data(), 3));
  EXPECT_EQ(value(2), 450);
  registers[0] = 3;
  EXPECT_FALSE(code.run(registers.data()));
}

TEST_F(Sizes, WhatIsKnownFromElsewhereIsNoGuard) {
  const Dim u = symbols.add_late(50, "u"), v = symbols.add_late(500, "v");
  symbols.know(Dim(100) - u);
  symbols.know(v - 101);
  EXPECT_TRUE(identical(min(u, 100), u));
  EXPECT_TRUE(identical(min(v, 100), 100));
  EXPECT_TRUE(v > 100);
  EXPECT_TRUE(u <= 100);
  EXPECT_FALSE(v == 100);
  EXPECT_EQ(symbols.guards().size(), 2u) << "none but that both are 2 at least";
  EXPECT_FALSE(u > 60);
  EXPECT_EQ(symbols.guards().size(), 3u);
}

TEST_F(Sizes, WhereASizeWasFixedIsTold) {
  const Dim n = symbols.add(16, "n"), m = symbols.add(5, "m");
  symbols.at(3);
  static_cast<void>(m * 2 < 11);
  symbols.at(7);
  m.fixed();
  symbols.at(9);
  m.fixed();
  EXPECT_TRUE(n > 4);
  ASSERT_EQ(symbols.fixed().size(), 1u);
  EXPECT_EQ(symbols.fixed()[0].symbol, 1u);
  EXPECT_EQ(symbols.fixed()[0].place, 7u);
}

}  // namespace
}  // namespace fastjit::test
