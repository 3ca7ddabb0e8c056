// Passes: what they fold, and what they must leave alone.
#include <gtest/gtest.h>

#include <functional>

#include "pass/pass.h"

using namespace fastjit;
using namespace fastjit::ir;

namespace {

size_t count(const Graph& g, Op op) {
  size_t n = 0;
  for (const Node& node : g.nodes) n += node.op == op;
  return n;
}

Graph with(const std::function<NodeId(Graph&, NodeId)>& body, DType type = DType::F32) {
  Graph g;
  const NodeId x = g.input(type, {{4}, {1}}, {"x"});
  g.outputs = {body(g, x)};
  return g;
}

}  // namespace

TEST(Fold, KeepsTheSignOfZero) {
  const Graph plus =
      pass::run(with([](Graph& g, NodeId x) { return g.pointwise(Op::Add, {x, g.constant(DType::F32, 0.0)}); }), {});
  EXPECT_EQ(count(plus, Op::Add), 1u) << "-0 + 0 is +0, so this is no identity";
  const Graph minus =
      pass::run(with([](Graph& g, NodeId x) { return g.pointwise(Op::Sub, {x, g.constant(DType::F32, 0.0)}); }), {});
  EXPECT_EQ(count(minus, Op::Sub), 0u);
}

TEST(Fold, AnIdentityIsStillANewTensor) {
  const Graph g =
      pass::run(with([](Graph& g, NodeId x) { return g.pointwise(Op::Mul, {x, g.constant(DType::F32, 1.0)}); }), {});
  EXPECT_EQ(count(g, Op::Mul), 0u);
  EXPECT_EQ(g[g.outputs[0]].op, Op::View) << "the caller must not get x itself";
}

TEST(Fold, WhatACallOverwritesIsReadBefore) {
  const auto body = [](bool writes) {
    Graph g;
    const NodeId x = g.input(DType::F32, {{4, 4}, {1, 4}}, {"x"});
    const NodeId one = g.pointwise(Op::Mul, {x, g.constant(DType::F32, 1.0)}), row = g.reshape(x, {16});
    g.external({ExternKind::Op, 0, "aten::op_", {x}, writes ? std::vector<uint32_t>{0} : std::vector<uint32_t>{}, 1});
    g.outputs = {g.pointwise(Op::Exp, {one}), g.reshape(row, {2, 8})};
    return pass::run(g, {});
  };
  EXPECT_EQ(count(body(true), Op::Mul), 1u);
  EXPECT_EQ(count(body(true), Op::Reshape), 2u);
  EXPECT_EQ(count(body(false), Op::Mul), 0u);
  EXPECT_EQ(count(body(false), Op::Reshape), 1u);
}

TEST(Pass, WhereThereIsNothingToDoTheGraphStays) {
  const Graph g = with([](Graph& g, NodeId x) {
    const NodeId two = g.update(g.undef(DType::F32, {{2, 4}, {4, 1}}), x, {{{0, {}}, {0, {{0, 1}}}}});
    return g.update(two, g.pointwise(Op::Add, {x, g.constant(DType::F32, 2.0)}), {{{1, {}}, {0, {{0, 1}}}}});
  });
  for (const pass::Pass& pass : pass::pipeline()) EXPECT_FALSE(pass.run(g, {})) << pass.name;
}

TEST(Pass, CopiesThatACallOverwritesStayTwo) {
  Graph g;
  const NodeId x = g.input(DType::F32, {{4}, {1}}, {"x"});
  const NodeId value = g.pointwise(Op::Mul, {x, x});
  const NodeId memory = g.fresh_copy(value, {1}), other = g.fresh_copy(value, {1});
  g.external({ExternKind::Op, 0, "aten::add_", {memory}, {0}, 0});
  g.outputs = {other};
  const Graph after = pass::run(g, {});
  for (const ExternAttr& call : after.externs) EXPECT_NE(call.operands[0], after.outputs[0]);
}

TEST(Fold, HalfRoundingsStayInEagerMode) {
  const auto body = [](Graph& g, NodeId x) {
    return g.pointwise(Op::Neg, {g.convert(g.convert(x, DType::BF16), DType::F32)});
  };
  EXPECT_EQ(count(pass::run(with(body), {Numerics::Eager}), Op::Convert), 2u);
  EXPECT_EQ(count(pass::run(with(body), {Numerics::Accurate}), Op::Convert), 0u);
  const auto back = [](Graph& g, NodeId x) { return g.convert(g.convert(x, DType::F32), DType::BF16); };
  EXPECT_EQ(count(pass::run(with(back, DType::BF16), {}), Op::Convert), 0u) << "widening and back changes nothing";
}

