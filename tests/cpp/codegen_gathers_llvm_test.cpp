// Elements from anywhere in a table: every type, one index for all lanes or one each, body and tail alike.
#include "kernel_harness.h"

namespace fastjit::test {
namespace {

using ir::DType;
using ir::Op;

/// Bytes that tell one element from another.
std::vector<uint8_t> table_of(DType type, int64_t elements) {
  const int64_t bytes = ir::size_of(type);
  std::vector<uint8_t> out(static_cast<size_t>(elements * bytes));
  for (int64_t i = 0; i < elements * bytes; ++i)
    out[static_cast<size_t>(i)] =
        static_cast<uint8_t>(type == DType::Bool ? i * 7 / 3 % 2 : i / bytes * 31 + i % bytes * 5 + 1);
  return out;
}

std::vector<DType> types() {
  std::vector<DType> out;
  for (size_t i = 0; i < ir::kComputedTypes; ++i) out.push_back(static_cast<DType>(i));
  return out;
}

/// out[i][j] = table[index[i or j] * step + i * (stride of i) + j * (stride of j)].
struct Case {
  std::string_view index, table;  // strides, as PlanBuilder takes them
  int vec_dim;
  int64_t step, stride_of_i, stride_of_j;
};

void check(const Case& c, DType type, backend::Isa isa, int unroll) {
  constexpr int64_t kRows = 5, kColumns = 53, kElements = 4000;
  PlanBuilder p("kk", c.vec_dim, c.vec_dim < 0 ? 1 : backend::lanes_for(isa), unroll);
  const auto index = p.in(DType::I64, c.index);
  p.out(p.gather(type, c.table, index), "*1");
  ASSERT_EQ(plan::verify(p.plan), "");
  const auto kernel = build(p.plan, isa);
  const std::vector<uint8_t> table = table_of(type, kElements);
  const bool by_row = c.index[0] != '0';
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < (by_row ? kRows : kColumns); ++i) indices.push_back(i * 37 % 41);
  const auto bytes = static_cast<size_t>(ir::size_of(type));
  Array<uint8_t> out(kRows * kColumns * bytes);
  const Launch launch{{indices.data(), const_cast<uint8_t*>(table.data()), out.data()},
                      {kRows, kColumns},
                      {by_row, !by_row, c.stride_of_i, c.stride_of_j, kColumns, 1, c.step}};
  run(p.plan, *kernel, launch, 2);
  ASSERT_TRUE(out.guard_intact());
  for (int64_t i = 0; i < kRows; ++i)
    for (int64_t j = 0; j < kColumns; ++j) {
      const int64_t from =
          indices[static_cast<size_t>(by_row ? i : j)] * c.step + i * c.stride_of_i + j * c.stride_of_j;
      const auto to = static_cast<size_t>(i * kColumns + j) * bytes;
      ASSERT_EQ(std::memcmp(out.data() + to, table.data() + static_cast<size_t>(from) * bytes, bytes), 0)
          << ir::text(type) << " " << backend::text(isa) << " unroll " << unroll << " at " << i << ", " << j << "\n"
          << plan::text(p.plan);
    }
}

TEST(CodegenGathers, EveryTypeInLanesAndTails) {
  const Case cases[] = {
      {"01", "00", 1, 1, 0, 0},    // an index for each lane
      {"01", "*0", 1, 7, 11, 0},   // and rows of the table
      {"01", "0*", 1, 64, 0, 2},   // and lanes that lie apart besides
      {"01", "01", 1, 64, 0, 1},   // or side by side
      {"10", "01", 1, 60, 0, 1},   // one for all lanes, which are neighbours
      {"10", "0*", 1, 10, 0, 3},   // which are not
      {"10", "00", 1, 3, 0, 0},    // all of which get the same
      {"10", "01", -1, 60, 0, 1},  // one lane
  };
  for (const backend::Isa isa : host_isas())
    for (const DType type : types())
      for (const Case& c : cases) {
        check(c, type, isa, 1);
        if (c.vec_dim >= 0) check(c, type, isa, 2);
        if (HasFatalFailure()) return;
      }
}

/// The index is made in the kernel, in a loop over what is reduced.
TEST(CodegenGathers, OfASumWhoseIndexIsComputed) {
  constexpr int64_t kRows = 3, kColumns = 43, kTable = 100;
  for (const backend::Isa isa : host_isas())
    for (const int vec_dim : {0, 1}) {
      PlanBuilder p("kr", vec_dim, backend::lanes_for(isa));
      p.elem();
      const auto twice = p.op(Op::Mul, p.index(1), p.constant(DType::I64, 2));
      const auto element = p.gather(DType::F32, "00", p.op(Op::Add, twice, p.index(0)));
      const auto sum = p.reduce(ir::ReduceKind::Sum, element, DType::F32);
      p.row().out(sum, "10");
      ASSERT_EQ(plan::verify(p.plan), "");
      std::vector<float> table(kTable);
      for (size_t i = 0; i < kTable; ++i) table[i] = static_cast<float>(i * i % 17);
      Array<float> out(kRows);
      run(p.plan, *build(p.plan, isa), {{table.data(), out.data()}, {kRows, kColumns}, {0, 0, 1, 0, 1}});
      for (size_t i = 0; i < kRows; ++i) {
        float expected = 0;
        for (size_t j = 0; j < kColumns; ++j) expected += table[2 * j + i];
        EXPECT_EQ(out[i], expected) << backend::text(isa) << " lanes along " << vec_dim;
      }
    }
}

TEST(CodegenGathers, WhatIsNoLegalPlan) {
  PlanBuilder stored("k", 0, 8);
  stored.out(stored.gather(DType::F32, "0", stored.index(0)), "1");
  ASSERT_EQ(plan::verify(stored.plan), "");
  stored.plan.operands[0].output = true;
  EXPECT_EQ(plan::verify(stored.plan), "operand #0 is gathered and stored");
  PlanBuilder loaded("k", 0, 8);
  loaded.out(loaded.gather(DType::F32, "1", loaded.index(0)), "1");
  loaded.plan.operands[0].gathered = false;
  EXPECT_NE(plan::verify(loaded.plan), "");
  PlanBuilder floats("k", 0, 8);
  floats.out(floats.gather(DType::F32, "0", floats.in(DType::F32, "1")), "1");
  EXPECT_EQ(plan::verify(floats.plan), "instruction %1 gathers by no i64");
}

}  // namespace
}  // namespace fastjit::test
