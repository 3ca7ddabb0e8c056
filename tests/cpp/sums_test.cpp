// Sums of tensors of one slice each among zeros: put together of slices they have the very same elements, signs of
// zeros included, however the sum is nested.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "pass/pass.h"
#include "pass/slice.h"
#include "reference_machine.h"
#include "support/work.h"

namespace fastjit::test {
namespace {

using ir::Graph;
using ir::NodeId;
using ir::Op;

class RandomSum {
 public:
  explicit RandomSum(uint32_t seed) : random_(seed) {}

  Graph make() {
    sizes_ = {2 + draw() % 3, 2 + draw() % 20, 1 + draw() % 3};
    dim_ = static_cast<uint8_t>(draw() % 3);
    std::vector<NodeId> parts;
    const uint32_t count = 2 + draw() % 12, wholes = draw() % 4 == 0 ? draw() % 3 : 0;
    for (uint32_t i = 0; i < count; ++i) parts.push_back(part(draw() % 16 == 0));
    for (uint32_t i = 0; i < wholes; ++i) parts.push_back(whole());
    std::shuffle(parts.begin(), parts.end(), random_);
    const bool is_chain = draw() % 2;
    while (parts.size() > 1) {
      const size_t at = is_chain ? 0 : draw() % (parts.size() - 1);
      parts[at] = g_.pointwise(Op::Add, {parts[at], parts[at + 1]});
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
      if (draw() % 12 == 0) g_.outputs.push_back(g_.pointwise(Op::Neg, {parts[at]}));
    }
    g_.outputs.push_back(g_.pointwise(Op::Neg, {parts[0]}));
    return std::move(g_);
  }

 private:
  uint32_t draw() { return static_cast<uint32_t>(random_()); }

  NodeId value(std::vector<ir::Dim> sizes) {
    std::vector<ir::Dim> strides = ir::row_major(sizes);
    const NodeId x = g_.input(ir::DType::F32, {std::move(sizes), std::move(strides)}, {"x"});
    return draw() % 2 ? x : g_.pointwise(Op::Neg, {x});
  }
  NodeId whole() { return value(sizes_); }

  NodeId part(bool along_another) {
    const auto dim = static_cast<uint8_t>(along_another ? (dim_ + 1) % 3 : dim_);
    std::vector<ir::Dim> rest = sizes_;
    rest.erase(rest.begin() + dim);
    const auto index = static_cast<int64_t>(draw()) % sizes_[dim].hint();
    const NodeId zeros = g_.expand(g_.constant(ir::DType::F32, 0), sizes_);
    return g_.update(zeros, value(std::move(rest)), pass::slice_map(2, dim, index));
  }

  std::mt19937 random_;
  std::vector<ir::Dim> sizes_;
  uint8_t dim_ = 0;
  Graph g_;
};

std::string difference_with_signs(const Outcome& a, const Outcome& b) {
  if (std::string fault = difference(a, b); !fault.empty()) return fault;
  for (size_t t = 0; t < a.outputs.size(); ++t)
    for (size_t i = 0; i < a.outputs[t].size(); ++i)
      if (a.outputs[t][i].f != b.outputs[t][i].f || std::signbit(a.outputs[t][i].f) != std::signbit(b.outputs[t][i].f))
        return "output " + std::to_string(t) + "[" + std::to_string(i) + "]: the bits differ";
  return "";
}

TEST(Sums, HaveTheSameElementsHoweverTheyAreNested) {
  constexpr uint32_t kGraphs = 2000;
  uint32_t changed = 0;
  for (uint32_t seed = 0; seed < kGraphs; ++seed) {
    const Graph g = RandomSum(seed).make();
    const auto made = pass::sums(g, {});
    if (!made) continue;
    ++changed;
    ASSERT_EQ(ir::verify(*made), "") << "seed " << seed;
    std::mt19937 random(seed);
    const std::vector<Values> inputs = make_inputs(g, random);
    ASSERT_EQ(difference_with_signs(run_graph(g, inputs, {}), run_graph(*made, inputs, {})), "")
        << "seed " << seed << "\n"
        << ir::print(g) << ir::print(*made);
  }
  EXPECT_GT(changed, kGraphs * 3 / 4);
}

TEST(Sums, OfManySlicesAreFoundInLinearTime) {
  const auto chain = [](int64_t count) {
    Graph g;
    NodeId sum = ir::kNoNode;
    const NodeId x = g.input(ir::DType::F32, {{4}, {1}}, {"x"});
    for (int64_t i = 0; i < count; ++i) {
      const NodeId zeros = g.expand(g.constant(ir::DType::F32, 0), {count, 4});
      const NodeId value = g.pointwise(Op::Mul, {x, g.constant(ir::DType::F32, static_cast<double>(i))});
      const NodeId part = g.update(zeros, value, pass::slice_map(1, 0, count - 1 - i));
      sum = sum == ir::kNoNode ? part : g.pointwise(Op::Add, {sum, part});
    }
    g.outputs = {sum};
    return g;
  };
  const auto steps_for = [&](int64_t count) {
    const Graph g = chain(count);
    const uint64_t before = support::recording_work;
    EXPECT_TRUE(pass::sums(g, {}));
    return static_cast<double>(support::recording_work - before);
  };
  EXPECT_LT(steps_for(4000), 12 * steps_for(400));
}

}  // namespace
}  // namespace fastjit::test
