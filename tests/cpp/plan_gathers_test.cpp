// Elements that an index names: which kernels read them, and what may be written meanwhile.
#include <gtest/gtest.h>

#include "plan/program.h"
#include "plan_graphs.h"
#include "reference_machine.h"

namespace fastjit::test {
namespace {

using ir::DType;
using ir::Graph;
using ir::NodeId;
using ir::Op;

/// The program of a graph, which has its values.
plan::Program planned(const Graph& g) {
  EXPECT_EQ(ir::verify(g), "");
  EXPECT_EQ(ir::print(ir::parse(ir::print(g))), ir::print(g));
  const plan::Program program = plan::plan(g, {});
  std::mt19937 random(1);
  const std::vector<Values> inputs = make_inputs(g, random);
  const Outcome expected = run_graph(g, inputs, {});
  EXPECT_EQ(difference(expected, Machine(g, program, 1).run(inputs, {})), "") << ir::print(g) << plan::text(program);
  return program;
}

size_t launches(const plan::Program& program) {
  size_t count = 0;
  plan::for_each_launch(program, [&](const plan::KernelStep&) { ++count; });
  return count;
}

/// All in [0, size).
NodeId some_indices(Graph& g, std::vector<ir::Dim> shape, int64_t size) {
  if (shape.empty()) return g.constant_int(DType::I64, size - 1);
  const NodeId last = g.constant_int(DType::I64, size - 1);
  return g.pointwise(Op::Sub, {last, g.pointwise(Op::Min, {g.iota({std::move(shape), {}}, 0), last})});
}

TEST(PlanGathers, OfEveryRankAndDim) {
  const std::vector<ir::Dim> all{5, 4, 3};
  for (size_t rank = 1; rank <= 3; ++rank)
    for (size_t dim = 0; dim < rank; ++dim)
      for (const std::vector<ir::Dim>& shape : std::vector<std::vector<ir::Dim>>{{}, {1}, {7}, {2, 3}}) {
        Graph g;
        const NodeId x = tensor(g, {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(rank)});
        const NodeId taken = g.gather(x, some_indices(g, shape, all[dim].hint()), dim);
        EXPECT_EQ(g[taken].rank, rank - 1 + shape.size());
        g.outputs = {g.pointwise(Op::Neg, {taken})};
        EXPECT_EQ(launches(planned(g)), 1u) << ir::print(g);
      }
}

TEST(PlanGathers, WithWorkBeforeAndBehindIsOneKernelAndTheTable) {
  Graph g;
  const NodeId x = tensor(g, {6, 4}), y = tensor(g, {3, 4});
  const NodeId table = g.pointwise(Op::Tanh, {x});
  const NodeId taken = g.gather(table, some_indices(g, {3}, 6), 0);
  g.outputs = {g.reduce(ir::ReduceKind::Sum, g.pointwise(Op::Mul, {taken, y}), {1}, DType::F32)};
  EXPECT_EQ(launches(planned(g)), 2u);
}

TEST(PlanGathers, OfWhatWasFoundInTheSameValues) {
  Graph g;
  const NodeId x = tensor(g, {6, 4});
  const NodeId best = g.reduce(ir::ReduceKind::ArgMax, x, {0}, DType::I64);
  g.outputs = {g.gather(x, best, 0), best};
  EXPECT_LE(launches(planned(g)), 2u);
}

TEST(PlanGathers, OfViewsAndOfWhatHasNoStrides) {
  Graph g;
  const NodeId x = tensor(g, {6, 4}, {1, 6});
  const NodeId turned = g.view(x, {{{0, {{1, 1}}}, {3, {{0, -1}}}}}, {4, 6});
  g.outputs = {g.gather(turned, some_indices(g, {5}, 4), 0),
               g.gather(g.reshape(turned, {24}), some_indices(g, {5}, 24), 0),
               g.gather(g.reshape(g.pointwise(Op::Neg, {turned}), {3, 8}), some_indices(g, {2, 2}, 8), 1)};
  planned(g);
}

TEST(PlanGathers, IntoPartsOfACat) {
  Graph g;
  const NodeId x = tensor(g, {6, 4}), y = tensor(g, {2, 4});
  g.outputs = {g.cat({g.gather(x, some_indices(g, {3}, 6), 0), y, g.gather(x, some_indices(g, {1}, 5), 0)}, 0)};
  EXPECT_EQ(launches(planned(g)), 3u);
}

TEST(PlanGathers, BeforeTheTableIsWritten) {
  for (const bool is_read_behind : {false, true}) {
    Graph g;
    const NodeId x = tensor(g, {6, 4});
    const NodeId table = g.pointwise(Op::Tanh, {x});
    const NodeId taken = g.gather(table, some_indices(g, {3}, 6), 0);
    const ir::IndexMap top{{{0, {{0, 1}}}, {0, {{1, 1}}}}};
    const NodeId written = g.update(table, is_read_behind ? g.pointwise(Op::Neg, {taken}) : taken, top);
    g.outputs = {written, g.pointwise(Op::Exp, {taken})};
    g.stores = {{0, g.update(x, g.gather(x, some_indices(g, {2}, 6), 0), top), 1}};
    planned(g);
  }
}

/// A kernel may write over what it reads only at the element that it computes.
TEST(PlanGathers, NotOverTheTable) {
  Graph g;
  const NodeId x = tensor(g, {8});
  const NodeId table = g.pointwise(Op::Exp, {x});
  const NodeId turned = g.gather(table, some_indices(g, {8}, 8), 0);
  g.outputs = {g.reduce(ir::ReduceKind::Sum, g.pointwise(Op::Add, {turned, table}), {0}, DType::F32)};
  g.stores = {{0, g.gather(x, some_indices(g, {8}, 8), 0), 1}};
  planned(g);
}

TEST(PlanGathers, WhatIsNoLegalGraph) {
  Graph g;
  const NodeId x = tensor(g, {6, 4});
  const NodeId index = some_indices(g, {3}, 6);
  EXPECT_THROW(g.gather(x, index, 2), std::invalid_argument);
  EXPECT_THROW(g.gather(x, x, 0), std::invalid_argument);
  const NodeId taken = g.gather(x, index, 0);
  EXPECT_EQ(g.gather(x, index, 0), taken);
  g.nodes[taken].attr = 1;
  EXPECT_NE(ir::verify(g), "");
}

}  // namespace
}  // namespace fastjit::test