TEST(Fold, RoundingsThatChangeNothingGo) {
  const auto rounded = [](Op op, DType half, double factor) {
    return with([=](Graph& g, NodeId x) {
      const auto round = [&](NodeId y) { return g.convert(g.convert(y, half), DType::F32); };
      const NodeId y = round(x);
      return round(op == Op::Mul ? g.pointwise(op, {y, g.constant(DType::F32, factor)}) : g.pointwise(op, {y}));
    });
  };
  const auto roundings = [&](Op op, DType half, double factor = 0) {
    return count(pass::run(rounded(op, half, factor), {Numerics::Eager}), Op::Convert) / 2;
  };
  EXPECT_EQ(roundings(Op::Mul, DType::BF16, 2.0), 1u);
  EXPECT_EQ(roundings(Op::Mul, DType::BF16, -8.0), 1u);
  EXPECT_EQ(roundings(Op::Neg, DType::BF16), 1u);
  EXPECT_EQ(roundings(Op::Abs, DType::F16), 1u);
  EXPECT_EQ(roundings(Op::Mul, DType::BF16, 3.0), 2u);
  EXPECT_EQ(roundings(Op::Mul, DType::BF16, 0.5), 2u) << "a denormal loses a bit";
  EXPECT_EQ(roundings(Op::Mul, DType::F16, 2.0), 2u) << "65504 * 2 is a float";
  EXPECT_EQ(roundings(Op::Exp, DType::BF16), 2u);
}

TEST(Fold, ConstantsInTheirOwnPrecision) {
  const Graph g = pass::run(with([](Graph& g, NodeId x) {
                              const NodeId third =
                                  g.pointwise(Op::Div, {g.constant(DType::F32, 1.0), g.constant(DType::F32, 3.0)});
                              return g.pointwise(Op::Mul, {x, third});
                            }),
                            {});
  EXPECT_EQ(count(g, Op::Div), 0u);
  EXPECT_NE(print(g).find("0.3333333432674408"), std::string::npos) << print(g);
}

// e^x that is rounded to bfloat16 at once is the rough one, in every mode and whoever else reads e^x.
TEST(Variants, BelongToTheOperation) {
  for (const Numerics numerics : {Numerics::Eager, Numerics::Accurate, Numerics::Fast})
    for (const bool quotient : {false, true})
      for (const DType type : {DType::BF16, DType::F16})
        for (const bool read_twice : {false, true}) {
          Graph g;
          const NodeId x = g.input(DType::F32, {{4}, {1}}, {"x"});
          const NodeId exp = g.pointwise(Op::Exp, {x});
          const NodeId sum = g.pointwise(Op::Add, {g.constant(DType::F32, 1.0), exp});
          g.outputs = {g.convert(quotient ? g.pointwise(Op::Div, {x, sum}) : exp, type)};
          if (read_twice) g.outputs.push_back(g.pointwise(Op::Neg, {exp}));
          const Graph out = pass::run(g, {numerics});
          EXPECT_EQ(verify(out), "");
          EXPECT_EQ(count(out, Op::ExpRough), type == DType::BF16 ? 1u : 0u) << print(out);
          EXPECT_EQ(count(out, Op::Exp), read_twice || type == DType::F16 ? 1u : 0u) << print(out);
        }
}

// Where the rounding itself is left out, e^x stays what it was.
TEST(Variants, NothingIsRoughThatIsNotRounded) {
  Graph g;
  const NodeId x = g.input(DType::F32, {{4}, {1}}, {"x"});
  const NodeId rounded = g.convert(g.pointwise(Op::Exp, {x}), DType::BF16);
  g.outputs = {g.pointwise(Op::Neg, {g.convert(rounded, DType::F32)})};
  EXPECT_EQ(count(pass::run(g, {Numerics::Eager}), Op::ExpRough), 1u);
  EXPECT_EQ(count(pass::run(g, {Numerics::Accurate}), Op::ExpRough), 0u);
  EXPECT_EQ(count(pass::run(g, {Numerics::Accurate}), Op::Exp), 1u);
}

