// Programs for any size: planned once with symbols, run at other sizes that the guards let in, against the reference on
// the same graph with numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "pass/pass.h"
#include "plan/program.h"
#include "plan/team.h"
#include "plan_graphs.h"
#include "random_rounds.h"
#include "reference_machine.h"
#include "sized_random.h"

namespace fastjit::test {
namespace {

using ir::Dim;
using ir::DType;
using ir::Graph;
using ir::NodeId;
using ir::Op;
using ir::ReduceKind;
using Sizes = std::vector<int64_t>;
using Dims = std::vector<Dim>;

/// A graph of some sizes: with symbols and with numbers.
using Build = std::function<Graph(const Dims&, std::shared_ptr<ir::Symbols>)>;

Graph build_with_numbers(const Build& build, const Sizes& sizes) {
  return build(Dims(sizes.begin(), sizes.end()), nullptr);
}

void each_dim(Graph& g, const std::function<void(Dim&)>& visit) {
  for (ir::Layout& layout : g.layouts) {
    std::ranges::for_each(layout.sizes, visit);
    std::ranges::for_each(layout.strides, visit);
  }
  for (ir::IndexMap& map : g.maps)
    for (ir::Affine& row : map.dims) {
      visit(row.offset);
      for (auto& [dim, coefficient] : row.terms) visit(coefficient);
    }
}

int64_t points(const Graph& g) {
  int64_t sum = 0;
  for (NodeId id = 0; id < g.nodes.size(); ++id) sum += g.layout(id).numel().hint();
  return sum;
}

/// A program for any size, with the graph that it was planned from.
class Sized {
 public:
  Sized(const Build& build, const Sizes& sizes, const plan::PlanOptions& options = {}, bool passes = false)
      : build_(build), options_(options) {
    const auto symbols = std::make_shared<ir::Symbols>();
    const ir::Symbols::Scope scope(symbols.get());
    Dims dims;
    for (size_t i = 0; i < sizes.size(); ++i) dims.push_back(symbols->add(sizes[i], std::string(1, "nmkj"[i])));
    graph_ = build(dims, symbols);
    if (passes) graph_ = pass::run(graph_, {});
    make_program();
  }

  /// The same graph planned for these sizes, which are let in.
  Sized planned_for(const Sizes& sizes) const {
    Sized anew = *this;
    anew.graph_ = ir::at_sizes(graph_, sizes);
    const std::vector<int64_t> registers = this->registers(sizes);
    each_dim(anew.graph_, [&](Dim& dim) {
      if (dim.is_symbolic()) {
        EXPECT_EQ(dim.hint(), registers[code_.place[dim.expr()]]);
      }
    });
    anew.make_program();
    return anew;
  }

  std::vector<std::string> guards() const { return graph_.symbols->guards(); }
  const plan::Program& program() const { return program_; }
  std::string text() const {
    std::string out;
    for (const std::string& guard : guards()) out += guard + "\n";
    return out + ir::print(graph_);
  }

  /// What the symbols make of the expressions; empty where a guard fails.
  std::vector<int64_t> registers(const Sizes& sizes) const {
    std::vector<int64_t> registers = sizes;
    registers.resize(code_.registers());
    if (!code_.run(registers.data())) registers.clear();
    return registers;
  }
  bool lets_in(const Sizes& sizes) const { return !registers(sizes).empty(); }

  plan::Program at(const std::vector<int64_t>& registers) const {
    plan::Program program = program_;
    const std::vector<int64_t*> places = plan::places_of_sizes(program);
    for (size_t i = 0; i < places.size(); ++i) *places[i] = registers[code_.place[program.sized[i].expr]];
    plan::settle_launches(program, options_);
    plan::settle_trips(program);
    plan::share_rounds(program, options_);
    return program;
  }
  Graph graph_at(const std::vector<int64_t>& registers) const {
    Graph graph = graph_;
    graph.symbols = nullptr;
    each_dim(graph, [&](Dim& dim) {
      if (dim.is_symbolic()) dim = registers[code_.place[dim.expr()]];
    });
    return graph;
  }

