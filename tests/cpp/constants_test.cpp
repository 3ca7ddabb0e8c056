// What is the same in every call, and what of it is worth a program of its own.
#include "pass/constants.h"

#include <gtest/gtest.h>

#include "pass/pass.h"

using namespace fastjit;
using namespace fastjit::ir;

namespace {

/// A graph of x, which each call brings, and `table`, which is a constant.
struct Constants : testing::Test {
  Graph g;
  NodeId x = g.input(DType::F32, {{8, 4}, {4, 1}}, {"x"});
  NodeId table = g.input(DType::F32, {{4}, {1}}, {"table"});

  NodeId joined() {
    const NodeId row = g.reshape(table, {1, 4});
    return g.cat({row, g.pointwise(Op::Add, {row, row})}, 0);  // 2 x 4
  }
  std::optional<pass::ConstantParts> parts() const { return pass::fold_constants(g, {false, true}); }
};

TEST_F(Constants, WhatIsJoinedIsMadeOnce) {
  g.outputs = {g.pointwise(Op::Mul, {x, g.view(joined(), {{Affine{1, {}}, Affine{0, {{1, 1}}}}}, {8, 4})})};
  const auto made = parts();
  ASSERT_TRUE(made);
  EXPECT_EQ(ir::verify(made->part), "");
  EXPECT_EQ(ir::verify(made->rest), "");
  ASSERT_EQ(made->part.outputs.size(), 1u);
  EXPECT_EQ(made->part[made->part.outputs[0]].op, Op::Cat);
  EXPECT_EQ(made->rest.inputs.size(), 3u) << "what was made is an input behind the others";
  for (const Node& node : made->rest.nodes) EXPECT_NE(node.op, Op::Cat);
}

TEST_F(Constants, WhatAKernelMakesAsCheaplyStays) {
  const NodeId twice = g.pointwise(Op::Add, {table, g.constant(DType::F32, 2)});
  g.outputs = {g.pointwise(Op::Mul, {x, g.expand(twice, {8, 4})})};
  EXPECT_FALSE(parts());
}

TEST_F(Constants, ElementaryFunctionsAreWorthIt) {
  g.outputs = {g.pointwise(Op::Mul, {x, g.expand(g.pointwise(Op::Exp, {table}), {8, 4})})};
  const auto made = parts();
  ASSERT_TRUE(made);
  EXPECT_EQ(made->part[made->part.outputs[0]].op, Op::Exp);
}

TEST_F(Constants, ThePartHasNoSizesThatDiffer) {
  g.symbols = std::make_shared<Symbols>();
  const Symbols::Scope scope(g.symbols.get());
  const Dim rows = g.symbols->add(8, "rows");
  g.nodes[x].layout = g.intern({{rows, 4}, {4, 1}});
  g.outputs = {g.pointwise(Op::Mul, {x, g.view(joined(), {{Affine{1, {}}, Affine{0, {{1, 1}}}}}, {rows, 4})})};
  const auto made = parts();
  ASSERT_TRUE(made);
  EXPECT_EQ(made->part.symbols, nullptr);
  EXPECT_NE(ir::print(made->part).find("f32[8,4]"), std::string::npos) << "x, which the part does not read";
  EXPECT_EQ(ir::verify(made->part), "");
}

TEST_F(Constants, AResultIsMadeInEachCall) {
  const NodeId made = joined();
  g.outputs = {made};
  EXPECT_FALSE(parts()) << "the caller may write to it";
}

TEST_F(Constants, NothingFollowsFromAnInputThatIsWritten) {
  const NodeId made = joined();
  g.outputs = {g.pointwise(Op::Add, {x, g.view(made, {{Affine{1, {}}, Affine{0, {{1, 1}}}}}, {8, 4})})};
  EXPECT_TRUE(parts());
  g.stores.push_back({1, g.pointwise(Op::Neg, {table}), 1});
  EXPECT_FALSE(parts());
}

TEST_F(Constants, WhatACallWritesToIsMadeAnew) {
  const NodeId made = joined();
  g.external({ExternKind::Op, 0, "aten::op_", {made}, {0}, 1});
  g.outputs = {x};
  EXPECT_FALSE(parts());
}

TEST_F(Constants, AViewThatTheCallerGetsIsOfMemoryOfItsOwn) {
  const NodeId made = joined();
  const NodeId view = g.external({ExternKind::View, 0, "aten::select", {made}, {}, 1});
  g.outputs = {g.result(view, 0, DType::F32, {{4}, {1}})};
  EXPECT_FALSE(parts());
}

TEST_F(Constants, LargeValuesAreMadeInEachCall) {
  const NodeId many = g.iota({{1 << 20}, {1}}, 0);
  const NodeId sines = g.pointwise(Op::Sin, {g.convert(many, DType::F32)});
  g.outputs = {g.pointwise(Op::Mul, {sines, g.view(x, {{Affine{0, {}}, Affine{0, {}}}}, {1 << 20})})};
  EXPECT_FALSE(parts()) << "4 MB would stay between calls";
}

}  // namespace