/// addmm(bias, a, b), read as `reads` says.
enum class Reads { Kernel, ThroughView, Caller, Torch, Guard };
Graph biased(Reads reads, DType type = DType::F32, bool unscaled = true) {
  Graph g;
  const NodeId a = g.input(type, {{4, 4}, {4, 1}}, {"a"}), bias = g.input(type, {{4}, {1}}, {"bias"});
  const NodeId sum = g.contract({Product::Addmm, 0, "aten::addmm", {bias, a, a}, unscaled}, type, {{4, 4}, {4, 1}});
  NodeId value = reads == Reads::ThroughView ? g.reshape(sum, {2, 2, 4}) : sum;
  if (reads == Reads::Torch)
    value = g.result(g.external({ExternKind::Op, 1, "aten::bernoulli", {sum}, {}, 1}), 0, type, {{4, 4}, {4, 1}});
  if (reads == Reads::Guard)
    g.external({ExternKind::Guard, 0, "b at model.py:3", {g.pointwise(Op::Neg, {sum})}, {}, 0});
  g.outputs = {reads == Reads::Caller ? value : g.pointwise(Op::Neg, {value})};
  return g;
}

TEST(Biases, KernelsAddThemWhereTheyReadTheSum) {
  for (const Reads reads : {Reads::Kernel, Reads::ThroughView}) {
    const Graph out = pass::run(biased(reads), {});
    EXPECT_EQ(verify(out), "");
    EXPECT_EQ(count(out, Op::Add), 1u) << print(out);
    EXPECT_EQ(out.contracts.at(0).kind, Product::Mm);
    EXPECT_EQ(out.contracts.at(0).operands.size(), 2u);
  }
}

TEST(Biases, StayInTheProductElsewhere) {
  for (const Reads reads : {Reads::Caller, Reads::Torch, Reads::Guard})
    EXPECT_EQ(pass::run(biased(reads), {}).contracts.at(0).kind, Product::Addmm);
  EXPECT_EQ(pass::run(biased(Reads::Kernel, DType::BF16), {}).contracts.at(0).kind, Product::Addmm)
      << "it would be rounded twice";
  EXPECT_EQ(pass::run(biased(Reads::Kernel, DType::F32, false), {}).contracts.at(0).kind, Product::Addmm);
}

TEST(Dead, DropsUnusedPureNodesOnly) {
  Graph g;
  const NodeId x = g.input(DType::F32, {{4}, {1}}, {"x"});
  g.pointwise(Op::Exp, {x});
  const NodeId call = g.external({ExternKind::Op, 0, "aten::bernoulli", {x}, {}, 1});
  g.result(call, 0, DType::F32, {{4}, {1}});
  const NodeId matrix = g.input(DType::F32, {{4, 4}, {4, 1}}, {"matrix"});
  g.contract({Product::Mm, 1, "aten::mm", {matrix, matrix}}, DType::F32, {{4, 4}, {4, 1}});
  g.outputs = {g.pointwise(Op::Neg, {x})};
  const Graph out = pass::run(g, {});
  EXPECT_EQ(count(out, Op::Exp), 0u);
  EXPECT_EQ(count(out, Op::Contract), 0u) << "a product has none";
  EXPECT_EQ(count(out, Op::Extern), 1u) << "a call may have effects";
  EXPECT_EQ(verify(out), "");
}

TEST(Dead, WhatIsLeftIsInternedStill) {
  Graph g;
  const NodeId x = g.input(DType::F32, {{4}, {1}}, {"x"}), y = g.input(DType::F32, {{4}, {1}}, {"y"});
  g.contract({Product::Mm, 0, "aten::mm", {x, y}}, DType::F32, {{4}, {1}});
  const NodeId both = g.cat({x, g.pointwise(Op::Exp, {y})}, 0);
  g.outputs = {g.contract({Product::Mm, 1, "aten::mm", {both, both}}, DType::F32, {{8}, {1}})};
  Graph after = pass::dead(g, {}).value();
  ASSERT_EQ(verify(after), "");
  EXPECT_EQ(after.nodes.size(), 5u);
  ASSERT_EQ(after.contracts.size(), 1u);
  EXPECT_EQ(after.contracts[0].call, 1u);
  EXPECT_EQ(after.pointwise(Op::Exp, {1}), 2u);
  EXPECT_FALSE(pass::dead(after, {})) << "nothing is dead";
}

