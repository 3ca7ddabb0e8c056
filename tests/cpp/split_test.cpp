// A graph in two halves: what the first hands over, and what the second makes of gradients that are there or missing.
#include <gtest/gtest.h>

#include <functional>
#include <span>

#include "pass/split.h"
#include "support/error.h"

using namespace fastjit;
using namespace fastjit::ir;
using pass::Handed;

namespace {

constexpr auto kF32 = DType::F32;
const Layout kRow{{4}, {1}};

NodeId input(Graph& g, const char* name, const Layout& layout = kRow) { return g.input(kF32, layout, {name}); }

size_t count(const Graph& g, Op op) {
  size_t n = 0;
  for (const Node& node : g.nodes) n += node.op == op;
  return n;
}

// y = exp(x) * w; gradients gx = g * exp(x) * w and gw = g * exp(x).
struct Fan {
  Graph graph;
  Fan() {
    const NodeId x = input(graph, "x"), w = input(graph, "w");
    const NodeId e = graph.pointwise(Op::Exp, {x}), y = graph.pointwise(Op::Mul, {e, w});
    const NodeId g = input(graph, "g"), gw = graph.pointwise(Op::Mul, {g, e});
    const NodeId gx = graph.pointwise(Op::Mul, {gw, w});
    graph.outputs = {y, gx, gw};
  }
  pass::SplitAt at{{false, false, true}, {false, true, true}, {false, true, false}, {false}};
};

}  // namespace

