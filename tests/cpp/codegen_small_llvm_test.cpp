// Small plans: straight-line kernels for one set of sizes.
#include <cmath>
#include <random>

#include "kernel_harness.h"

namespace fastjit::test {
namespace {

using ir::DType;
using ir::Op;
using ir::ReduceKind;

/// A product of [rows, inner] and [columns, inner] with a bias a column, whose results lie `gap` elements apart.
template <class T>
struct Product {
  int64_t rows, columns, inner, gap;
  bool transposed;  // the right factor is [inner, columns]
  uint8_t sums = 1;

  plan::KernelPlan plan() const {
    const DType type = sizeof(T) == 4 ? DType::F32 : DType::F64;
    PlanBuilder p("kkr", -1, 1);
    p.elem();
    const uint32_t left = p.in(type, "*01"), right = p.in(type, transposed ? "01*" : "0*1");
    const uint32_t sum = p.dot(left, right);
    p.row();
    p.out(p.op(Op::Add, p.in(type, "010"), sum), gap == 1 ? "*10" : "**0");
    p.plan.sizes = {rows, columns, inner};
    p.plan.sums = sums;
    p.plan.strides = {inner, 0, 1, 0, transposed ? 1 : inner, transposed ? columns : 1, 0, 1, 0, columns * gap, gap, 0};
    return p.plan;
  }
};

template <class T>
void check(const Product<T>& product, backend::Isa isa) {
  const auto [rows, columns, inner, gap, transposed, sums] = product;
  const plan::KernelPlan plan = product.plan();
  ASSERT_EQ(plan::verify(plan), "");
  const auto kernel = build(plan, isa);
  std::mt19937 random(7);
  const auto noise = [&](int64_t n) {
    Array<T> values(static_cast<size_t>(n));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(static_cast<int>(random() % 200) - 100) / 64;
    return values;
  };
  Array<T> a = noise(rows * inner), b = noise(columns * inner), bias = noise(columns);
  Array<T> out(static_cast<size_t>((rows * columns - 1) * gap + 1));
  run(plan, *kernel, {{a.data(), b.data(), bias.data(), out.data()}, plan.sizes, plan.strides});
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      std::vector<T> sum(16, 0);
      for (int64_t k = 0; k < inner; ++k) {
        T& part = sum[static_cast<size_t>(k % sums)];
        part = std::fma(a[static_cast<size_t>(i * inner + k)],
                        b[static_cast<size_t>(transposed ? k * columns + j : j * inner + k)], part);
      }
      for (size_t half = 8; half >= 1; half /= 2)
        for (size_t n = 0; n < half; ++n) sum[n] += sum[n + half];
      EXPECT_EQ(out[static_cast<size_t>((i * columns + j) * gap)], sum[0] + bias[static_cast<size_t>(j)])
          << rows << " x " << columns << " x " << inner << " at " << i << ", " << j;
    }
  EXPECT_TRUE(out.guard_intact());
}

TEST(CodegenSmall, ProductsOfEverySize) {
  for (const backend::Isa isa : host_isas())
    for (const int64_t rows : {1, 3, 4})
      for (const int64_t columns : {1, 4, 5})
        for (const int64_t inner : {1, 4, 7})
          for (const bool transposed : {false, true}) {
            check<float>({rows, columns, inner, 1, transposed}, isa);
            check<double>({rows, columns, inner, 1, transposed}, isa);
          }
}

TEST(CodegenSmall, ResultsThatLieApart) {
  for (const backend::Isa isa : host_isas()) {
    check<float>({4, 4, 4, 3, false}, isa);
    check<float>({8, 8, 8, 1, false}, isa);
    check<double>({2, 16, 4, 2, true}, isa);
  }
}

TEST(CodegenSmall, SeveralRunningSums) {
  for (const backend::Isa isa : host_isas())
    for (const int64_t inner : {1, 3, 4, 11, 16}) {
      check<float>({4, 3, inner, 1, false, 16}, isa);
      check<double>({2, 4, inner, 1, false, 8}, isa);
    }
}

/// Reductions that are no product, positions, comparisons and numbers of the call, all in one.
TEST(CodegenSmall, WhatElseAKernelHas) {
  for (const backend::Isa isa : host_isas()) {
    PlanBuilder p("kr", -1, 1);
    p.elem();
    const uint32_t x = p.in(DType::F32, "*1");
    const uint32_t where = p.reduce(ReduceKind::ArgMax, x, DType::I64);
    const uint32_t all = p.reduce(ReduceKind::All, p.op(Op::Gt, x, p.constant(DType::F32, 0)), DType::Bool);
    const uint32_t product = p.dot(x, x);
    p.row();
    p.out(p.op(Op::Add, where, p.index(0)), "10");
    p.out(all, "10");
    p.out(p.op(Op::Mul, product, p.convert(p.scalar(DType::F64), DType::F32)), "10");
    p.plan.sizes = {5, 3};
    p.plan.strides = {3, 1, 1, 0, 1, 0, 1, 0};
    ASSERT_EQ(plan::verify(p.plan), "");
    const auto kernel = build(p.plan, isa);
    Array<float> in{1, 3, 2, -1, 5, 6, 7, 7, 7, 0, 1, 2, 9, 8, 7}, scaled(5);
    Array<int64_t> at(5);
    Array<uint8_t> positive(5);
    Launch launch{{in.data(), at.data(), positive.data(), scaled.data()}, p.plan.sizes, p.plan.strides};
    launch.scalars = {std::bit_cast<uint64_t>(0.5)};
    run(p.plan, *kernel, launch);
    const int64_t places[] = {1, 3, 2, 5, 4};
    const float sums[] = {14, 62, 147, 5, 194};
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(at[i], places[i]);
      EXPECT_EQ(positive[i], i != 1 && i != 3);
      EXPECT_EQ(scaled[i], sums[i] * 0.5f);
    }
    EXPECT_TRUE(at.guard_intact() && positive.guard_intact() && scaled.guard_intact());
  }
}

TEST(CodegenSmall, PlansThatAreNotSmallAreRefused) {
  const auto refused = [](auto change) {
    plan::KernelPlan plan = Product<float>{4, 4, 4, 1, false}.plan();
    change(plan);
    return plan::verify(plan);
  };
  EXPECT_EQ(refused([](plan::KernelPlan&) {}), "");
  EXPECT_NE(refused([](plan::KernelPlan& plan) { plan.sizes[0] = 40; }), "");
  EXPECT_NE(refused([](plan::KernelPlan& plan) { plan.sizes[2] = 40; }), "");
  EXPECT_NE(refused([](plan::KernelPlan& plan) { plan.strides[0] = 100; }), "");
  EXPECT_NE(refused([](plan::KernelPlan& plan) { plan.strides[0] = -4; }), "");
  EXPECT_NE(refused([](plan::KernelPlan& plan) { plan.strides.pop_back(); }), "");
}

}  // namespace
}  // namespace fastjit::test