  /// Empty where the program does at these sizes, which are let in, what the graph of them does.
  std::string check(const Sizes& sizes, uint32_t seed = 1) const {
    const std::vector<int64_t> registers = this->registers(sizes);
    const Graph numbers = build_with_numbers(build_, sizes);
    const std::vector<Num> scalars{{0.75, 3}, {1.5, 2}};
    std::mt19937 random(seed);
    const std::vector<Values> inputs = make_inputs(numbers, random);
    const Outcome expected = run_graph(numbers, inputs, scalars);
    const bool has_other_rounds = !graph_.traced.empty();
    const Graph graph = has_other_rounds ? numbers : graph_at(registers);
    if (const std::string fault = ir::verify(graph); !fault.empty()) return "graph: " + fault;
    if (const std::string fault = difference(expected, run_graph(graph, inputs, scalars)); !fault.empty())
      return "graph: " + fault;
    const plan::Program program = at(registers);
    const Graph called = graph_at(registers);  // steps name calls by their numbers in the recorded one
    try {
      const std::string fault = difference(expected, Machine(called, program, seed).run(inputs, scalars));
      return fault.empty() ? "" : fault + "\n" + plan::text(program);
    } catch (const std::exception& error) {
      return std::string(error.what()) + "\n" + plan::text(program);
    }
  }

 private:
  void make_program() {
    const ir::Symbols::Scope scope(graph_.symbols.get());
    try {
      program_ = plan::plan(graph_, options_);
    } catch (const std::exception& error) {
      throw std::runtime_error(error.what() + ("\n" + text()));
    }
    std::vector<uint32_t> wanted;
    for (const plan::SizedNumber& number : program_.sized) wanted.push_back(number.expr);
    each_dim(graph_, [&](Dim& dim) { wanted.push_back(dim.expr()); });
    code_ = graph_.symbols->code(wanted);
  }

