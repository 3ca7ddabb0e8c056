// The planner against a slow interpreter on random graphs, and the fusions that people count on.
#include "plan/program.h"

#include <gtest/gtest.h>

#include <array>

#include "plan_graphs.h"
#include "plan_random.h"
#include "reference_machine.h"

namespace fastjit::test {
namespace {

using ir::DType;
using ir::Graph;
using ir::NodeId;
using ir::Op;
using ir::ReduceKind;

/// Empty when graph and program agree.
std::string check(const Graph& g, uint32_t seed, const plan::PlanOptions& options = {}) {
  std::mt19937 random(seed);
  const std::vector<Values> inputs = make_inputs(g, random);
  const std::vector<Num> scalars{{0.75, 3}, {1.5, 2}};
  if (const std::string fault = ir::verify(g); !fault.empty()) return "graph: " + fault;
  try {
    const plan::Program program = plan::plan(g, options);
    const Outcome expected = run_graph(g, inputs, scalars);
    Outcome got;
    try {
      got = Machine(g, program, seed).run(inputs, scalars);
    } catch (const std::exception& error) {
      return std::string(error.what()) + "\n" + plan::text(program);
    }
    const std::string fault = difference(expected, got);
    return fault.empty() ? "" : fault + "\n" + plan::text(program);
  } catch (const std::exception& error) {
    return error.what();
  }
}

TEST(Plan, AgreesWithTheGraphOnRandomGraphs) {
  int wrong = 0;
  for (uint32_t seed = 0; seed < 40'000 && wrong < 3; ++seed) {
    const Graph g = RandomGraph(seed).make();
    plan::PlanOptions options;
    options.costs.tile_bytes = seed % 2 ? 32 : 1 << 19;                   // small: products run tile by tile
    options.own_bytes = std::array{64, 200, 600, 1 << 20}[seed / 2 % 4];  // small: most temporaries are tensors
    options.own_products = seed / 8 % 2;
    const std::string fault = check(g, seed, options);
    EXPECT_EQ(fault, "") << "seed " << seed << "\n" << ir::print(g);
    wrong += !fault.empty();
  }
}

// ---- fusions that people count on ----

NodeId transpose(Graph& g, NodeId x) {
  return g.view(x, {{{0, {{1, 1}}}, {0, {{0, 1}}}}}, {g.sizes(x)[1], g.sizes(x)[0]});
}
NodeId spread(Graph& g, NodeId row, NodeId like) {  // [n] -> [n, m]
  return g.expand(g.reshape(row, {g.sizes(row)[0], 1}), {g.sizes(like).begin(), g.sizes(like).end()});
}
NodeId softmax(Graph& g, NodeId x) {
  const NodeId shifted = g.pointwise(Op::Sub, {x, spread(g, g.reduce(ReduceKind::Max, x, {1}, DType::F32), x)});
  const NodeId e = g.pointwise(Op::Exp, {shifted});
  return g.pointwise(Op::Div, {e, spread(g, g.reduce(ReduceKind::Sum, e, {1}, DType::F32), x)});
}
template <class T>
const T* only(const plan::Program& program) {
  const T* found = nullptr;
  for (const plan::Step& step : program.steps)
    if (const T* one = std::get_if<T>(&step)) {
      if (found) return nullptr;
      found = one;
    }
  return found;
}
plan::Program planned(const Graph& g, const plan::PlanOptions& options = {}) {
  EXPECT_EQ(check(g, 1, options), "");
  return plan::plan(g, options);
}

TEST(Plan, PointwiseChainIsOneKernelOverOneDim) {
  Graph g;
  const NodeId x = tensor(g, {64, 128}), y = tensor(g, {64, 128});
  const NodeId u = g.pointwise(Op::Add, {g.pointwise(Op::Mul, {x, y}), number(g, 1)});
  const NodeId gelu = g.pointwise(
      Op::Mul,
      {u, g.pointwise(Op::Add, {g.pointwise(Op::Erf, {g.pointwise(Op::Mul, {u, number(g, 0.7)})}), number(g, 1)})});
  g.outputs = {g.pointwise(Op::Mul, {gelu, x})};
  const plan::Program p = planned(g);
  ASSERT_EQ(p.steps.size(), 1u);
  EXPECT_EQ(p.kernels[0].rank(), 1);
  EXPECT_EQ(p.kernels[0].operands.size(), 3u);
  EXPECT_EQ(p.arena_bytes, 0);
}

TEST(Plan, BatchSizeDoesNotChangeTheKernel) {
  auto make = [](int64_t batch) {
    Graph g;
    const NodeId x = tensor(g, {batch, 33}), y = tensor(g, {33});
    g.outputs = {softmax(g, g.pointwise(Op::Add, {g.pointwise(Op::Mul, {x, y}), number(g, 1)}))};
    const plan::Program p = planned(g);
    EXPECT_EQ(p.kernels.size(), 1u);
    return plan::text(p.kernels.at(0));
  };
  EXPECT_EQ(make(3), make(64));
  EXPECT_EQ(make(3), make(7));
}

TEST(Plan, SoftmaxIsOneKernelThatKeepsTheExponentials) {
  Graph g;
  g.outputs = {softmax(g, tensor(g, {16, 40}))};
  const plan::Program p = planned(g);
  ASSERT_EQ(p.steps.size(), 1u);
  EXPECT_EQ(p.kernels[0].phases.size(), 3u);
  EXPECT_EQ(p.kernels[0].scratch.size(), 1u);
  EXPECT_FALSE(p.kernels[0].vec_is_kept());
}

TEST(Plan, LayerNormWithResidualIsOneKernel) {
  Graph g;
  const NodeId a = tensor(g, {8, 32}), b = tensor(g, {8, 32}), w = tensor(g, {32}), bias = tensor(g, {32});
  const NodeId x = g.pointwise(Op::Add, {a, b});
  auto mean = [&](NodeId v) {
    return g.pointwise(Op::Mul, {g.reduce(ReduceKind::Sum, v, {1}, DType::F32), number(g, 1.0 / 32)});
  };
  const NodeId d = g.pointwise(Op::Sub, {x, spread(g, mean(x), x)});
  const NodeId scale =
      g.pointwise(Op::Rsqrt, {g.pointwise(Op::Add, {mean(g.pointwise(Op::Mul, {d, d})), number(g, 1e-5)})});
  const NodeId y = g.pointwise(Op::Mul, {d, spread(g, scale, x)});
  g.outputs = {x, g.pointwise(Op::Add, {g.pointwise(Op::Mul, {y, w}), bias})};
  const plan::Program p = planned(g);
  EXPECT_EQ(p.kernels.size(), 1u) << plan::text(p);
  EXPECT_EQ(p.arena_bytes, 0);
}

TEST(Plan, SumOverTheOuterDimHasLanesAlongTheInner) {
  Graph g;
  g.outputs = {g.reduce(ReduceKind::Sum, tensor(g, {50, 256}), {0}, DType::F32)};
  const plan::Program p = planned(g);
  ASSERT_EQ(p.steps.size(), 1u);
  EXPECT_TRUE(p.kernels[0].vec_is_kept());
  EXPECT_EQ(std::get<plan::KernelStep>(p.steps[0]).units, 4);
}

TEST(Plan, TransposedOperandIsTiled) {
  Graph g;
  const NodeId x = tensor(g, {256, 512}), y = tensor(g, {512, 256});
  g.outputs = {g.pointwise(Op::Add, {transpose(g, y), x})};
  const plan::Program p = planned(g);
  const auto* step = only<plan::KernelStep>(p);
  ASSERT_TRUE(step);
  EXPECT_EQ(step->block, 64);
  EXPECT_EQ(step->units, 4 * 8);
  EXPECT_NE(plan::text(p.kernels[0]).find("tile d0 of 64"), std::string::npos);
  EXPECT_TRUE(p.kernels[0].is_transposed(1));
  EXPECT_FALSE(p.kernels[0].is_transposed(0));
  plan::PlanOptions cuda;
  cuda.cuda = true;
  const plan::Program on_gpu = plan::plan(g, cuda);
  EXPECT_EQ(on_gpu.kernels[0].tile, 32);
  EXPECT_EQ(plan::threads_of(on_gpu.kernels[0]), plan::Threads::BlockPerTile);
  EXPECT_EQ(only<plan::KernelStep>(on_gpu)->grid, (plan::Grid{8 * 16, 256, 0}));
}

TEST(Plan, SeveralRowsThatOneVectorHoldsAreAUnit) {
  const auto planned_part = [](int64_t columns, DType dtype, size_t operations) {
    Graph g;
    const NodeId whole = g.input(dtype, {{48, 16}, {16, 1}}, {"x"});
    NodeId made = g.view(whole, {{{0, {{0, 1}}}, {1, {{1, 1}}}}}, {48, columns});
    for (size_t i = 0; i < operations; ++i) made = g.pointwise(Op::Abs, {g.pointwise(Op::Neg, {made})});
    g.outputs = {made};
    plan::PlanOptions options;
    options.lanes = 16;
    return plan::plan(g, options);
  };
  const auto shape = [](const plan::Program& p) {
    return std::tuple(p.kernels[0].lanes, p.kernels[0].rows, std::get<plan::KernelStep>(p.steps[0]).units);
  };
  EXPECT_EQ(shape(planned_part(7, DType::F32, 2)), std::tuple(16, 4, 12));
  EXPECT_EQ(shape(planned_part(7, DType::F64, 2)), std::tuple(8, 4, 12)) << "one register holds them";
  EXPECT_EQ(shape(planned_part(9, DType::F64, 2)), std::tuple(16, 4, 12));
  EXPECT_EQ(shape(planned_part(7, DType::F32, 10)), std::tuple(16, 2, 24)) << "registers for two";
}

/// Many columns of one row's product at a time read each row of the weight as it lies; several batches, which share but
/// one number for all lanes, would read several at once. Of few columns they keep more sums going.
TEST(Plan, AProductOfOneRowReadsItsWeightInOrder) {
  const auto shape = [](int64_t batch, int64_t columns) {
    Graph g;
    const NodeId x = tensor(g, {64}), w = tensor(g, {batch, 64, columns});
    const auto spread = [&](NodeId value, std::vector<uint8_t> dims) {
      ir::IndexMap map;
      for (const uint8_t dim : dims) map.dims.push_back({0, {{dim, 1}}});
      return g.view(value, std::move(map), {batch, columns, 64});
    };
    g.outputs = {g.dot(spread(x, {2}), spread(w, {0, 2, 1}), {2})};
    plan::PlanOptions options;
    options.lanes = 16;
    const plan::Program p = plan::plan(g, options);
    return std::tuple(p.kernels[0].unroll, p.kernels[0].rows, std::get<plan::KernelStep>(p.steps[0]).block);
  };
  EXPECT_EQ(shape(8, 256), std::tuple(16, 1, 256));
  EXPECT_EQ(shape(4, 256), std::tuple(8, 1, 128)) << "threads need units to share";
  EXPECT_EQ(shape(8, 64), std::tuple(4, 4, 64));
}

TEST(Plan, WhatManyValuesCrossIsNotCut) {
  Graph g;
  const NodeId x = tensor(g, {1000}), y = tensor(g, {1000});
  std::vector<NodeId> made{x, y};
  for (size_t i = 0; i < 300; ++i) {
    const NodeId other = made[made.size() - std::min<size_t>(made.size(), 1 + i * 7 % 19)];
    made.push_back(g.pointwise(i % 3 ? Op::Sub : Op::Mul, {made.back(), other}));
  }
  g.outputs = {made.back()};
  const plan::Program p = planned(g);
  EXPECT_EQ(p.kernels.size(), 1u) << plan::text(p);
  EXPECT_EQ(p.arena_bytes, 0);
}

TEST(Plan, IndependentUpdatesAreOneParallelStepInPlace) {
  Graph g;
  for (uint32_t i = 0; i < 20; ++i) {
    const std::vector<ir::Dim> sizes{8 + i, 4};
    const NodeId parameter = tensor(g, sizes), momentum = tensor(g, sizes), gradient = tensor(g, sizes);
    const NodeId next = g.pointwise(Op::Add, {g.pointwise(Op::Mul, {momentum, number(g, 0.9)}), gradient});
    g.stores.push_back({3 * i + 1, next, 1});
    g.stores.push_back({3 * i, g.pointwise(Op::Sub, {parameter, g.pointwise(Op::Mul, {next, number(g, 0.1)})}), 1});
  }
  const plan::Program p = planned(g);
  ASSERT_EQ(p.steps.size(), 1u) << plan::text(p);
  EXPECT_EQ(std::get<plan::ParallelStep>(p.steps[0]).launches.size(), 20u);
  EXPECT_EQ(p.kernels.size(), 1u);
  EXPECT_EQ(p.arena_bytes, 0);
}

/// `base` with a region of its columns, every other one from `first` on, below 1.
NodeId clamped(Graph& g, NodeId base, int64_t first) {
  const ir::IndexMap columns{{ir::Affine{0, {{0, 1}}}, ir::Affine{first, {{1, 2}}}}};
  const NodeId part = g.view(base, columns, {g.sizes(base)[0], 2});
  return g.update(base, g.pointwise(Op::Min, {part, number(g, 1)}), columns);
}

TEST(Plan, WhatIsMadeOnlyToBeWrittenToIsInMemoryOnce) {
  for (const bool joins : {false, true}) {
    Graph g;
    const NodeId x = tensor(g, {100, joins ? 2 : 4}), twice = g.pointwise(Op::Add, {x, x});
    const NodeId base = joins ? g.cat({twice, g.pointwise(Op::Mul, {x, x})}, 1) : twice;
    g.outputs = {clamped(g, clamped(g, base, 0), 1)};
    const plan::Program p = planned(g);
    EXPECT_EQ(p.made.size(), 2u) << "both regions are one kernel's: " << plan::text(p);
    EXPECT_EQ(p.arena_bytes, 0) << plan::text(p);
    EXPECT_EQ(check(g, 5), "");
  }
}

TEST(Plan, ACatThatIsWrittenToSharesNoMemory) {
  Graph g;
  const NodeId x = tensor(g, {10, 4}), y = tensor(g, {10, 4});
  const NodeId first = g.cat({x, y}, 0), longer = g.cat({first, x}, 0), same = g.cat({x, y, y}, 0);
  g.outputs = {g.pointwise(Op::Add, {clamped(g, first, 0), number(g, 2)}),
               g.pointwise(Op::Add, {clamped(g, longer, 1), number(g, 3)}), g.pointwise(Op::Add, {same, number(g, 4)})};
  EXPECT_EQ(check(g, 6), "");
}

TEST(Plan, WhatIsReadInManyBroadcastPlacesIsStored) {
  for (const int64_t boxes : {4, 100}) {
    Graph g;
    const NodeId near = tensor(g, {boxes, 4}), label = tensor(g, {boxes, 1});
    const NodeId moved = g.pointwise(Op::Add, {near, g.pointwise(Op::Mul, {label, number(g, 100)})});
    const auto column = [&](int64_t which, bool is_row) {
      const ir::IndexMap map{{ir::Affine{0, {{is_row ? uint8_t{1} : uint8_t{0}, 1}}}, ir::Affine{which, {}}}};
      return g.view(moved, map, is_row ? std::vector<ir::Dim>{1, boxes} : std::vector<ir::Dim>{boxes, 1});
    };
    const auto side = [&](int64_t which) {
      const NodeId low = g.pointwise(Op::Max, {column(which, false), column(which, true)});
      return g.pointwise(Op::Sub, {g.pointwise(Op::Min, {column(which + 2, false), column(which + 2, true)}), low});
    };
    g.outputs = {g.pointwise(Op::Mul, {side(0), side(1)})};
    const plan::Program p = planned(g);
    EXPECT_EQ(p.made.size(), boxes == 100 ? 2u : 1u) << plan::text(p);
    EXPECT_EQ(check(g, 7), "");
  }
}

TEST(Plan, ProductWithEpilogueRunsInPlaceAndInTiles) {
  Graph g;
  const NodeId x = tensor(g, {96, 128}), y = tensor(g, {96, 64});
  const NodeId mm = product(g, transpose(g, x), y);
  g.outputs = {g.pointwise(Op::Add, {g.pointwise(Op::Mul, {mm, number(g, 100)}), number(g, 10)})};
  for (const int64_t tile : {1 << 19, 4096}) {
    plan::PlanOptions options;
    options.costs.tile_bytes = tile;
    // The operand is x itself with its strides swapped, as torch's t() makes it.
    const plan::Program p = planned(g, options);
    const auto* step = only<plan::ContractStep>(p);
    ASSERT_TRUE(step);
    ASSERT_EQ(step->epilogue.size(), 1u);
    EXPECT_EQ(step->epilogue[0].operands, std::vector<plan::SlotId>{step->result});
    EXPECT_EQ(step->rows_per_tile, tile == 4096 ? 64 : 0);
    // Rows of their own only where tiles need them: a narrow product's epilogue would fill few lanes.
    const std::vector<int64_t> whole{128 * 64}, rows{128, 64};
    EXPECT_EQ(step->epilogue[0].sizes, tile == 4096 ? rows : whole);
    EXPECT_EQ(p.outputs[0], step->result);
  }
}

// Rows and columns of a square product look alike: only the stride tells which of them the outer loop is over.
TEST(Plan, TilesFollowTheRowsOfTheProduct) {
  for (const bool reduces : {false, true}) {
    Graph g;
    const NodeId x = tensor(g, {96, 96}), mm = product(g, x, tensor(g, {96, 96}));
    const NodeId sum = g.pointwise(Op::Add, {mm, x});
    g.outputs = {reduces ? g.reduce(ReduceKind::Sum, sum, {0}, DType::F32) : transpose(g, sum)};
    plan::PlanOptions options;
    options.costs.tile_bytes = 4096;
    const plan::Program p = planned(g, options);
    EXPECT_EQ(check(g, 1, options), "");
    const auto* step = only<plan::ContractStep>(p);
    ASSERT_TRUE(step) << plan::text(p);
    EXPECT_EQ(step->rows_per_tile, 0) << plan::text(p);
  }
}

TEST(Plan, EpilogueHoldsResidualAndTheRowsStatistics) {
  Graph g;
  const NodeId x = tensor(g, {96, 128}), stream = tensor(g, {96, 64});
  const NodeId sum = g.pointwise(Op::Add, {product(g, x, tensor(g, {128, 64})), stream});
  g.outputs = {sum, softmax(g, sum)};
  for (const int64_t tile : {1 << 19, 4096}) {
    plan::PlanOptions options;
    options.costs.tile_bytes = tile;
    EXPECT_EQ(check(g, 1, options), "");
    const plan::Program p = planned(g, options);
    const auto* step = only<plan::ContractStep>(p);
    ASSERT_TRUE(step) << plan::text(p);
    ASSERT_EQ(step->epilogue.size(), 1u);
    EXPECT_EQ(step->rows_per_tile, tile == 4096 ? 64 : 0);
  }
}

TEST(Plan, ProductsAreOrderedByMemoryAlone) {
  Graph g;
  const NodeId x = tensor(g, {96, 96});
  const NodeId first = product(g, x, x);
  const NodeId second = product(g, x, tensor(g, {96, 96}));
  product(g, second, x);  // nobody wants it
  const NodeId call = g.external({ir::ExternKind::Op, 0, "fake::op", {second}, {}, 1});
  g.outputs = {g.pointwise(Op::Mul, {first, g.result(call, 0, DType::F32, g.layout(second))})};
  const plan::Program p = planned(g);
  std::vector<const plan::ContractStep*> products;
  for (const plan::Step& step : p.steps)
    if (const auto* product = std::get_if<plan::ContractStep>(&step)) products.push_back(product);
  ASSERT_EQ(products.size(), 2u) << plan::text(p);
  EXPECT_EQ(products[0]->call, 1u) << "the first product waits for what its epilogue reads";
  EXPECT_EQ(products[1]->epilogue.size(), 1u) << plan::text(p);
}

TEST(Plan, AConvolutionsEpilogueRunsInItsResult) {
  for (const bool channels_last : {false, true}) {
    Graph g;
    const NodeId x = tensor(g, {1, 8, 6, 6}), weight = tensor(g, {4, 8, 3, 3});
    const std::vector<ir::Dim> sizes{1, 4, 4, 4};
    const std::vector<ir::Dim> strides = channels_last ? std::vector<ir::Dim>{64, 1, 16, 4} : ir::row_major(sizes);
    const NodeId conv =
        g.contract({ir::Product::Convolution, 0, "aten::conv2d", {x, weight}}, DType::F32, {sizes, strides});
    const NodeId relu = g.pointwise(Op::Max, {conv, g.constant(DType::F32, 0)});
    g.outputs = {g.with_strides(relu, strides)};
    const plan::Program p = plan::plan(g, {});
    const auto* step = only<plan::ContractStep>(p);
    ASSERT_TRUE(step) << plan::text(p);
    ASSERT_EQ(step->epilogue.size(), 1u);
    EXPECT_EQ(step->epilogue[0].operands, std::vector<plan::SlotId>{step->result});
    EXPECT_EQ(p.outputs[0], step->result);
    EXPECT_EQ(p.arena_bytes, 0);
  }
}

/// The rows' kernel is formed again without kept values once all kernels are there: by then the constant has memory.
TEST(Plan, AKernelFormedAgainReadsNothingThatIsMadeLater) {
  const Graph g = ir::parse(R"(%0 = input f32[6,4] "x0"
%1 = const f32[] 0.5 bits=3fe0000000000000
%2 = add f32[6,4] %0 %1
%3 = reduce f32[6] %2 max dims=1
%4 = view f32[6,1] %3 map{0+1*d0}
%5 = view f32[6,4] %4 map{0+1*d0;0}
%6 = sub f32[6,4] %2 %5
%7 = exp f32[6,4] %6
%8 = reduce f32[6] %7 sum dims=1
%9 = view f32[6,1] %8 map{0+1*d0}
%10 = view f32[6,4] %9 map{0+1*d0;0}
%11 = div f32[6,4] %7 %10
%12 = view f32[] %1 map{}
%13 = reduce f32[4] %11 max dims=0
%14 = view f32[1,4] %13 map{0+1*d1}
%15 = view f32[6,4] %14 map{0;0+1*d1}
%16 = sub f32[6,4] %11 %15
return %16 %12
)");
  for (uint32_t seed = 0; seed < 8; ++seed) EXPECT_EQ(check(g, seed), "");
}

/// As are views of torch's: their elements are wanted as they were before the write.
TEST(Plan, WhatAViewReadBeforeAWriteIsKept) {
  const Graph g = ir::parse(R"(%0 = input f32[4,6] "x0"
%1 = max f32[4,6] %0 %0
%2 = extern f32[] %1 "fake::view" kind=view call=0 outputs=1 written=
%3 = result f32[6,4](1,6) %2 which=0
%4 = reshape f32[2,3,4] %3
%5 = extern f32[] %1 "fake::write" kind=op call=0 outputs=1 written=0
%6 = result f32[4,6] %5 which=0
%7 = neg f32[2,3,4] %4
%8 = neg f32[4,6] %6
return %7 %8
)");
  EXPECT_EQ(check(g, 0), "");
}

TEST(Plan, CatPartsAreWrittenInPlace) {
  Graph g;
  const NodeId a = tensor(g, {4, 8}), b = tensor(g, {2, 8}), c = tensor(g, {5, 8});
  g.outputs = {g.cat({g.pointwise(Op::Tanh, {a}), g.pointwise(Op::Neg, {b}), c}, 0)};
  const plan::Program p = planned(g);
  ASSERT_EQ(p.steps.size(), 1u) << plan::text(p);
  EXPECT_EQ(std::get<plan::ParallelStep>(p.steps[0]).launches.size(), 3u);
  EXPECT_EQ(p.arena_bytes, 0);
}

TEST(Plan, ACatThatOnlyAnotherOneBeginsWithIsWritten) {
  Graph g;
  const NodeId a = tensor(g, {2, 8}), b = tensor(g, {3, 8});
  ir::ExternAttr attr;
  attr.name = "fake::op";
  attr.operands = {a};
  const NodeId made = g.result(g.external(attr), 0, DType::F32, {{2, 8}, {8, 1}});
  const NodeId all = g.cat({g.cat({g.cat({made, b}, 0), g.pointwise(Op::Neg, {a})}, 0), b}, 0);
  g.outputs = {g.pointwise(Op::Tanh, {all})};
  planned(g);
}

TEST(Plan, ExpensiveValuesAreNotComputedAgainByBroadcast) {
  Graph g;
  const NodeId x = tensor(g, {64, 128}), gate = tensor(g, {128});
  g.outputs = {g.pointwise(Op::Mul, {x, g.pointwise(Op::Sigmoid, {gate})})};
  const plan::Program p = planned(g);
  EXPECT_EQ(p.kernels.size(), 2u) << plan::text(p);
  EXPECT_EQ(p.arena_bytes, 128 * 4);
}

// A kernel says which functions its uses call: those whose code would make it too long.
TEST(Plan, FunctionsUsedOftenHaveOneBody) {
  auto calls = [](Op op, int uses, bool cuda = false) {
    Graph g;
    NodeId x = tensor(g, {64});
    for (int i = 0; i < uses; ++i) x = g.pointwise(Op::Add, {g.pointwise(op, {x}), number(g, 0.1)});
    g.outputs = {x};
    plan::PlanOptions options;
    options.cuda = cuda;
    size_t called = 0, computed = 0;
    for (const plan::KernelPlan& kernel : plan::plan(g, options).kernels)
      for (const plan::Instr& in : kernel.code) {
        called += in.shared;
        computed += in.code == plan::Code::Compute && in.op == op;
      }
    EXPECT_TRUE(called == 0 || called == computed) << called << " of " << computed;
    return called > 0;
  };
  EXPECT_FALSE(calls(Op::Sin, 2));
  EXPECT_TRUE(calls(Op::Sin, 3));
  EXPECT_TRUE(calls(Op::Sin, 20));
  EXPECT_FALSE(calls(Op::Sin, 20, true));
  EXPECT_FALSE(calls(Op::Exp, 4));
  EXPECT_TRUE(calls(Op::Exp, 8));
  EXPECT_FALSE(calls(Op::Tanh, 4));
  EXPECT_TRUE(calls(Op::Erfc, 8));
  EXPECT_FALSE(calls(Op::Neg, 20));
  auto sum_calls = [](Op op, int uses) {  // functions that do not wait for one another
    Graph g;
    const NodeId x = tensor(g, {64});
    NodeId sum = x;
    for (int i = 0; i < uses; ++i)
      sum = g.pointwise(Op::Add, {sum, g.pointwise(op, {g.pointwise(Op::Mul, {x, number(g, i + 2)})})});
    g.outputs = {sum};
    const plan::Program p = plan::plan(g, {});
    EXPECT_EQ(p.kernels.size(), 1u);
    const auto& code = p.kernels[0].code;
    return std::any_of(code.begin(), code.end(), [](const plan::Instr& in) { return in.shared; });
  };
  EXPECT_FALSE(sum_calls(Op::Sin, 4));
  EXPECT_TRUE(sum_calls(Op::Sin, 10));
  EXPECT_FALSE(sum_calls(Op::Exp, 10));
}

TEST(Plan, LongChainsAreCutAndDeepStencilsStayBounded) {
  Graph g;
  NodeId x = tensor(g, {64});
  for (int i = 0; i < 1500; ++i) x = g.pointwise(i % 2 ? Op::Abs : Op::Neg, {x});
  for (int i = 0; i < 12; ++i) x = g.pointwise(Op::Add, {x, g.view(x, {{{63, {{0, -1}}}}}, {64})});
  for (int i = 0; i < 12; ++i) {
    const NodeId cut = g.view(x, {{{1, {{0, 1}}}}}, {g.sizes(x)[0] - 1});
    x = g.pointwise(Op::Mul, {cut, g.view(x, {{{0, {{0, 1}}}}}, {g.sizes(x)[0] - 1})});
  }
  g.outputs = {x};
  const plan::Program p = planned(g);
  size_t code = 0;
  for (const plan::KernelPlan& kernel : p.kernels) code += kernel.code.size();
  EXPECT_LT(code, 3000u);
}

TEST(Plan, LongReductionsGoThroughPartialResults) {
  for (const auto& [sizes, dims] : std::vector<std::pair<std::vector<ir::Dim>, std::vector<uint8_t>>>{
           {{1 << 17}, {0}}, {{300, 512}, {0, 1}}, {{1 << 12, 3, 20}, {0, 2}}, {{131072, 2}, {0}}}) {
    Graph g;
    const NodeId x = tensor(g, sizes);
    g.outputs = {g.reduce(ReduceKind::Sum, g.pointwise(Op::Mul, {x, x}), dims, DType::F32),
                 g.reduce(ReduceKind::Max, x, dims, DType::F32)};
    const plan::Program p = planned(g);
    EXPECT_EQ(p.steps.size(), 2u) << plan::text(p);
  }
}

// Columns in one tile are one unit of work, so tall ones are cut too. The order in memory says what a column is.
TEST(Plan, TallReductionsGoThroughPartialResults) {
  using Dims = std::vector<ir::Dim>;
  const auto steps = [](const Dims& sizes, const Dims& strides, std::vector<uint8_t> dims) {
    Graph g;
    const NodeId x = tensor(g, sizes, strides), y = g.pointwise(Op::Mul, {x, x});
    g.outputs = {g.reduce(ReduceKind::Sum, y, std::move(dims), DType::F32)};
    return planned(g).steps.size();
  };
  EXPECT_EQ(steps({4096, 64}, {64, 1}, {0}), 2u);
  EXPECT_EQ(steps({4096, 256}, {256, 1}, {0}), 1u) << "four units";
  EXPECT_EQ(steps({1024, 64}, {64, 1}, {0}), 1u) << "not so tall";
  EXPECT_EQ(steps({4, 16, 64, 64}, {65536, 1, 1024, 16}, {0, 2, 3}), 2u);
  EXPECT_EQ(steps({4, 16, 64, 64}, {65536, 4096, 64, 1}, {0, 2, 3}), 1u) << "sixteen units";
}

TEST(Plan, ExpandedOutputsAreWrittenOnce) {
  Graph g;
  const NodeId x = tensor(g, {4});
  g.outputs = {g.with_strides(g.expand(g.pointwise(Op::Neg, {x}), {3, 4}), {0, 1})};
  planned(g);
}

TEST(Plan, StoresAndWhatAGuardDoesNotNeedWaitForIt) {
  Graph g;
  const NodeId x = tensor(g, {64}), y = tensor(g, {64});
  const NodeId next = g.pointwise(Op::Add, {x, number(g, 1)});
  const NodeId top = g.reduce(ReduceKind::Max, next, {0}, DType::F32);
  g.external({ir::ExternKind::Guard, 0, "b at model.py:9", {top}, {}, 0});
  g.outputs = {g.pointwise(Op::Exp, {y})};
  g.stores = {{0, next, 1}};
  const plan::Program p = planned(g);
  EXPECT_EQ(ir::print(ir::parse(ir::print(g))), ir::print(g));
  const auto* guard = only<plan::GuardStep>(p);
  ASSERT_NE(guard, nullptr) << plan::text(p);
  EXPECT_EQ(p.slots[guard->slot].kind, plan::SlotKind::Temp) << "no tensor is made for it";
  ASSERT_GE(p.steps.size(), 3u);
  EXPECT_TRUE(std::holds_alternative<plan::KernelStep>(p.steps[0])) << plan::text(p);
  EXPECT_TRUE(std::holds_alternative<plan::GuardStep>(p.steps[1])) << plan::text(p);
  g.externs[0].outputs = 1;
  EXPECT_NE(ir::verify(g).find("a guard has one operand and no outputs"), std::string::npos);
}

TEST(Plan, ANumberOfASizeWaitsForTheCallThatFindsIt) {
  Graph g;
  g.symbols = std::make_shared<ir::Symbols>();
  const ir::Symbols::Scope scope(g.symbols.get());
  const ir::Dim found = g.symbols->add_late(5, "n");
  const NodeId x = tensor(g, {64});
  const NodeId finder = g.external({ir::ExternKind::Op, 0, "fake::find", {g.pointwise(Op::Exp, {x})}, {}, 1});
  const NodeId y = g.result(finder, 0, DType::F32, {{found}, {1}});
  const auto size = static_cast<uint32_t>(g[g.size(found)].attr);
  const NodeId share = g.result(g.external({ir::ExternKind::Number, 0, "1 / n", {}, {}, 1, {size}}), 0, DType::F64, {});
  g.outputs = {g.pointwise(Op::Mul, {g.pointwise(Op::Neg, {x}), g.convert(share, DType::F32)}), y};
  const plan::Program p = plan::plan(g, {});
  const auto place = [&](auto is_it) { return std::ranges::find_if(p.steps, is_it) - p.steps.begin(); };
  const auto call = place([](const auto& step) { return std::holds_alternative<plan::ExternStep>(step); });
  const auto number = place([](const auto& step) { return std::holds_alternative<plan::NumberStep>(step); });
  EXPECT_LT(call, number) << plan::text(p);
  EXPECT_LT(number, std::ssize(p.steps)) << plan::text(p);
}

TEST(Plan, SwappedInputsKeepTheirOldValues) {
  Graph g;
  const NodeId x = tensor(g, {8}), y = tensor(g, {8});
  g.stores = {{0, y, 1}, {1, x, 1}};
  planned(g);
}

}  // namespace
}  // namespace fastjit::test
