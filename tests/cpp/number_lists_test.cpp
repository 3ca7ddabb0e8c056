// Numbers that differ from round to round are elements of a list.
#include "pass/number_lists.h"

#include <gtest/gtest.h>

#include <bit>

#include "pass/pass.h"

using namespace fastjit;
using namespace fastjit::ir;

namespace {

/// y = (y + 1) * numbers[i], all on one line.
Graph rounds_with(const std::vector<double>& numbers) {
  Graph g;
  NodeId y = g.input(DType::F32, {{8}, {1}}, {"x"});
  g.set_line(g.intern_line("model.py:3"));
  for (const double number : numbers)
    y = g.pointwise(Op::Mul, {g.pointwise(Op::Add, {y, g.constant(DType::F32, 1)}), g.constant(DType::F32, number)});
  g.outputs = {y};
  return g;
}

TEST(NumberLists, HaveAnElementForEachRound) {
  const std::vector<double> numbers{1, 0.5, 0.25, 1, 0.125, 2, 3, 4, 5, 6};
  const auto made = pass::list_numbers(rounds_with(numbers));
  ASSERT_TRUE(made);
  EXPECT_EQ(ir::verify(made->rest), "");
  ASSERT_EQ(made->lists.size(), 1u) << "what is added is the same in all rounds";
  EXPECT_EQ(made->lists[0].dtype, DType::F32);
  EXPECT_EQ(made->lists[0].name, "numbers of model.py:3");
  std::vector<double> listed;
  for (const uint64_t bits : made->lists[0].bits) listed.push_back(std::bit_cast<double>(bits));
  EXPECT_EQ(listed, numbers);
  EXPECT_EQ(made->rest.inputs.size(), 2u);
  for (const Node& node : made->rest.nodes) EXPECT_TRUE(node.op != Op::Mul || made->rest[node.in[1]].op == Op::View);
}

TEST(NumberLists, AreNotMadeOfAFewNumbers) {
  EXPECT_FALSE(pass::list_numbers(rounds_with({1, 2, 3})));
  EXPECT_FALSE(pass::list_numbers(rounds_with(std::vector<double>(50, 0.5)))) << "that are the same in all rounds";
}

TEST(NumberLists, HaveNoDivisorsOfIntegers) {
  Graph g;
  NodeId y = g.input(DType::I64, {{8}, {1}}, {"x"});
  for (int64_t i = 1; i < 20; ++i) y = g.pointwise(Op::FloorDiv, {y, g.constant_int(DType::I64, i)});
  g.outputs = {y};
  EXPECT_FALSE(pass::list_numbers(g));
}

}  // namespace