  Build build_;
  plan::PlanOptions options_;
  Graph graph_;
  plan::Program program_;
  ir::SizeCode code_;
};

std::string list(const Sizes& sizes) {
  std::string out;
  for (const int64_t size : sizes) out += std::to_string(size) + " ";
  return out;
}

/// Many of them coincide, or make 0 and 1: what is only so by chance must not be taken for a rule.
Sizes recorded_sizes(std::mt19937& random) {
  Sizes sizes(1 + random() % 3);
  const uint32_t kind = random() % 4;
  const auto one = static_cast<int64_t>(2 + random() % 5);
  for (int64_t& size : sizes)
    size = kind == 0   ? one
           : kind == 1 ? static_cast<int64_t>(2 + random() % 2)
           : kind == 2 ? int64_t{2} << random() % 3
                       : static_cast<int64_t>(2 + random() % 8);
  return sizes;
}

/// Sizes near and far from those that were recorded.
Sizes other_sizes(const Sizes& recorded, std::mt19937& random) {
  static constexpr int64_t kPrimes[]{41, 97, 1009, 10007};
  Sizes sizes = recorded;
  switch (random() % 6) {
    case 0:  // one differs
      sizes[random() % sizes.size()] = static_cast<int64_t>(2 + random() % 39);
      break;
    case 1:
      std::ranges::fill(sizes, static_cast<int64_t>(2 + random() % 39));
      break;
    case 2:
      for (int64_t& size : sizes) size *= static_cast<int64_t>(1 + random() % 3);
      break;
    case 3:
      for (int64_t& size : sizes) size = 2 + static_cast<int64_t>(random() % 2);
      break;
    case 4:
      sizes[random() % sizes.size()] = kPrimes[random() % std::size(kPrimes)];
      break;
    default:
      for (int64_t& size : sizes) size = static_cast<int64_t>(2 + random() % 39);
  }
  return sizes;
}

uint32_t number_from(const char* name, uint32_t otherwise) {
  const char* text = std::getenv(name);
  return text ? static_cast<uint32_t>(std::atoi(text)) : otherwise;
}

TEST(SizedPlan, AgreesWithTheGraphAtOtherSizes) {
  constexpr int kTries = 8;
  constexpr int64_t kMostPoints = 12'000;
  int wrong = 0, tried = 0, let_in = 0, ran = 0, anew = 0, alike = 0;
  const uint32_t first = number_from("SIZED_FIRST", 0), last = number_from("SIZED_LAST", 1500);
  for (uint32_t seed = first; seed < last && wrong < 3; ++seed) {
    std::mt19937 random(seed);
    Choices choices(seed);
    const Build build = [&](const Dims& dims, std::shared_ptr<ir::Symbols> symbols) {
      choices.rewind();
      return SizedRandomGraph(choices, dims, std::move(symbols)).make();
    };
    const Sizes recorded = recorded_sizes(random);
    plan::PlanOptions options;
    options.costs.tile_bytes = seed % 2 ? 32 : 1 << 19;
    options.cuda = seed % 7 == 0;
    options.own_products = !options.cuda && seed / 8 % 2;
    options.own_bytes = std::array{64, 200, 600, 1 << 20}[seed / 2 % 4];
    std::string fault, where = list(recorded);
    try {
      const Sized sized(build, recorded, options, seed % 3 == 0);
      fault = sized.lets_in(recorded) ? sized.check(recorded, seed) : "the recorded sizes are not let in";
      for (int i = 0; i < kTries && fault.empty(); ++i) {
        const Sizes sizes = other_sizes(recorded, random);
        const std::vector<int64_t> registers = sized.registers(sizes);
        ++tried;
        if (registers.empty()) continue;
        ++let_in;
        if (points(sized.graph_at(registers)) > kMostPoints) continue;
        ++ran;
        fault = sized.check(sizes, seed);
        where += "at " + list(sizes);
        if (!fault.empty() || i % 4) continue;
        const Sized other = sized.planned_for(sizes);
        ++anew;
        alike += other.guards() == sized.guards();
        EXPECT_TRUE(other.lets_in(sizes)) << "seed " << seed << " planned for " << list(sizes);
        for (const Sizes& both : {sizes, recorded})
          if (fault.empty() && other.lets_in(both)) fault = other.check(both, seed);
        if (!fault.empty()) where += "planned for them ";
      }
      if (!fault.empty()) fault += "\n" + sized.text();
    } catch (const std::exception& error) {
      fault = error.what();
    }
    EXPECT_EQ(fault, "") << "seed " << seed << ", recorded " << where;
    wrong += !fault.empty();
  }
  std::cout << tried << " sizes, let in " << let_in << ", ran " << ran << "; planned anew for " << anew
            << ", with the same guards " << alike << "\n";
  EXPECT_GT(ran, tried / 4);
  EXPECT_GT(alike, anew * 9 / 10);
}

bool has_loop(const plan::Program& program) {
  const auto is_loop = [](const plan::Step& step) { return std::holds_alternative<plan::LoopStep>(step); };
  return std::ranges::any_of(program.kernels, &plan::KernelPlan::is_over_time) ||
         std::ranges::any_of(program.steps, is_loop);
}

TEST(SizedPlan, LoopsAgreeAtOtherSizes) {
  constexpr int kTries = 3;
  uint32_t loops = 0, tried = 0, ran = 0;
  const uint32_t first = number_from("SIZED_FIRST", 0), last = number_from("SIZED_LOOPS", 60);
  for (uint32_t seed = first; seed < last; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&](int64_t most) {
      return 2 + static_cast<int64_t>(random() % static_cast<uint32_t>(most - 1));
    };
    const bool any_columns = seed % 3 == 0;
    const Build build = [&](const Dims& dims, std::shared_ptr<ir::Symbols> symbols) {
      return RandomRounds(seed, 33 + seed % 5, seed % 4 < 2, dims[0], any_columns ? dims[1] : 4, symbols).make();
    };
    Sizes recorded{draw(6)};
    if (any_columns) recorded.push_back(draw(6));
    plan::PlanOptions options;
    options.own_products = seed % 4 != 0;
    options.threads = 1 + seed % 2;
    const Sized sized(build, recorded, options);
    ASSERT_TRUE(sized.lets_in(recorded)) << "seed " << seed;
    ASSERT_EQ(sized.check(recorded, seed), "") << "seed " << seed << "\n" << sized.text();
    loops += has_loop(sized.program());
    for (int i = 0; i < kTries; ++i, ++tried) {
      Sizes sizes;
      while (sizes.size() < recorded.size()) sizes.push_back(draw(i == 0 ? 16 : 6));
      if (!sized.lets_in(sizes)) continue;
      ++ran;
      ASSERT_EQ(sized.check(sizes, seed), "") << "seed " << seed << " at " << list(sizes) << "\n" << sized.text();
    }
  }
  std::cout << loops << " of " << last - first << " have loops; " << ran << " of " << tried << " sizes let in\n";
  EXPECT_GT(loops, (last - first) / 4);
  EXPECT_GT(ran, tried / 2);
}

/// Whether the graph can be planned for any number of rounds.
bool takes_any_trip(const Build& build, const Sizes& sizes, const plan::PlanOptions& options) {
  const auto symbols = std::make_shared<ir::Symbols>();
  const ir::Symbols::Scope scope(symbols.get());
  Dims dims;
  for (const int64_t size : sizes) dims.push_back(symbols->add(size, "n"));
  const Graph graph = build(dims, symbols);
  EXPECT_EQ(ir::verify(graph), "");
  return plan::takes_any_trip(graph, options);
}

/// Loops of which a call runs any number of rounds. `calls`: torch computes some of the rounds.
void compare_other_rounds(bool calls) {
  uint32_t loops = 0, tried = 0, ran = 0, with_calls = 0;
  const uint32_t first = number_from("SIZED_FIRST", 0), last = number_from("SIZED_LOOPS", 60);
  for (uint32_t seed = first; seed < last; ++seed) {
    std::mt19937 random(seed);
    const Build build = [&](const Dims& dims, std::shared_ptr<ir::Symbols> symbols) {
      return RandomRounds(seed, dims[0], calls, seed % 2 ? dims[1] : 3, 4, symbols, true).make();
    };
    Sizes recorded{5 + seed % 9};
    if (seed % 2) recorded.push_back(2 + seed % 5);
    plan::PlanOptions options;
    options.own_products = !calls || seed % 3 != 0;
    options.threads = 1 + seed % 2;
    if (!takes_any_trip(build, recorded, options)) continue;
    ++loops;
    const Sized sized(build, recorded, options);
    with_calls += plan::text(sized.program()).find("\n    hand ") != std::string::npos;
    ASSERT_EQ(sized.check(recorded, seed), "") << "seed " << seed << "\n" << sized.text();
    for (const int64_t rounds : {3, 4, 5, 8, 17, 40, 301}) {
      Sizes sizes{rounds};
      if (recorded.size() > 1) sizes.push_back(2 + static_cast<int64_t>(random() % 6));
      ++tried;
      if (!sized.lets_in(sizes)) continue;
      ++ran;
      ASSERT_EQ(sized.check(sizes, seed), "") << "seed " << seed << " at " << list(sizes) << "\n" << sized.text();
    }
  }
  std::cout << loops << " of " << last - first << " are loops; " << ran << " of " << tried << " numbers let in\n";
  EXPECT_GT(loops, (last - first) / 4);
  EXPECT_GT(ran, tried * 3 / 4);
  EXPECT_EQ(with_calls > loops / 4, calls);
}

TEST(SizedPlan, LoopsAgreeWithOtherNumbersOfRounds) { compare_other_rounds(false); }
TEST(SizedPlan, LoopsWithCallsAgreeWithOtherNumbersOfRounds) { compare_other_rounds(true); }

// ---- by hand ----

NodeId spread(Graph& g, NodeId row, NodeId like) {  // [n] -> [n, m]
  return g.expand(g.reshape(row, {g.sizes(row)[0], 1}), {g.sizes(like).begin(), g.sizes(like).end()});
}

/// Agrees at these sizes, all of which are let in.
void expect_right(const Sized& sized, const std::vector<Sizes>& all) {
  for (const Sizes& sizes : all) {
    ASSERT_TRUE(sized.lets_in(sizes)) << list(sizes) << sized.text();
    EXPECT_EQ(sized.check(sizes), "") << list(sizes) << sized.text();
  }
}

using Guards = std::vector<std::string>;

TEST(SizedPlan, PointwiseWorkNeedsEqualSizesAndNoMore) {
  const Build build = [](const Dims& dims, auto symbols) {
    Graph g;
    g.symbols = symbols;
    const NodeId x = tensor(g, {dims[0]}), y = tensor(g, {dims[1]});
    g.outputs = {g.pointwise(Op::Add, {g.pointwise(Op::Mul, {x, y}), number(g, 1)})};
    return g;
  };
  const Sized sized(build, {5, 5});
  EXPECT_EQ(sized.guards(), (Guards{"n >= 2", "m >= 2", "n == m"}));
  EXPECT_EQ(sized.program().steps.size(), 1u);
  expect_right(sized, {{5, 5}, {2, 2}, {8191, 8191}, {8192, 8192}, {8193, 8193}, {10007, 10007}});
  EXPECT_FALSE(sized.lets_in({5, 6}));
  EXPECT_FALSE(sized.lets_in({1, 1}));
  EXPECT_FALSE(sized.lets_in({0, 0}));
}

TEST(SizedPlan, RowsHaveNoGuards) {
  const Build build = [](const Dims& dims, auto symbols) {
    Graph g;
    g.symbols = symbols;
    const NodeId x = tensor(g, {dims[0], dims[1]});
    const NodeId shifted = g.pointwise(Op::Sub, {x, spread(g, g.reduce(ReduceKind::Max, x, {1}, DType::F32), x)});
    const NodeId e = g.pointwise(Op::Exp, {shifted});
    g.outputs = {g.pointwise(Op::Div, {e, spread(g, g.reduce(ReduceKind::Sum, e, {1}, DType::F32), x)}),
                 g.reduce(ReduceKind::Sum, x, {0}, DType::F32), g.reduce(ReduceKind::ArgMax, x, {0, 1}, DType::I64)};
    return g;
  };
  for (const Sizes& recorded : std::vector<Sizes>{{5, 7}, {4, 4}, {2, 300}, {300, 2}}) {
    const Sized sized(build, recorded);
    EXPECT_EQ(sized.guards(), (Guards{"n >= 2", "m >= 2"}));
    expect_right(sized, {recorded, {2, 2}, {7, 5}, {2, 1009}, {1009, 2}, {31, 33}});
  }
}

/// Of several reductions each keeps its scratch memory apart from the sizes that were recorded.
TEST(SizedPlan, ScratchGrowsWithTheRow) {
  const Build build = [](const Dims& dims, auto symbols) {
    Graph g;
    g.symbols = symbols;
    const NodeId x = tensor(g, {dims[0], dims[1]});
    const NodeId e = g.pointwise(Op::Exp, {x});
    g.outputs = {g.pointwise(Op::Div, {e, spread(g, g.reduce(ReduceKind::Sum, e, {1}, DType::F32), x)})};
    return g;
  };
  const Sized sized(build, {16, 40});
  ASSERT_EQ(sized.program().kernels.size(), 1u);
  ASSERT_EQ(sized.program().kernels[0].scratch.size(), 1u);
  EXPECT_EQ(sized.at(sized.registers({16, 1000})).scratch_bytes, (1000 + plan::PlanOptions().lanes) * 8 / 64 * 64);
  EXPECT_GT(sized.at(sized.registers({2, 1000})).scratch_bytes, sized.program().scratch_bytes);
}

/// What is tiled for large sizes is not where both sides were short.
TEST(SizedPlan, OtherSizesMakeAnotherPlan) {
  const Build build = [](const Dims& dims, auto symbols) {
    Graph g;
    g.symbols = symbols;
    const NodeId x = tensor(g, {dims[0], dims[1]});
    const NodeId turned = g.view(x, {{{0, {{1, 1}}}, {0, {{0, 1}}}}}, {dims[1], dims[0]});
    g.outputs = {g.pointwise(Op::Exp, {turned})};
    return g;
  };
  const Sized small(build, {3, 2}), large(build, {1000, 2000}), anew = small.planned_for({1000, 2000});
  EXPECT_NE(plan::text(small.program()), plan::text(large.program()));
  EXPECT_EQ(plan::text(anew.program()), plan::text(large.program()));
  EXPECT_EQ(anew.guards(), small.guards());
  expect_right(anew, {{3, 2}, {1000, 2000}, {65, 63}, {2, 2}});
}

TEST(SizedPlan, ACatOfTwoSizes) {
  const Build build = [](const Dims& dims, auto symbols) {
    Graph g;
    g.symbols = symbols;
    const NodeId a = tensor(g, {dims[0], dims[1]}), b = tensor(g, {dims[0], dims[2]}), c = tensor(g, {dims[0], 1});
    const NodeId all = g.cat({g.pointwise(Op::Tanh, {a}), b, c}, 1);
    g.outputs = {all, g.reduce(ReduceKind::Max, g.pointwise(Op::Neg, {all}), {1}, DType::F32)};
    return g;
  };
  const Sized sized(build, {3, 5, 4});
  EXPECT_EQ(sized.guards(), (Guards{"n >= 2", "m >= 2", "k >= 2"}));
  EXPECT_EQ(sized.program().arena_bytes, 0);
  expect_right(sized, {{3, 5, 4}, {2, 2, 2}, {3, 4, 5}, {41, 2, 97}, {2, 1009, 3}});
}

TEST(SizedPlan, DimsThatBecomeOne) {
  const Build build = [](const Dims& dims, auto symbols) {
    Graph g;
    g.symbols = symbols;
    const NodeId x = tensor(g, {dims[0], dims[1], dims[2]});
    const NodeId y = g.reshape(g.pointwise(Op::Neg, {x}), {dims[0] * dims[1], dims[2]});
    const NodeId scaled = g.pointwise(Op::Mul, {y, tensor(g, {dims[2]})});
    const NodeId back = g.reshape(scaled, {dims[0], dims[1], dims[2]});
    const NodeId turned = g.view(back, {{{0, {{1, 1}}}, {0, {{0, 1}}}, {0, {{2, 1}}}}}, {dims[1], dims[0], dims[2]});
    g.outputs = {scaled, g.reduce(ReduceKind::Sum, g.reshape(turned, {dims[1], dims[0] * dims[2]}), {1}, DType::F32)};
    return g;
  };
  for (const bool passes : {false, true}) {
    const Sized sized(build, {3, 4, 5}, {}, passes);
    EXPECT_EQ(sized.guards(), (Guards{"n >= 2", "m >= 2", "k >= 2"}));
    expect_right(sized, {{3, 4, 5}, {2, 2, 2}, {7, 3, 2}, {2, 41, 13}, {5, 5, 5}});
  }
}

/// A fixed size is cut in two stages; of what is a symbol nothing is.
TEST(SizedPlan, LongReductions) {
  const Build build = [](const Dims& dims, auto symbols) {
    Graph g;
    g.symbols = symbols;
    const NodeId fixed = tensor(g, {dims[0], 1 << 16}), any = tensor(g, {dims[1]});
    g.outputs = {g.reduce(ReduceKind::Max, fixed, {1}, DType::F32), g.reduce(ReduceKind::Max, any, {0}, DType::F32)};
    return g;
  };
  const Sized sized(build, {2, 1 << 17});
  EXPECT_EQ(sized.program().made.size(), 3u) << plan::text(sized.program());
  EXPECT_EQ(sized.guards(), (Guards{"n >= 2", "m >= 2"}));
  expect_right(sized, {{2, 2}, {3, 100'003}});
}

/// Temporaries of sizes that grow and shrink against each other.
TEST(SizedPlan, TemporariesNeverOverlap) {
  const Build build = [](const Dims& dims, auto symbols) {
    Graph g;
    g.symbols = symbols;
    std::vector<NodeId> sums;
    for (size_t i = 0; i < 9; ++i) {
      const Dim size = i % 3 == 0 ? dims[0] : i % 3 == 1 ? dims[1] : dims[0] * dims[1];
      const NodeId x = tensor(g, {size, 3}), y = tensor(g, {size, 3}, {1, size});
      const NodeId sum =
          g.reduce(ReduceKind::Sum, g.pointwise(Op::Mul, {x, y}), {i % 2 ? uint8_t{0} : uint8_t{1}}, DType::F32);
      if (i % 2 == 0) sums.push_back(sum);
    }
    const auto maximum = [&](NodeId x) { return g.reduce(ReduceKind::Max, x, {0}, DType::F32); };
    while (sums.size() > 1) {  // each waits for all later ones
      const NodeId last = sums.back();
      sums.pop_back();
      const NodeId first = sums.back();
      sums.back() = g.reduce(
          ReduceKind::Sum,
          g.pointwise(
              Op::Mul,
              {g.expand(g.reshape(first, {g.sizes(first)[0], 1}), {g.sizes(first)[0], g.sizes(last)[0]}), last}),
          {1}, DType::F32);
    }
    g.outputs = {maximum(sums[0])};
    return g;
  };
  const Sized sized(build, {3, 5});
  const auto temps = [](const plan::Program& program) {
    return std::ranges::count(program.slots, plan::SlotKind::Temp, &plan::Slot::kind);
  };
  EXPECT_GE(temps(sized.program()), 4) << plan::text(sized.program());
  expect_right(sized, {{3, 5}, {5, 3}, {2, 2}, {2, 97}, {97, 2}, {41, 16}, {16, 41}});
}

}  // namespace
}  // namespace fastjit::test
