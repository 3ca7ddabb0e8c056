// Loops in place of what repeats: the rounds compute what the graph did, whatever goes from one to the next, and the
// work of planning does not grow with their number.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>

#include "plan/program.h"
#include "plan/reroll.h"
#include "plan/work.h"
#include "random_rounds.h"
#include "reference_machine.h"

namespace fastjit::test {
namespace {

using ir::Dim;
using ir::DType;
using ir::Graph;
using ir::NodeId;
using ir::Op;

TEST(Reroll, AgreesWithTheGraphOnRandomRounds) {
  uint32_t rolled = 0, hoisted = 0, repeated = 0, first = 0, last = 300;
  if (const char* graphs = std::getenv("REROLL_GRAPHS")) std::sscanf(graphs, "%u:%u", &first, &last);
  for (uint32_t seed = first; seed < last; ++seed) {
    const Graph g = RandomRounds(seed, 33 + seed % 5, seed % 4 < 2).make();
    ASSERT_EQ(ir::verify(g), "") << "seed " << seed;
    plan::PlanOptions options;
    options.own_products = seed % 4 != 0;
    options.threads = 1 + seed % 2;
    std::mt19937 random(seed);
    const std::vector<Values> inputs = make_inputs(g, random);
    const std::vector<Num> scalars(g.scalars.size(), Num{0.25, 0});
    const Outcome expected = run_graph(g, inputs, scalars);
    if (const auto loops = plan::reroll(g, options)) {
      ASSERT_EQ(ir::verify(loops->graph), "") << "seed " << seed;
      ASSERT_EQ(difference(expected, run_graph(loops->graph, inputs, scalars)), "") << "seed " << seed;
      ++rolled;
      hoisted += loops->graph.contracts.size() > 0;
    }
    const plan::Program program = plan::plan(g, options);
    repeated += std::ranges::any_of(
        program.steps, [](const plan::Step& step) { return std::holds_alternative<plan::RepeatStep>(step); });
    ASSERT_EQ(difference(expected, Machine(g, program, seed).run(inputs, scalars)), "") << "seed " << seed << "\n"
                                                                                        << plan::text(program);
  }
  EXPECT_GT(rolled, (last - first) / 4);
  EXPECT_GT(repeated, (last - first) / 4);
  EXPECT_GT(hoisted, (last - first) / 8);
}

/// h = tanh(h - w), again and again, with every value in one stack.
Graph recurrence(int rounds) {
  Graph g;
  const NodeId w = g.input(DType::F32, dense({8}), {"w"});
  NodeId h = g.input(DType::F32, dense({8}), {"h"});
  std::vector<NodeId> all;
  for (int i = 0; i < rounds; ++i) {
    h = g.pointwise(Op::Tanh, {g.pointwise(Op::Sub, {h, w})});
    all.push_back(g.reshape(h, {1, 8}));
  }
  g.outputs = {g.cat(all, 0)};
  return g;
}

TEST(Reroll, APlanDoesNotGrowWithTheRounds) {
  size_t kernels = 0;
  for (const int rounds : {200, 1000, 5000}) {
    const plan::Program program = plan::plan(recurrence(rounds), {});
    const auto loops = std::ranges::count_if(
        program.steps, [](const plan::Step& step) { return std::holds_alternative<plan::LoopStep>(step); });
    EXPECT_GE(loops, 1);
    EXPECT_LT(program.made.size(), 100u) << rounds;
    if (kernels > 0) {
      EXPECT_LE(program.kernels.size(), kernels + 8) << rounds;
    }
    kernels = program.kernels.size();
  }
}

TEST(Reroll, ALoopIsPrintedReadAndVerified) {
  Graph g;
  NodeId h = g.input(DType::F32, dense({8}), {"h"});
  const NodeId w = g.input(DType::F32, dense({8}), {"w"});
  for (int i = 0; i < 400; ++i) h = g.pointwise(Op::Tanh, {g.pointwise(Op::Sub, {h, w})});
  g.outputs = {h};
  const auto loops = plan::reroll(g, {});
  ASSERT_TRUE(loops);
  const std::string text = ir::print(loops->graph);
  EXPECT_NE(text.find("= loop u8["), std::string::npos) << text;
  const Graph read = ir::parse(text);
  EXPECT_EQ(ir::print(read), text);
  EXPECT_EQ(ir::verify(read), "");

  const auto fault = [&](auto change) {
    Graph changed = read;
    change(changed.loops[0]);
    return ir::verify(changed);
  };
  EXPECT_NE(fault([](ir::LoopAttr& loop) { loop.trip = 0; }), "");
  EXPECT_NE(fault([](ir::LoopAttr& loop) { loop.operands.pop_back(); }), "");
  EXPECT_NE(fault([](ir::LoopAttr& loop) { ++loop.lasts; }), "");
  EXPECT_NE(fault([](ir::LoopAttr& loop) { loop.body = nullptr; }), "");
  EXPECT_NE(fault([](ir::LoopAttr& loop) { loop.operands[0] = ir::kNoNode; }), "");
}

}  // namespace
}  // namespace fastjit::test
