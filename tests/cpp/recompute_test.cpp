// Checkpoints: what the way back reads is made again of what the checkpoint was given.
#include <gtest/gtest.h>

#include "pass/pass.h"
#include "pass/recompute.h"
#include "pass/split.h"

using namespace fastjit;
using namespace fastjit::ir;

namespace {

constexpr auto kF32 = DType::F32;
const Layout kRow{{4}, {1}};

size_t count(const Graph& g, Op op) {
  size_t n = 0;
  for (const Node& node : g.nodes) n += node.op == op;
  return n;
}

// In a checkpoint r = op(exp(x)) and y = tanh(r), of which z = -y is made outside; back, gx = g * y * r.
struct Checkpointed {
  Graph graph;
  Checkpoints marks;
  NodeId call = kNoNode;
  Checkpointed() {
    const NodeId x = graph.input(kF32, kRow, {"x"});
    begin(1, 0);
    call = graph.external({ExternKind::Op, 0, "aten::op", {graph.pointwise(Op::Exp, {x})}, {}, 2});
    const NodeId r = graph.result(call, 0, kF32, kRow);
    graph.result(call, 1, kF32, kRow);
    const NodeId y = graph.pointwise(Op::Tanh, {r});
    begin(0, 0);
    const NodeId z = graph.pointwise(Op::Neg, {y}), g = graph.input(kF32, kRow, {"g"});
    begin(0, 1);
    graph.outputs = {z, graph.pointwise(Op::Mul, {graph.pointwise(Op::Mul, {g, y}), r})};
    begin(0, 0);
    marks.draws.resize(graph.nodes.size());
  }

 private:
  uint32_t made_in_ = 0, back_of_ = 0;
  void begin(uint32_t made_in, uint32_t back_of) {
    marks.made_in.resize(graph.nodes.size(), made_in_);
    marks.back_of.resize(graph.nodes.size(), back_of_);
    made_in_ = made_in, back_of_ = back_of;
  }
};

}  // namespace

TEST(Recompute, TheWayBackMakesAgainWhatItReads) {
  const Checkpointed from;
  const Graph g = pass::recompute(from.graph, from.marks);
  EXPECT_EQ(verify(g), "");
  for (const Op op : {Op::Exp, Op::Extern, Op::Tanh}) EXPECT_EQ(count(g, op), 2u) << text(op);
  EXPECT_EQ(count(g, Op::Result), 4u) << "all that a call gives stands behind it";
  EXPECT_EQ(count(g, Op::Neg), 1u);
  EXPECT_EQ(count(pass::run(g, {}), Op::Tanh), 2u) << "no pass joins them";
  EXPECT_EQ(print(parse(print(g))), print(g));
}

TEST(Recompute, TheSecondHalfIsHandedNothingOfACheckpoint) {
  const Checkpointed from;
  const Graph g = pass::recompute(from.graph, from.marks);
  const pass::Halves halves = pass::split(g, {{false, true}, {false, true}, {true, false}, {false}});
  EXPECT_EQ(halves.first.outputs.size(), 1u) << "it hands over no value";
  EXPECT_EQ(count(halves.first, Op::Extern), 1u);
  EXPECT_EQ(count(halves.second, Op::Extern), 1u);
}

TEST(Recompute, RandomNumbersAreDrawnOnce) {
  Checkpointed from;
  from.marks.draws[from.call] = true;
  const Graph g = pass::recompute(from.graph, from.marks);
  EXPECT_EQ(count(g, Op::Extern), 1u);
  EXPECT_EQ(count(g, Op::Exp), 1u) << "nothing else reads it";
  EXPECT_EQ(count(g, Op::Tanh), 2u);
}
