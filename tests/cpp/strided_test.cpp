// Memory addressed by strides, as elements of a tensor: a map names the very elements that strides lead to.
#include "ir/strided.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "reference.h"

namespace fastjit::test {
namespace {

using ir::Dim;
using Ints = std::vector<int64_t>;

std::vector<Dim> dims(const Ints& ints) { return {ints.begin(), ints.end()}; }

struct Strided {
  Ints sizes, strides;
  int64_t offset = 0;
  int64_t at(const Ints& index) const { return offset + dot_index(strides, index); }
};

class Random {
 public:
  explicit Random(uint32_t seed) : random_(seed) {}
  int64_t below(int64_t end) { return static_cast<int64_t>(random_() % static_cast<uint32_t>(end)); }

  /// Dims in any order, with gaps between some.
  Strided tensor() {
    Strided made;
    const auto rank = static_cast<size_t>(1 + below(4));
    made.sizes.resize(rank);
    made.strides.resize(rank);
    std::vector<size_t> order(rank);
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), random_);
    int64_t stride = 1 + below(5) / 4;
    for (const size_t d : order) {
      made.sizes[d] = 1 + below(5);
      made.strides[d] = stride;
      stride *= made.sizes[d] + below(4) / 3;
    }
    return made;
  }

  /// Slices of its dims, some of one element left out, in any order.
  Strided part_of(const Strided& tensor) {
    Strided made;
    std::vector<size_t> order(tensor.sizes.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), random_);
    for (const size_t d : order) {
      const int64_t begin = below(tensor.sizes[d]), step = 1 + below(2);
      const int64_t size = 1 + below((tensor.sizes[d] - begin - 1) / step + 1);
      made.offset += begin * tensor.strides[d];
      if (size == 1 && below(2)) continue;
      made.sizes.push_back(size);
      made.strides.push_back(size == 1 ? below(9) : step * tensor.strides[d]);
    }
    return made;
  }

  Strided anything() {
    Strided made;
    for (int64_t left = below(4); left > 0; --left) {
      made.sizes.push_back(below(5));
      made.strides.push_back(below(14));
    }
    made.offset = below(9);
    return made;
  }

 private:
  std::mt19937 random_;
};

void expect_names(const ir::IndexMap& map, const Strided& tensor, const Strided& part) {
  each_index(part.sizes, [&](const Ints& index) {
    const Ints there = mapped(map, index);
    for (size_t d = 0; d < there.size(); ++d) {
      ASSERT_GE(there[d], 0);
      ASSERT_LT(there[d], tensor.sizes[d]);
    }
    ASSERT_EQ(tensor.at(there), part.at(index));
  });
}

TEST(Strided, AMapNamesTheElementsThatStridesLeadTo) {
  int named = 0, others = 0;
  for (uint32_t seed = 0; seed < 20'000; ++seed) {
    Random random(seed);
    const Strided tensor = random.tensor();
    const ir::Layout layout{dims(tensor.sizes), dims(tensor.strides)};
    const auto map_of = [&](const Strided& part) {
      return ir::strided_map(layout, dims(part.sizes), dims(part.strides), part.offset);
    };
    const Strided part = random.part_of(tensor), other = random.anything();
    const auto map = map_of(part);
    ASSERT_TRUE(map) << seed;
    expect_names(*map, tensor, part);
    ++named;
    if (const auto found = map_of(other)) {
      expect_names(*found, tensor, other);
      ++others;
    }
  }
  EXPECT_GT(others, named / 50);
}

}  // namespace
}  // namespace fastjit::test