namespace {

/// relu of a convolution of `image` with weights of `outputs` channels, 3 x 3, padded.
NodeId convolve(Graph& g, NodeId image, int64_t outputs, int64_t side = 3, bool keeps_layout = true) {
  const auto sizes = g.sizes(image);
  const std::vector<ir::Dim> shape{sizes[0], outputs, sizes[2], sizes[3]}, kernel{outputs, sizes[1], side, side};
  const NodeId weight = g.input(DType::F32, {kernel, row_major(kernel)}, {"w"});
  const NodeId product = g.contract(
      {.kind = Product::Convolution, .name = "aten::conv2d", .operands = {image, weight}, .keeps_layout = keeps_layout},
      DType::F32, {shape, row_major(shape)});
  return g.pointwise(Op::Max, {product, g.constant(DType::F32, 0.0)});
}

Graph images(const std::function<void(Graph&, NodeId)>& body) {
  Graph g;
  const std::vector<ir::Dim> sizes{2, 8, 16, 16};
  body(g, g.input(DType::F32, {sizes, row_major(sizes)}, {"x"}));
  return g;
}

/// Products of `g` whose image and result lie in channels_last.
size_t in_channels_last(const Graph& g) {
  size_t n = 0;
  for (NodeId id = 0; id < g.nodes.size(); ++id)
    n += g[id].op == Op::Contract && g.layout(id).strides[1] == 1 && g.layout(g.operands(id)[0]).strides[1] == 1;
  return n;
}

}  // namespace

TEST(Layouts, ConvolutionsThatFollowEachOther) {
  const Graph out =
      pass::run(images([](Graph& g, NodeId x) { g.outputs = {convolve(g, convolve(g, x, 16), 32)}; }), {});
  EXPECT_EQ(in_channels_last(out), 2u);
  EXPECT_EQ(out.layout(out.outputs.at(0)).strides, row_major(out.sizes(out.outputs.at(0)))) << "as eager's";
  for (NodeId id = 0; id < out.nodes.size(); ++id) {
    const bool is_between = out[id].op == Op::Max && id != out.outputs[0];
    if (is_between) {
      EXPECT_EQ(out.layout(id).strides[1], 1);
    }
  }
}

TEST(Layouts, OneAloneStays) {
  EXPECT_EQ(in_channels_last(pass::run(images([](Graph& g, NodeId x) { g.outputs = {convolve(g, x, 16)}; }), {})), 0u);
}

TEST(Layouts, TransposedConvolutionsStay) {
  const auto body = [](Graph& g, NodeId x) { g.outputs = {convolve(g, convolve(g, x, 16, 3, false), 32, 3, false)}; };
  EXPECT_EQ(in_channels_last(pass::run(images(body), {})), 0u);
}

TEST(Layouts, LargeWeightsOfSmallImagesStay) {
  const auto body = [](Graph& g, NodeId x) {
    const NodeId wide = convolve(g, convolve(g, x, 16), 16384);
    g.outputs = {convolve(g, wide, 16384, 1)};
  };
  EXPECT_EQ(in_channels_last(pass::run(images(body), {})), 2u) << "268 million weights, 17 million elements";
}

TEST(Layouts, WhatOthersSeeOfMemoryStays) {
  const auto given = [](ExternKind kind, std::vector<uint32_t> written) {
    return images([&](Graph& g, NodeId x) {
      const NodeId first = convolve(g, x, 16);
      g.external({kind,
                  1,
                  "aten::some",
                  {g.view(first, {{{0, {{0, 1}}}, {0, {{1, 1}}}, {0, {{2, 1}}}, {0, {{3, 1}}}}}, {2, 16, 16, 16})},
                  written});
      g.outputs = {convolve(g, first, 16)};
    });
  };
  const auto strides = [](const Graph& g) {
    const Graph out = pass::run(g, {});
    for (const ExternAttr& call : out.externs)
      if (out.layout(call.operands[0]).strides != row_major(out.sizes(call.operands[0]))) return false;
    return true;
  };
  for (const auto& [kind, written] :
       {std::pair{ExternKind::Op, std::vector<uint32_t>{}}, {ExternKind::Op, {0}}, {ExternKind::View, {}}})
    EXPECT_TRUE(strides(given(kind, written)));
  EXPECT_EQ(in_channels_last(pass::run(given(ExternKind::Guard, {}), {})), 0u) << "bit for bit";
}

