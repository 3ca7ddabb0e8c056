// What planning costs as programs grow, and that equal blocks make equal kernels wherever they stand.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <set>

#include "pass/pass.h"
#include "plan/program.h"
#include "plan/repeat.h"
#include "plan/work.h"
#include "plan_graphs.h"

namespace fastjit::test {
namespace {

using ir::DType;
using ir::Graph;
using ir::NodeId;
using ir::Op;

// ---- shapes of programs, of about n operators each ----

Graph chain(int n) {
  Graph g;
  NodeId x = tensor(g, {64, 64});
  for (int i = 0; i < n; ++i) x = i % 2 ? g.pointwise(Op::Add, {x, number(g, 0.1)}) : g.pointwise(Op::Sin, {x});
  g.outputs = {x};
  return g;
}

/// h = a * h + x[t]
Graph recurrence(int n) {
  Graph g;
  const int64_t steps = n / 2;
  const NodeId x = tensor(g, {steps, 32}), a = tensor(g, {32});
  NodeId h = tensor(g, {32});
  for (int64_t t = 0; t < steps; ++t) {
    const NodeId now = g.view(x, {{{t, {}}, {0, {{0, 1}}}}}, {32});
    h = g.pointwise(Op::Add, {g.pointwise(Op::Mul, {a, h}), now});
  }
  g.outputs = {h};
  return g;
}

/// x = x + f(x), f with two products, a norm and a GELU
NodeId residual_block(Graph& g, NodeId x, int64_t wide) {
  const ir::Dim rows = g.sizes(x)[0];
  const NodeId up = tensor(g, {wide, 2 * wide}), down = tensor(g, {2 * wide, wide});
  const NodeId scale = tensor(g, {wide}), bias = tensor(g, {2 * wide});
  const NodeId mean = g.pointwise(
      Op::Mul, {g.reduce(ir::ReduceKind::Sum, x, {1}, DType::F32), number(g, 1.0 / static_cast<double>(wide))});
  const NodeId centred = g.pointwise(Op::Sub, {x, g.expand(g.reshape(mean, {rows, 1}), {rows, wide})});
  const NodeId square = g.reduce(ir::ReduceKind::Sum, g.pointwise(Op::Mul, {centred, centred}), {1}, DType::F32);
  const NodeId inverse = g.pointwise(Op::Rsqrt, {g.pointwise(Op::Add, {square, number(g, 1e-5)})});
  const NodeId normed = g.pointwise(
      Op::Mul, {g.pointwise(Op::Mul, {centred, g.expand(g.reshape(inverse, {rows, 1}), {rows, wide})}), scale});
  const NodeId hidden = g.pointwise(Op::Add, {product(g, normed, up), bias});
  const NodeId gate =
      g.pointwise(Op::Add, {g.pointwise(Op::Erf, {g.pointwise(Op::Mul, {hidden, number(g, 0.7)})}), number(g, 1)});
  return g.pointwise(Op::Add, {x, product(g, g.pointwise(Op::Mul, {hidden, gate}), down)});
}

Graph residual_of(Graph g, ir::Dim rows, int n) {
  NodeId x = tensor(g, {rows, 32});
  for (int i = 0; i < n / 16; ++i) x = residual_block(g, x, 32);
  g.outputs = {x};
  return g;
}
Graph residual(int n) { return residual_of({}, 16, n); }

/// A program for any number of rows.
template <class Make>
Graph for_any_rows(Make make) {
  Graph g;
  g.symbols = std::make_shared<ir::Symbols>();
  const ir::Symbols::Scope scope(g.symbols.get());
  const ir::Dim rows = g.symbols->add(16, "n");
  return make(std::move(g), rows);
}
Graph sized_residual(int n) {
  return for_any_rows([&](Graph g, ir::Dim rows) { return residual_of(std::move(g), rows, n); });
}

Graph optimizer(int n) {
  Graph g;
  for (uint32_t i = 0; i < static_cast<uint32_t>(n) / 5; ++i) {
    const std::vector<ir::Dim> sizes{8 + i % 7, 4};
    const NodeId parameter = tensor(g, sizes), momentum = tensor(g, sizes), gradient = tensor(g, sizes);
    const NodeId next = g.pointwise(Op::Add, {g.pointwise(Op::Mul, {momentum, number(g, 0.9)}), gradient});
    g.stores.push_back({3 * i + 1, next, 1});
    g.stores.push_back({3 * i, g.pointwise(Op::Sub, {parameter, g.pointwise(Op::Mul, {next, number(g, 0.1)})}), 1});
  }
  return g;
}

/// out[t] = h, as one Cat of all rows at the end
Graph slice_stores_of(Graph g, ir::Dim height, int n) {
  std::vector<NodeId> rows;
  NodeId h = tensor(g, {height, 32});
  for (int t = 0; t < n / 3; ++t) {
    h = g.pointwise(Op::Tanh, {g.pointwise(Op::Add, {h, number(g, 0.5)})});
    rows.push_back(h);
  }
  g.outputs = {g.cat(rows, 0)};
  return g;
}
Graph slice_stores(int n) { return slice_stores_of({}, 1, n); }
Graph sized_slice_stores(int n) {
  return for_any_rows([&](Graph g, ir::Dim rows) { return slice_stores_of(std::move(g), rows, n); });
}

/// Reductions of other sizes each, of which some are in memory at a time.
Graph sized_temporaries(int n) {
  return for_any_rows([&](Graph g, ir::Dim rows) {
    NodeId total = number(g, 0);
    for (int i = 0; i < n / 8;) {
      std::vector<NodeId> sums;
      for (; sums.size() < 8; ++i) {
        const NodeId x = g.pointwise(Op::Sub, {tensor(g, {rows + i, 4}), total});
        sums.push_back(g.reduce(ir::ReduceKind::Sum, g.pointwise(Op::Mul, {x, x}), {1}, DType::F32));
      }
      for (; !sums.empty(); sums.pop_back()) {
        const NodeId shifted = g.pointwise(Op::Sub, {sums.back(), total});
        total = g.reduce(ir::ReduceKind::Max, shifted, {0}, DType::F32);
      }
    }
    g.outputs = {total};
    return g;
  });
}

/// One value that everything reads.
Graph hub(int n) {
  Graph g;
  const NodeId x = tensor(g, {64}), y = tensor(g, {64});
  const NodeId middle = g.pointwise(Op::Mul, {x, y});
  for (int i = 0; i < n; ++i) g.outputs.push_back(g.pointwise(Op::Add, {middle, number(g, i)}));
  return g;
}

/// A buffer that calls overwrite again and again, read in between.
Graph overwritten(int n) {
  Graph g;
  const NodeId x = tensor(g, {8, 8});
  for (int i = 0; i < n / 3; ++i) {
    const NodeId read = g.pointwise(Op::Mul, {x, number(g, i)});
    g.external({ir::ExternKind::Op, 0, "aten::add_", {x, read}, {0}, 0});
  }
  return g;
}

struct Shape {
  const char* name;
  Graph (*make)(int);
  friend void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.name; }
};
class PlanScale : public testing::TestWithParam<Shape> {};

TEST_P(PlanScale, WorkGrowsNoFasterThanNLogN) {
  double last = 0;
  for (const int n : {100, 1000, 10000}) {
    const Graph g = GetParam().make(n);
    plan::work_done = 0;
    const plan::Program p = plan::plan(pass::run(g, {}), {});
    const double each = static_cast<double>(plan::work_done) / (n * std::log2(n));
    EXPECT_GT(each, 0);
    if (last > 0) {
      EXPECT_LE(each, 1.3 * last) << n << " operators";
    }
    last = each;
    for (const plan::KernelPlan& kernel : p.kernels) {
      EXPECT_LE(kernel.code.size(), 600u);
      EXPECT_LE(kernel.operands.size(), 64u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, PlanScale,
                         testing::Values(Shape{"Chain", chain}, Shape{"Recurrence", recurrence},
                                         Shape{"Residual", residual}, Shape{"Optimizer", optimizer},
                                         Shape{"SliceStores", slice_stores}, Shape{"Hub", hub},
                                         Shape{"Overwritten", overwritten}, Shape{"SizedResidual", sized_residual},
                                         Shape{"SizedSliceStores", sized_slice_stores},
                                         Shape{"SizedTemporaries", sized_temporaries}),
                         [](const auto& info) { return info.param.name; });

// ---- equal blocks ----

std::set<std::string> texts(const plan::Program& p) {
  std::set<std::string> result;
  for (const plan::KernelPlan& kernel : p.kernels) result.insert(plan::text(kernel));
  return result;
}

TEST(PlanBlocks, FortyEightLayersHaveTheKernelsOfFour) {
  auto planned = [](int layers) { return plan::plan(residual(16 * layers), {}); };
  EXPECT_EQ(texts(planned(48)), texts(planned(4)));
}

/// Every kernel reads and writes a bounded number of values: nothing adds up all earlier branches again.
TEST(PlanBlocks, TrafficOfALayerDoesNotGrowWithDepth) {
  auto loads = [](int layers) {
    size_t operands = 0;
    const plan::Program p = plan::plan(residual(16 * layers), {});
    plan::for_each_step(p, [&](const auto& step) {
      for (const plan::KernelStep& launch : plan::launches_of(step)) operands += launch.operands.size();
    });
    return operands;
  };
  const size_t four = loads(4), eight = loads(8), sixteen = loads(16);
  EXPECT_EQ(eight - four, (sixteen - eight) / 2);
}

TEST(PlanBlocks, WhatComesBeforeABlockDoesNotChangeIt) {
  // The blocks begin with a stream of the program's own, which joins write over; they leave the caller's alone.
  auto planned = [](Graph& g, NodeId x, NodeId y) {
    x = g.pointwise(Op::Sub, {x, y});
    for (int i = 0; i < 3; ++i) x = residual_block(g, x, 32);
    g.outputs = {x};
    return texts(plan::plan(g, {}));
  };
  Graph plain;
  const NodeId a = tensor(plain, {16, 32}), b = tensor(plain, {16, 32});
  const std::set<std::string> alone = planned(plain, a, b);
  std::mt19937 random(7);
  for (int trial = 0; trial < 500; ++trial) {
    Graph g;
    NodeId x = tensor(g, {16, 32});
    const NodeId y = tensor(g, {16, 32});
    for (auto i = random() % 60; i > 0; --i) {
      constexpr Op kOps[] = {Op::Add, Op::Mul, Op::Tanh, Op::Neg, Op::Exp, Op::Max};
      const Op op = kOps[random() % 6];
      x = ir::info(op).arity == 1 ? g.pointwise(op, {x}) : g.pointwise(op, {x, random() % 2 ? y : x});
    }
    const std::set<std::string> found = planned(g, x, y);
    size_t missing = 0;
    for (const std::string& text : alone) missing += !found.contains(text);
    // The first norm may be joined to the prefix; what follows it may not differ.
    EXPECT_LE(missing, 1u) << "trial " << trial;
  }
}

TEST(PlanBlocks, APeriodicChainHasFewKernelsWhateverItsPeriod) {
  constexpr Op kOps[] = {Op::Sin, Op::Neg, Op::Abs, Op::Exp, Op::Tanh, Op::Cos, Op::Sqrt};
  for (int period = 1; period <= 20; ++period) {
    std::mt19937 random(static_cast<uint32_t>(period));
    std::vector<Op> ops;
    for (int i = 0; i < period; ++i) ops.push_back(kOps[random() % 7]);
    for (int prefix = 0; prefix < 3; ++prefix) {
      Graph g;
      NodeId x = tensor(g, {4096});
      for (int i = 0; i < 7 * prefix; ++i) x = g.pointwise(Op::Floor, {x});
      for (int i = 0; i < 1200; ++i) x = g.pointwise(ops[static_cast<size_t>(i % period)], {x});
      g.outputs = {x};
      EXPECT_LE(plan::plan(g, {}).kernels.size(), 5u) << "period " << period << ", prefix " << prefix;
    }
  }
}

}  // namespace
}  // namespace fastjit::test
