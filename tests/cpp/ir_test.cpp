// The graph: interning, shape rules, text form, verifier.
#include <gtest/gtest.h>

#include "ir/graph.h"

using namespace fastjit::ir;

namespace {

Graph sample() {
  Graph g;
  const NodeId x = g.input(DType::F32, {{4, 8}, {8, 1}}, {"x"});
  const NodeId y = g.input(DType::F32, {{8, 4}, {1, 8}}, {"y \"quoted\""});
  const NodeId s = g.scalar(DType::F64, {"a", true});
  g.set_line(g.intern_line("model.py:3"));
  const NodeId t = g.view(y, {{{0, {{1, 1}}}, {0, {{0, 1}}}}}, {4, 8});
  const NodeId sum = g.pointwise(Op::Add, {x, t});
  const NodeId scaled = g.pointwise(Op::Mul, {sum, g.convert(s, DType::F32)});
  const NodeId row = g.reduce(ReduceKind::Sum, scaled, {1}, DType::F32);
  const NodeId product =
      g.contract({Product::Mm, 7, "aten::mm", {scaled, y}, true, true}, DType::F32, {{4, 4}, {4, 1}});
  g.external({ExternKind::Op, 3, "aten::add_", {x, product}, {0}, 0, {}, true});
  const NodeId images = g.input(DType::F32, {{1, 2, 5, 5}, {50, 25, 5, 1}}, {"images"});
  const NodeId weight = g.input(DType::F32, {{3, 2, 3, 3}, {18, 9, 3, 1}}, {"weight"});
  const Window window{{1, 2}, {1, 0}, {1, 1}};
  const NodeId convolved = g.contract({Product::Convolution, 8, "aten::conv2d", {images, weight}, false, true, window},
                                      DType::F32, {{1, 3, 5, 2}, {30, 10, 2, 1}});
  g.external({ExternKind::Op, 9, "aten::convolution_backward", {convolved, images, weight}, {}, 3, {}, true, window});
  const NodeId joined = g.cat({product, product}, 1);
  g.outputs = {row, joined, g.reshape(scaled, {32}), g.with_strides(scaled, {1, 4}), g.fresh_copy(x, {8, 1})};
  g.stores = {{0, scaled, 2}};
  return g;
}

}  // namespace

TEST(Graph, EqualWorkIsOneNode) {
  Graph g;
  const NodeId x = g.input(DType::F32, {{3}, {1}}, {"x"});
  const NodeId y = g.input(DType::F32, {{3}, {1}}, {"y"});
  EXPECT_EQ(g.pointwise(Op::Add, {x, y}), g.pointwise(Op::Add, {y, x}));
  EXPECT_NE(g.pointwise(Op::Sub, {x, y}), g.pointwise(Op::Sub, {y, x}));
  EXPECT_EQ(g.constant(DType::F32, 1.5), g.constant(DType::F32, 1.5));
  EXPECT_NE(g.constant(DType::F32, 0.0), g.constant(DType::F32, -0.0));
  EXPECT_NE(g.fresh_copy(x, {1}), g.fresh_copy(x, {1}));
}

TEST(Graph, RulesRefuseWithAReason) {
  Graph g;
  const NodeId x = g.input(DType::F32, {{3}, {1}}, {"x"});
  const NodeId i = g.input(DType::I32, {{3}, {1}}, {"i"});
  EXPECT_THROW(g.pointwise(Op::Add, {x, i}), std::invalid_argument);
  EXPECT_THROW(g.pointwise(Op::Exp, {i}), std::invalid_argument);
  EXPECT_THROW(g.reshape(x, {4}), std::invalid_argument);
  EXPECT_THROW(broadcast(std::vector<Dim>{2}, std::vector<Dim>{3}), std::invalid_argument);
  EXPECT_EQ(broadcast(std::vector<Dim>{2, 1}, std::vector<Dim>{3}), (std::vector<Dim>{2, 3}));
}

TEST(Graph, TextParsesBack) {
  const Graph g = sample();
  EXPECT_EQ(verify(g), "");
  const std::string text = print(g);
  const Graph back = parse(text);
  EXPECT_EQ(verify(back), "");
  EXPECT_EQ(print(back), text);
  ASSERT_EQ(back.contracts.size(), g.contracts.size());
  EXPECT_EQ(back.contracts.back().window, g.contracts.back().window);
  EXPECT_EQ(back.externs.back().window, g.externs.back().window);
  EXPECT_NE(dot(g).find("digraph"), std::string::npos);
}

TEST(Graph, ParserNamesTheLine) {
  for (const char* bad : {"%0 = nosuch f32[2]\n", "%0 = input f33[2] \"x\"\n", "%1 = input f32[2] \"x\"\n",
                          "%0 = add f32[2] %0 %1\n", "nonsense\n"}) {
    try {
      parse(bad);
      ADD_FAILURE() << bad;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find("line 1: "), std::string::npos) << error.what();
    }
  }
}

TEST(Graph, VerifierFindsBrokenGraphs) {
  Graph g = sample();
  g.nodes[4].dtype = DType::F64;
  EXPECT_NE(verify(g), "");
  g = sample();
  g.maps[0].dims[0].offset = 5;
  EXPECT_NE(verify(g).find("leaves the operand"), std::string::npos);
  g = sample();
  g.outputs.push_back(1000);
  EXPECT_NE(verify(g), "");
}