namespace {

/// Two convolutions with `channels` between them, and the gradients of the second.
Graph with_way_back(int64_t channels, int64_t side = 3) {
  return images([&](Graph& g, NodeId x) {
    const NodeId image = convolve(g, x, channels);
    const NodeId result = convolve(g, image, 32, side);
    const std::vector<ir::Dim> kernel{32, channels, side, side};
    const NodeId weight = g.input(DType::F32, {kernel, row_major(kernel)}, {"w"});
    const NodeId call = g.external({.kind = ExternKind::Op,
                                    .name = "aten::convolution_backward",
                                    .operands = {g.pointwise(Op::Mul, {result, result}), image, weight},
                                    .written = {},
                                    .outputs = 3,
                                    .keeps_layout = true});
    g.outputs = {g.result(call, 0, DType::F32, g.layout(image)), g.result(call, 1, DType::F32, g.layout(weight))};
  });
}

}  // namespace

TEST(Layouts, GradientsOfAConvolutionLieLikeItsImage) {
  const Graph out = pass::run(with_way_back(16), {});
  ASSERT_EQ(verify(out), "");
  for (size_t i = 0; i < 2; ++i) {
    const NodeId operand = out.externs.at(0).operands[i], output = out.outputs[i];
    EXPECT_EQ(out.layout(operand).strides[1], 1);
    ASSERT_EQ(out[output].op, Op::View);
    EXPECT_EQ(out.layout(out[output].in[0]).strides[1], 1) << "what the call gives";
    EXPECT_EQ(out.layout(output).strides, row_major(out.sizes(output))) << "as eager's";
  }
}

TEST(Layouts, LongSumsStayExactWhereGradientsFollow) {
  const auto lie_so = [](int64_t channels, int64_t side) {
    const Graph out = pass::run(with_way_back(channels, side), {});
    EXPECT_EQ(verify(out), "");
    size_t n = in_channels_last(out);
    for (const ExternAttr& call : out.externs) n += out.layout(call.operands[1]).strides[1] == 1;
    return n;
  };
  EXPECT_EQ(lie_so(32, 3), 3u);
  EXPECT_EQ(lie_so(64, 3), 0u) << "sums of 576 products, and the convolution before them is one alone";
  EXPECT_EQ(lie_so(64, 1), 3u);
  const auto without = [](Graph& g, NodeId x) { g.outputs = {convolve(g, convolve(g, x, 64), 32)}; };
  EXPECT_EQ(in_channels_last(pass::run(images(without), {})), 2u) << "no gradients";
}

TEST(Layouts, NotWhereTheDeviceGainsNothing) {
  const Graph g = images([](Graph& g, NodeId x) { g.outputs = {convolve(g, convolve(g, x, 16), 32)}; });
  EXPECT_EQ(in_channels_last(pass::run(g, {.channels_last = false})), 0u);
}

namespace {

/// An image of three colours, into which slices of it are written one after another.
Graph with_slices(const std::vector<std::pair<int64_t, int64_t>>& writes, bool begins_empty, bool is_stored = false) {
  Graph g;
  const Layout layout{{8, 3}, {3, 1}};
  const NodeId x = g.input(DType::F32, layout, {"x"});
  NodeId now = begins_empty ? g.undef(DType::F32, layout) : x;
  const auto slice = [](int64_t which) { return IndexMap{{{0, {{0, 1}}}, {which, {}}}}; };
  for (const auto& [to, from] : writes) now = g.update(now, g.view(x, slice(from), {8}), slice(to));
  if (is_stored)
    g.stores.push_back({0, now, 1});
  else
    g.outputs = {g.pointwise(Op::Exp, {now})};
  return pass::run(g, {});
}

}  // namespace

TEST(Slices, OfOneTensorAreAView) {
  EXPECT_EQ(count(with_slices({{0, 2}, {2, 0}}, false), Op::Update), 0u);
  EXPECT_EQ(count(with_slices({{0, 2}, {1, 1}, {2, 0}}, true), Op::Update), 0u);
  EXPECT_EQ(count(with_slices({{0, 1}, {1, 1}, {2, 1}}, true), Op::Update), 0u);
  EXPECT_EQ(count(with_slices({{0, 1}, {0, 2}, {2, 0}}, false), Op::Update), 0u) << "the first is written over";
}