TEST(Split, HandsOverWhatBothHalvesNeed) {
  Fan product;
  const pass::Halves halves = pass::split(product.graph, product.at);
  EXPECT_EQ(ir::verify(halves.first), "");
  EXPECT_EQ(ir::verify(halves.second), "");
  EXPECT_EQ(halves.first_inputs, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(halves.first.outputs.size(), 2u) << "y, and exp(x) behind it";
  EXPECT_EQ(count(halves.first, Op::Exp), 1u);
  EXPECT_EQ(count(halves.second, Op::Exp), 0u);
  const std::vector<Handed> handed{{Handed::From::Input, 1}, {Handed::From::Extra, 1}, {Handed::From::Late, 2}};
  EXPECT_EQ(halves.handed, handed);
  EXPECT_EQ(halves.second.outputs.size(), 2u);
}

TEST(Split, APointwiseChainIsComputedAgainFromWhatIsHandedOverAnyway) {
  const auto split = [](bool needs_source) {
    Graph g;
    const NodeId x = input(g, "x");
    const NodeId call = g.external({ExternKind::Op, 0, "aten::op", {x}, {}, 1});
    const NodeId h = g.result(call, 0, kF32, kRow);
    const NodeId t = g.pointwise(Op::Tanh, {g.pointwise(Op::Neg, {h})}), y = g.pointwise(Op::Exp, {t});
    const NodeId late = input(g, "g");
    const NodeId back = g.pointwise(Op::Mul, {g.pointwise(Op::Mul, {late, t}), y});
    g.outputs = {g.pointwise(Op::Neg, {y}), needs_source ? g.pointwise(Op::Mul, {back, h}) : back};
    return pass::split(g, {{false, true}, {false, true}, {false, false}, {false}});
  };
  const pass::Halves halves = split(true);
  EXPECT_EQ(ir::verify(halves.second), "");
  EXPECT_EQ(halves.first.outputs.size(), 2u) << "h alone is handed over";
  EXPECT_EQ(count(halves.second, Op::Tanh), 1u);
  EXPECT_EQ(split(false).first.outputs.size(), 2u) << "of equal sizes, what is needed is handed over";
  EXPECT_EQ(count(split(false).second, Op::Tanh), 0u);
  EXPECT_EQ(count(split(false).second, Op::Exp), 1u) << "and serves what follows from it";
}

// c = h - mean, of what torch has written anyway.
TEST(Split, WhatACallMadeIsHandedOverForWhatFewOperationsMakeOfIt) {
  enum Case { kPlain, kShown, kWritten, kGiven };
  const auto split = [](Case which) {
    Graph g;
    const NodeId x = input(g, "x"), mean = input(g, "mean", {{1}, {1}});
    const NodeId h = g.result(g.external({ExternKind::Op, 0, "aten::op", {x}, {}, 1}), 0, kF32, kRow);
    const NodeId c = g.pointwise(Op::Sub, {h, mean});
    NodeId y = g.pointwise(Op::Exp, {c});
    if (which == kGiven) y = g.result(g.external({ExternKind::Op, 1, "aten::op", {c}, {}, 1}), 0, kF32, kRow);
    if (which == kWritten) {
      const NodeId add = g.external({ExternKind::Op, 1, "aten::add_", {h, x}, {0}, 1});
      y = g.pointwise(Op::Mul, {y, g.result(add, 0, kF32, kRow)});
    }
    const NodeId late = input(g, "g");
    g.outputs = {y, which == kShown ? h : mean, g.pointwise(Op::Mul, {late, c})};
    return pass::split(g, {{false, false, true}, {false, false, true}, {false, true, false}, {false, false}});
  };
  const auto handed = [&](Case which) {
    const pass::Halves halves = split(which);
    EXPECT_EQ(ir::verify(halves.first), "");
    EXPECT_EQ(ir::verify(halves.second), "");
    const NodeId extra = halves.first.outputs[2];
    return std::pair{halves.first[extra].op, count(halves.second, Op::Sub)};
  };
  EXPECT_EQ(handed(kPlain), (std::pair{Op::Result, size_t{1}}));
  EXPECT_EQ(handed(kShown), (std::pair{Op::Sub, size_t{0}})) << "the caller may write to its own";
  EXPECT_EQ(handed(kWritten), (std::pair{Op::Sub, size_t{0}})) << "it is another value by then";
  EXPECT_EQ(handed(kGiven), (std::pair{Op::Sub, size_t{0}})) << "it is written for a call anyway";
}

// Two layers y = tanh(-h) of calls' results, whose way back asks torch for the gradient in between. A call may write to
// memory that none of that reads.
TEST(Split, WhatIsComputedAgainWaitsForItsUse) {
  for (const bool writes : {false, true}) {
    Graph g;
    const Layout large{{1 << 16}, {1}};
    uint32_t calls = 0;
    const auto call = [&](NodeId of) {
      return g.result(g.external({ExternKind::Op, calls++, "aten::op", {of}, {}, 1}), 0, kF32, large);
    };
    const NodeId x = input(g, "x", large), h = call(x), y = g.pointwise(Op::Tanh, {g.pointwise(Op::Neg, {h})});
    const NodeId h2 = call(y), y2 = g.pointwise(Op::Exp, {g.pointwise(Op::Neg, {h2})});
    const NodeId late = input(g, "g", large);
    const auto back = [&](NodeId gradient, NodeId result, NodeId of) {
      return g.pointwise(Op::Mul, {g.pointwise(Op::Mul, {gradient, result}), of});
    };
    const NodeId between = call(back(late, y2, h2));
    if (writes) g.external({ExternKind::Op, calls++, "aten::copy_", {call(late), between}, {0}, 0});
    g.outputs = {h2, call(back(between, y, h))};
    const pass::Halves halves = pass::split(g, {{false, true}, {false, true}, {false, false}, {false}});
    EXPECT_EQ(ir::verify(halves.second), "");
    const auto first = [&](Op op) {
      NodeId id = 0;
      while (id < halves.second.nodes.size() && halves.second[id].op != op) ++id;
      return id;
    };
    EXPECT_EQ(count(halves.second, Op::Tanh), 1u);
    EXPECT_LT(first(Op::Extern), first(Op::Tanh)) << "of the layer that goes back last";
    EXPECT_LT(first(Op::Exp), first(Op::Extern));
  }
}

namespace {

/// c = tanh(p)[t] * c + q[t] over some rounds; gradients of each p[t], which need tanh(p)[t] and the c before. The
/// result is the last c, or `stacked`: what follows from all of them in one tensor.
pass::Halves split_rounds(int64_t rounds, int64_t length, bool stacked = false) {
  Graph g;
  const Layout all{{rounds, length}, {length, 1}}, row{{length}, {1}};
  const NodeId p = input(g, "p", all), q = input(g, "q", all);
  const auto slice = [&](NodeId of, int64_t t) { return g.view(of, {{{t, {}}, {0, {{0, 1}}}}}, {length}); };
  std::vector<NodeId> gates, states{input(g, "c", row)};
  for (int64_t t = 0; t < rounds; ++t) {
    gates.push_back(g.pointwise(Op::Tanh, {slice(p, t)}));
    states.push_back(g.pointwise(Op::Add, {g.pointwise(Op::Mul, {gates.back(), states.back()}), slice(q, t)}));
  }
  NodeId back = input(g, "g", row);
  g.outputs = {states.back()};
  if (stacked) {
    std::vector<NodeId> parts;
    for (const NodeId state : std::span(states).subspan(1)) parts.push_back(g.reshape(state, {1, length}));
    g.outputs = {g.pointwise(Op::Exp, {g.cat(std::move(parts), 0)})};
  }
  for (auto t = static_cast<size_t>(rounds); t-- > 0;) {
    g.outputs.push_back(g.pointwise(Op::Mul, {back, states[t]}));
    back = g.pointwise(Op::Mul, {back, gates[t]});
  }
  std::vector<bool> late(g.outputs.size(), true);
  late[0] = false;
  return pass::split(g, {{false, false, false, true}, late, {false, false, true}, {true}});
}

}  // namespace

TEST(Split, TheStateOfALoopIsHandedOver) {
  const pass::Halves halves = split_rounds(12, 1 << 16);
  EXPECT_EQ(ir::verify(halves.second), "");
  EXPECT_EQ(count(halves.second, Op::Add), 0u) << "no state is made of the one before";
  EXPECT_EQ(halves.first.outputs.size(), 1u + 11 + 11) << "gates but the first, states but the first and the last";
}

TEST(Split, ManySmallValuesAreHandedOverInOneTensor) {
  const pass::Halves halves = split_rounds(40, 64);
  EXPECT_EQ(ir::verify(halves.first), "");
  EXPECT_EQ(ir::verify(halves.second), "");
  ASSERT_EQ(halves.first.outputs.size(), 3u);
  for (const size_t stack : {1, 2})
    EXPECT_TRUE(identical(halves.first.sizes(halves.first.outputs[stack]), std::vector<Dim>{39, 64}))
        << "gates and states, of all rounds but one";
  EXPECT_EQ(count(halves.first, Op::Cat), 2u);
}

TEST(Split, WhatLiesInOneTensorAnywayIsHandedOverInThat) {
  const pass::Halves halves = split_rounds(40, 64, true);
  EXPECT_EQ(ir::verify(halves.first), "");
  EXPECT_EQ(ir::verify(halves.second), "");
  ASSERT_EQ(halves.first.outputs.size(), 3u);
  EXPECT_EQ(count(halves.first, Op::Cat), 2u) << "of the gates, and of the states";
  const auto rows = [&](size_t output) { return halves.first.sizes(halves.first.outputs[output])[0].hint(); };
  EXPECT_EQ(rows(1) + rows(2), 39 + 40) << "the last state is there too";
}

// y = g * exp(x)[:length], of eight.
TEST(Split, PartsThatAreLookedAtAreHandedOver) {
  const auto handed = [](int64_t length) {
    Graph g;
    const NodeId x = input(g, "x", {{8}, {1}}), e = g.pointwise(Op::Exp, {x}), late = input(g, "g", {{length}, {1}});
    const NodeId back = g.pointwise(Op::Mul, {late, g.view(e, {{{0, {{0, 1}}}}}, {length})});
    g.outputs = {g.pointwise(Op::Neg, {g.reduce(ReduceKind::Sum, e, {0}, kF32)}), back};
    const pass::Halves halves = pass::split(g, {{false, true}, {false, true}, {false, false}, {false}});
    EXPECT_EQ(ir::verify(halves.first), "");
    EXPECT_EQ(ir::verify(halves.second), "");
    return halves.first.layout(halves.first.outputs[1]).numel().hint();
  };
  EXPECT_EQ(handed(4), 4);
  EXPECT_EQ(handed(5), 8) << "nearly all of it";
}

TEST(Split, AnInputThatEagerDoesNotKeepIsCopied) {
  Fan product;
  product.at.kept_inputs[1] = false;
  const pass::Halves halves = pass::split(product.graph, product.at);
  EXPECT_EQ(halves.handed[0], (Handed{Handed::From::Extra, 1}));
  EXPECT_EQ(halves.first[halves.first.outputs[1]].op, Op::View) << "a tensor of its own";
}

TEST(Split, AResultThatEagerKeepsIsNotHandedOverTwice) {
  Graph g;
  const NodeId x = input(g, "x"), y = g.pointwise(Op::Exp, {x});
  const NodeId late = input(g, "g");
  g.outputs = {y, g.pointwise(Op::Mul, {late, y})};
  pass::SplitAt at{{false, true}, {false, true}, {false, false}, {true}};
  EXPECT_EQ(pass::split(g, at).handed[0], (Handed{Handed::From::Output, 0}));
  at.kept_outputs[0] = false;
  const pass::Halves halves = pass::split(g, at);
  EXPECT_EQ(halves.handed[0], (Handed{Handed::From::Extra, 1}));
  EXPECT_NE(halves.first.outputs[0], halves.first.outputs[1]) << "the caller may write to its own";
}

TEST(Split, WhatTheFirstHalfDoesNotNeedTheSecondMakes) {
  Graph g;
  const NodeId x = input(g, "x"), y = g.pointwise(Op::Abs, {x}), late = input(g, "g");
  const NodeId zero = g.constant(kF32, 0);
  const NodeId mask = g.pointwise(Op::Lt, {x, g.expand(zero, {4})});
  g.outputs = {y, g.pointwise(Op::Where, {mask, g.pointwise(Op::Neg, {late}), late})};
  const pass::Halves halves = pass::split(g, {{false, true}, {false, true}, {true, false}, {false}});
  EXPECT_EQ(count(halves.first, Op::Lt), 0u);
  EXPECT_EQ(count(halves.second, Op::Lt), 1u);
  EXPECT_EQ(halves.handed[0], (Handed{Handed::From::Input, 0}));
}

TEST(Split, AnEffectHappensOnce) {
  Graph g;
  const NodeId x = input(g, "x");
  const NodeId call = g.external({ExternKind::Op, 0, "aten::native_batch_norm", {x}, {}, 2});
  const NodeId y = g.result(call, 0, kF32, kRow), mean = g.result(call, 1, kF32, kRow), late = input(g, "g");
  g.outputs = {y, g.pointwise(Op::Mul, {late, mean})};
  const pass::Halves halves = pass::split(g, {{false, true}, {false, true}, {false, false}, {false}});
  EXPECT_EQ(count(halves.first, Op::Extern), 1u);
  EXPECT_EQ(count(halves.second, Op::Extern), 0u);
  EXPECT_EQ(halves.first.outputs.size(), 2u);
}

TEST(Split, AResultThatDependsOnItsGradientIsRefused) {
  Graph g;
  const NodeId late = input(g, "g");
  g.outputs = {g.pointwise(Op::Exp, {late}), g.pointwise(Op::Neg, {late})};
  EXPECT_THROW(pass::split(g, {{true}, {false, true}, {false}, {false}}), support::Unable);
}

TEST(Prune, WhatFollowsFromMissingGradientsOnlyIsMissing) {
  Graph g;
  const NodeId a = input(g, "ga"), b = input(g, "gb"), w = input(g, "w");
  const NodeId from_a = g.pointwise(Op::Mul, {a, w}), from_b = g.pointwise(Op::Div, {b, w});
  g.outputs = {from_b, g.pointwise(Op::Add, {from_a, from_b}), g.pointwise(Op::Max, {from_a, from_b})};
  const std::vector<bool> late{true, true, false}, missing{false, true, false};
  const pass::Pruned pruned = pass::prune(g, late, missing, {false, true, true});
  EXPECT_EQ(ir::verify(pruned.graph), "");
  EXPECT_EQ(pruned.outputs, (std::vector<int>{-1, 0, 1}));
  EXPECT_EQ(pruned.inputs, (std::vector<uint32_t>{0, 2}));
  EXPECT_EQ(count(pruned.graph, Op::Div), 0u) << "0 / w is no zero where w is 0";
  EXPECT_EQ(count(pruned.graph, Op::Add), 0u) << "nothing is added";
  EXPECT_EQ(count(pruned.graph, Op::Max), 1u) << "anything else takes zeros";
}

TEST(Prune, AConstantGradientWithNothingAddedToItIsThere) {
  Graph g;
  const NodeId a = input(g, "ga"), b = input(g, "gb");
  const NodeId zeros = g.expand(g.constant(ir::DType::F32, 0), {4});
  g.outputs = {g.pointwise(Op::Add, {zeros, g.pointwise(Op::Exp, {a})}), b};
  const pass::Pruned pruned = pass::prune(g, {true, true}, {true, false}, {true, true});
  EXPECT_EQ(ir::verify(pruned.graph), "");
  EXPECT_EQ(pruned.outputs, (std::vector<int>{0, 1}));
  EXPECT_EQ(count(pruned.graph, Op::Exp), 0u);
}

TEST(Prune, WhatIsWantedAndMissingIsZeros) {
  Graph g;
  const NodeId a = input(g, "ga");
  g.outputs = {g.pointwise(Op::Exp, {a})};
  const pass::Pruned pruned = pass::prune(g, {true}, {true}, {true});
  EXPECT_EQ(ir::verify(pruned.graph), "");
  EXPECT_EQ(pruned.outputs, std::vector<int>{0});
  EXPECT_EQ(count(pruned.graph, Op::Exp), 0u);
  EXPECT_EQ(count(pruned.graph, Op::Const), 1u);
}

// What calls of torch's write into memory arrives where another view of it is read.
struct Written {
  Graph graph;
  Written() {
    const NodeId late = input(graph, "g"), saved = input(graph, "saved");
    const NodeId memory =
        graph.result(graph.external({ExternKind::Op, 0, "aten::new_zeros", {}, {}, 1}), 0, kF32, kRow);
    graph.external({ExternKind::Op, 1, "aten::copy_", {view(memory), graph.pointwise(Op::Mul, {late, saved})}, {0}, 0});
    graph.outputs = {graph.pointwise(Op::Neg, {view(memory)})};
  }
  NodeId view(NodeId of) {
    return graph.result(graph.external({ExternKind::View, 2, "aten::alias", {of}, {}, 1}), 0, kF32, kRow);
  }
};

TEST(Prune, FollowsWhatCallsWrite) {
  Written written;
  const pass::Pruned pruned = pass::prune(written.graph, {true, false}, {true, false}, {true});
  EXPECT_EQ(ir::verify(pruned.graph), "");
  EXPECT_EQ(count(pruned.graph, Op::Mul), 0u);
  EXPECT_EQ(count(pruned.graph, Op::Neg), 0u);
}

TEST(UsesBeside, FollowsWhatCallsWrite) {
  Written written;
  EXPECT_EQ(pass::uses_beside(written.graph, {1, 0})[1], std::vector<uint64_t>{1});
}

/// A graph for any size n.
struct AnySize {
  std::shared_ptr<Symbols> symbols = std::make_shared<Symbols>();
  Symbols::Scope scope{symbols.get()};
  Dim n = symbols->add(6, "n");
  Graph graph;
  AnySize() { graph.symbols = symbols; }
};

// y = exp(x), of n rows; gx = g * exp(x) / n.
TEST(Split, BothHalvesHaveTheSymbolsOfTheGraph) {
  AnySize any;
  Graph& g = any.graph;
  const Dim n = any.n;
  const Layout rows{{n, 4}, {4, 1}};
  const NodeId x = g.input(kF32, rows, {"x"}), e = g.pointwise(Op::Exp, {x});
  const NodeId late = g.input(kF32, rows, {"g"}), count_of_rows = g.convert(g.size(n), kF32);
  g.outputs = {e, g.pointwise(Op::Div, {g.pointwise(Op::Mul, {late, e}), count_of_rows})};
  const pass::Halves halves = pass::split(g, {{false, true}, {false, true}, {false, false}, {true}});
  EXPECT_EQ(ir::verify(halves.first), "");
  EXPECT_EQ(ir::verify(halves.second), "");
  EXPECT_EQ(halves.handed, (std::vector<Handed>{{Handed::From::Output, 0}, {Handed::From::Late, 1}}));
  for (const Graph* half : {&halves.first, &halves.second}) {
    EXPECT_EQ(half->symbols, any.symbols);
    EXPECT_TRUE(identical(half->layout(half->outputs[0]).sizes, rows.sizes));
    ASSERT_EQ(half->scalars.size(), 1u) << "a call has one list of numbers";
    EXPECT_TRUE(identical(half->scalars[0].size, n));
  }
  EXPECT_EQ(count(halves.second, Op::Scalar), 1u);
  EXPECT_EQ(any.symbols->guards(), (std::vector<std::string>{"n >= 2"})) << "to split asks nothing";

  const int64_t other[] = {9};
  const Graph moved = at_sizes(halves.second, other);
  EXPECT_EQ(moved.symbols->value(0), 9);
  EXPECT_EQ(any.symbols->value(0), 6);
  EXPECT_EQ(moved.layout(moved.outputs[0]).sizes[0].hint(), 9);
  EXPECT_EQ(ir::verify(moved), "");
}

TEST(Prune, MissingGradientsAreZerosOfAnySize) {
  AnySize any;
  Graph& g = any.graph;
  const Dim n = any.n;
  const NodeId a = g.input(kF32, {{n}, {1}}, {"ga"}), b = g.input(kF32, {{n}, {1}}, {"gb"});
  g.outputs = {g.pointwise(Op::Max, {a, b})};
  const pass::Pruned pruned = pass::prune(g, {true, true}, {false, true}, {true});
  EXPECT_EQ(ir::verify(pruned.graph), "");
  EXPECT_EQ(pruned.graph.symbols, any.symbols);
  EXPECT_TRUE(identical(pruned.graph.sizes(pruned.graph.outputs[0])[0], n));
}

TEST(Prune, WhatNobodyWantsIsNotComputed) {
  Fan product;
  const pass::Halves halves = pass::split(product.graph, product.at);
  const pass::Pruned pruned = pass::prune(halves.second, {false, false, true}, {false, false, false}, {false, true});
  EXPECT_EQ(pruned.outputs, (std::vector<int>{-1, 0}));
  EXPECT_EQ(count(pruned.graph, Op::Mul), 1u);
}

TEST(CutAt, ComputesFromANewInputBehindTheOutput) {
  Graph g;
  const NodeId gh = input(g, "gh"), gy = input(g, "gy");
  const NodeId total = g.pointwise(Op::Add, {gh, g.pointwise(Op::Exp, {gy})});
  g.outputs = {g.pointwise(Op::Neg, {total}), total};
  const pass::CutAt cut = pass::cut_at(g, {1});
  EXPECT_EQ(ir::verify(cut.graph), "");
  EXPECT_EQ(cut.inputs, (std::vector<uint32_t>{2}));
  const pass::Pruned without = pass::prune(cut.graph, {true, true, true}, {false, false, true}, {true, true});
  EXPECT_EQ(count(without.graph, Op::Neg), 0u) << "the first output follows from the new input alone";
  EXPECT_EQ(count(without.graph, Op::Exp), 1u);
}

TEST(CutAt, OtherOutputsOfTheValueComeFromTheNewInput) {
  Graph g;
  const NodeId total = g.pointwise(Op::Add, {input(g, "gh"), input(g, "gy")});
  g.outputs = {total, total};
  const pass::CutAt cut = pass::cut_at(g, {1});
  const std::vector<bool> late(3, true), missing{false, false, true};
  EXPECT_EQ(count(pass::prune(cut.graph, late, missing, {true, false}).graph, Op::Add), 0u);
  EXPECT_EQ(count(pass::prune(cut.graph, late, missing, {false, true}).graph, Op::Add), 1u);
}

TEST(CutAt, CutsBehindACopyThatTorchMakes) {
  Graph g;
  const NodeId total = g.pointwise(Op::Add, {input(g, "gh"), input(g, "gy")});
  const NodeId copy = g.result(g.external({ExternKind::Op, 0, "aten::clone", {total}, {}, 1}), 0, kF32, kRow);
  g.outputs = {g.pointwise(Op::Neg, {total}), copy};
  const pass::CutAt cut = pass::cut_at(g, {1});
  const pass::Pruned without = pass::prune(cut.graph, {true, true, true}, {false, false, true}, {true, true});
  EXPECT_EQ(count(without.graph, Op::Neg), 0u);
  EXPECT_EQ(count(without.graph, Op::Add), 1u);
}

TEST(UsesBeside, NamesTheGradientsThatEachComputationWaitsFor) {
  Graph g;
  const NodeId saved = input(g, "saved"), a = input(g, "ga"), b = input(g, "gb");
  const NodeId mask = g.pointwise(Op::Exp, {saved});
  g.outputs = {g.pointwise(Op::Mul, {mask, a}), g.pointwise(Op::Mul, {saved, g.pointwise(Op::Add, {a, b})})};
  const auto uses = pass::uses_beside(g, {0, 1, 2});
  EXPECT_EQ(uses[0], (std::vector<uint64_t>{1, 3}));
}

TEST(Linear, SumsOfLateInputsTimesOthers) {
  const auto is_linear = [](const std::function<NodeId(Graph&, NodeId, NodeId)>& body) {
    Graph g;
    const NodeId x = input(g, "x"), late = input(g, "g");
    g.outputs = {body(g, x, late)};
    return pass::is_linear(g, {false, true});
  };
  const auto op = [](Op op) { return [=](Graph& g, NodeId x, NodeId late) { return g.pointwise(op, {late, x}); }; };
  EXPECT_TRUE(is_linear(op(Op::Mul)));
  EXPECT_TRUE(is_linear(op(Op::Div)));
  EXPECT_FALSE(is_linear(op(Op::Add))) << "what is there without gradients";
  EXPECT_FALSE(is_linear(op(Op::Max)));
  EXPECT_FALSE(is_linear([](Graph&, NodeId x, NodeId) { return x; }));
  EXPECT_FALSE(is_linear([](Graph& g, NodeId, NodeId late) { return g.pointwise(Op::Mul, {late, late}); }));
  EXPECT_FALSE(is_linear([](Graph& g, NodeId x, NodeId late) { return g.pointwise(Op::Div, {x, late}); }));
  EXPECT_TRUE(is_linear([](Graph& g, NodeId x, NodeId late) {
    return g.pointwise(Op::Sub, {late, g.pointwise(Op::Mul, {g.pointwise(Op::Exp, {x}), late})});
  }));
  const auto where = [](double other, bool decides) {
    return [=](Graph& g, NodeId x, NodeId late) {
      const NodeId zero = g.constant(kF32, 0), above = g.pointwise(Op::Gt, {decides ? late : x, zero});
      return g.pointwise(Op::Where, {above, late, g.constant(kF32, other)});
    };
  };
  EXPECT_TRUE(is_linear(where(0, false)));
  EXPECT_FALSE(is_linear(where(1, false)));
  EXPECT_FALSE(is_linear(where(0, true))) << "gradients choose";
}

TEST(Linear, CallsThatAreKnownToBe) {
  const auto is_linear = [](const char* name, bool first) {
    Graph g;
    const NodeId x = input(g, "x"), late = input(g, "g");
    const std::vector<NodeId> operands = first ? std::vector{late, x} : std::vector{x, late};
    g.outputs = {g.result(g.external({ExternKind::Op, 0, name, operands, {}, 1}), 0, kF32, kRow)};
    return pass::is_linear(g, {false, true});
  };
  EXPECT_TRUE(is_linear("aten::convolution_backward", true));
  EXPECT_FALSE(is_linear("aten::convolution_backward", false));
  EXPECT_FALSE(is_linear("aten::sort", true));
}