TEST(Slices, AllElseStaysUpdates) {
  EXPECT_EQ(count(with_slices({{0, 2}, {1, 1}}, true), Op::Update), 2u) << "the last one holds nothing";
  EXPECT_EQ(count(with_slices({{0, 1}, {1, 2}, {2, 0}}, true), Op::Update), 3u) << "in no even steps";
  EXPECT_EQ(count(with_slices({{0, 2}, {2, 0}}, false, true), Op::Update), 2u) << "the argument is written";
}

namespace {

/// tanh of two halves of exp(x), each put in its place, and the second read behind the first write.
struct Halves {
  Graph graph;
  NodeId first = kNoNode, second = kNoNode;  // what is written
  NodeId whole = kNoNode;                    // with both
};
Halves halves_in_place(int64_t read_from) {
  Halves made;
  Graph& g = made.graph;
  const auto half = [](int64_t from) { return IndexMap{{{from, {{0, 1}}}}}; };
  const NodeId base = g.pointwise(Op::Exp, {g.input(DType::F32, {{8}, {1}}, {"x"})});
  made.first = g.pointwise(Op::Tanh, {g.view(base, half(0), {4})});
  const NodeId now = g.update(base, made.first, half(0));
  made.second = g.pointwise(Op::Tanh, {g.view(now, half(read_from), {4})});
  made.whole = g.update(now, made.second, half(4));
  return made;
}

}  // namespace

TEST(Unread, AnUpdateOfWhichOnlyTheRestIsReadIsNone) {
  Halves both = halves_in_place(4);
  both.graph.outputs = {both.graph.pointwise(Op::Mul, {both.first, both.second})};
  const Graph g = pass::run(both.graph, {});
  EXPECT_EQ(verify(g), "");
  EXPECT_EQ(count(g, Op::Update), 0u);
  EXPECT_EQ(count(g, Op::Tanh), 2u);
}

TEST(Unread, AllElseStaysUpdates) {
  Halves shown = halves_in_place(4);
  shown.graph.outputs = {shown.whole};
  EXPECT_EQ(count(pass::run(shown.graph, {}), Op::Update), 2u) << "the caller reads both";
  Halves stored = halves_in_place(4);
  stored.graph.outputs = {stored.second};
  stored.graph.stores.push_back({0, stored.whole, 1});
  EXPECT_EQ(count(pass::run(stored.graph, {}), Op::Update), 2u) << "an argument is to hold both";
  Halves across = halves_in_place(2);
  across.graph.outputs = {across.second};
  EXPECT_EQ(count(pass::run(across.graph, {}), Op::Update), 1u) << "two elements that are read are new";
}

namespace {

/// The sum of tensors that hold exp(x) in one of three slices each, among zeros.
Graph sum_of_slices(const std::vector<int64_t>& which, double among, bool is_shown = false) {
  Graph g;
  const NodeId x = g.input(DType::F32, {{8}, {1}}, {"x"});
  const NodeId base = g.expand(g.constant(DType::F32, among), {8, 3});
  NodeId sum = kNoNode;
  for (const int64_t slice : which) {
    const NodeId part = g.update(base, g.pointwise(Op::Exp, {x}), {{{0, {{0, 1}}}, {slice, {}}}});
    if (is_shown) g.outputs.push_back(part);
    sum = sum == kNoNode ? part : g.pointwise(Op::Add, {sum, part});
  }
  g.outputs.push_back(g.pointwise(Op::Neg, {sum}));
  return pass::run(g, {});
}

}  // namespace

TEST(Sums, OfOneSliceEachArePutTogether) {
  for (const auto& which : {std::vector<int64_t>{2, 1, 0}, {0, 2}}) {
    const Graph g = sum_of_slices(which, 0);
    EXPECT_EQ(verify(g), "");
    EXPECT_EQ(count(g, Op::Update), 0u);
    EXPECT_EQ(count(g, Op::Cat), 1u);
    EXPECT_EQ(count(g, Op::Add), 1u) << "of 0 to exp(x), where -0 becomes 0";
  }
}

TEST(Sums, AllElseStaysASum) {
  EXPECT_EQ(count(sum_of_slices({0, 1}, 1), Op::Cat), 0u) << "among other values";
  EXPECT_EQ(count(sum_of_slices({0, 1}, -0.0), Op::Cat), 0u) << "among -0, where -0 stays";
  EXPECT_EQ(count(sum_of_slices({0, 1}, 0, true), Op::Cat), 0u) << "of tensors that are made anyway";
}
