// Tiled plans of CPU kernels against plain C++ loops: transposed operands go through the buffer of a tile.
#include <algorithm>
#include <tuple>

#include "kernel_harness.h"

namespace fastjit::test {
namespace {

using ir::DType;
using ir::Op;

void make_tiled(plan::KernelPlan& plan, int tile) {
  plan.tile = static_cast<uint8_t>(tile);
  plan.tile_dim = static_cast<int8_t>(plan.vec_dim - 1);
}

std::vector<int64_t> sides(int lanes) { return {1, lanes - 1, lanes, lanes + 1, 2 * lanes + 3, 69}; }

template <class T>
T number(size_t i) {
  return static_cast<T>(i * 2654435761u >> 7);
}

// z = x.t() and z.t() = x with rows some elements apart: every element arrives, none beside them is touched.
template <class T>
void copies(DType type) {
  for (backend::Isa isa : host_isas())
    for (const auto& [tile, unroll, out] : {std::tuple{16, 1, false}, {16, 2, true}, {64, 4, false}, {64, 1, true}}) {
      const int lanes = backend::lanes_for(isa);
      PlanBuilder p("kk", 1, lanes, unroll);
      p.out(p.in(type, out ? "*1" : "1*"), out ? "1*" : "*1");
      make_tiled(p.plan, tile);
      ASSERT_EQ(plan::verify(p.plan), "");
      EXPECT_EQ(p.plan.is_transposed(out), true);
      EXPECT_EQ(p.plan.is_transposed(!out), false);
      const auto kernel = build(p.plan, isa);
      for (const int64_t rows : sides(lanes))
        for (const int64_t columns : sides(lanes))
          for (const int64_t gap : {0, 3}) {
            const int64_t x_pitch = (out ? columns : rows) + gap, z_pitch = (out ? rows : columns) + gap;
            Array<T> x(x_pitch * (out ? rows : columns) + 1), z(z_pitch * (out ? columns : rows) + 1);
            for (size_t i = 0; i < x.size(); ++i) x[i] = type == DType::Bool ? static_cast<T>(i % 3) : number<T>(i);
            std::vector<int64_t> strides{1, x_pitch, z_pitch, 1};
            if (out) strides = {x_pitch, 1, 1, z_pitch};
            run(p.plan, *kernel, {{x.data() + 1, z.data() + 1}, {rows, columns}, strides, {}, tile}, gap ? 3 : 1);
            ASSERT_TRUE(z.guard_intact());
            Array<T> want(z.size());
            for (int64_t i = 0; i < rows; ++i)
              for (int64_t j = 0; j < columns; ++j) {
                const T from = x[1 + i * strides[0] + j * strides[1]];
                want[1 + i * strides[2] + j * strides[3]] = type == DType::Bool ? static_cast<T>(from != 0) : from;
              }
            for (size_t i = 0; i < z.size(); ++i)
              ASSERT_TRUE(same_bits<T>(z[i], want[i])) << ir::text(type) << " " << backend::text(isa) << " tile "
                                                       << tile << " " << rows << "x" << columns << " at " << i;
          }
    }
}
TEST(CodegenTiles, CopiesOfEveryElementSize) {
  copies<float>(DType::F32), copies<double>(DType::F64), copies<int64_t>(DType::I64), copies<uint16_t>(DType::F16),
      copies<uint16_t>(DType::BF16), copies<uint8_t>(DType::U8), copies<uint8_t>(DType::Bool);
}

// Three dims, and in one kernel: transposed operands of three types, one of them changed in place, one gathered, one
// that stands still along the lanes, indices of both dims of the tile, and a transposed and a plain output.
TEST(CodegenTiles, ManyOperandsOfManyTypes) {
  for (backend::Isa isa : host_isas())
    for (int tile : {16, 32}) {
      PlanBuilder p("kkk", 2, backend::lanes_for(isa), 2);
      const auto x = p.in(DType::F32, "*1*"), w = p.in(DType::F64, "*1*"), q = p.in(DType::U8, "*1*"),
                 y = p.in(DType::F32, "**1"), g = p.in(DType::F32, "***"), c = p.in(DType::F32, "*10");
      const auto same = p.operand(DType::F32, "*1*", true);
      const auto at =
          p.convert(p.op(Op::Add, p.index(1), p.op(Op::Mul, p.index(2), p.constant(DType::I64, 1000))), DType::F32);
      const auto sum = p.op(Op::Add, p.op(Op::Add, x, y), p.op(Op::Add, g, p.op(Op::Add, c, at)));
      p.store(same, p.op(Op::Sub, p.load(same), sum));
      p.out(p.op(Op::Add, w, p.convert(p.op(Op::Add, sum, p.convert(q, DType::F32)), DType::F64)), "*1*");
      p.out(sum, "**1");
      make_tiled(p.plan, tile);
      ASSERT_EQ(plan::verify(p.plan), "");
      const auto kernel = build(p.plan, isa);
      for (const auto& [b, m, n] : {std::tuple{2, 37, 70}, {3, 5, 64}, {1, 64, 3}, {2, 16, 32}}) {
        const int64_t plane = m * n, all = b * plane;
        Array<float> xs(all), ys(all), gs(2 * all), cs(b * m), ss(all), zs(all);
        Array<double> ws(all), ts(all);
        Array<uint8_t> qs(all);
        for (int64_t i = 0; i < all; ++i) {
          xs[i] = static_cast<float>(i % 101), ys[i] = static_cast<float>(i % 37), ss[i] = static_cast<float>(i % 11);
          ws[i] = static_cast<double>(i), qs[i] = static_cast<uint8_t>(i);
          gs[2 * i] = static_cast<float>(i % 7);
        }
        for (int64_t i = 0; i < b * m; ++i) cs[i] = static_cast<float>(i);
        auto before = ss;
        const std::vector<int64_t> turned{plane, 1, m}, plain{plane, n, 1};
        std::vector<int64_t> strides;
        for (const auto& s : {turned, turned, turned, plain, {2 * plane, 2 * n, 2}, {m, 1, 0}, turned, turned, plain})
          strides.insert(strides.end(), s.begin(), s.end());
        run(p.plan, *kernel,
            {{xs.data(), ws.data(), qs.data(), ys.data(), gs.data(), cs.data(), ss.data(), ts.data(), zs.data()},
             {b, m, n},
             strides,
             {},
             tile},
            3);
        ASSERT_TRUE(ss.guard_intact() && ts.guard_intact() && zs.guard_intact());
        for (int64_t k = 0; k < b; ++k)
          for (int64_t i = 0; i < m; ++i)
            for (int64_t j = 0; j < n; ++j) {
              const int64_t t = k * plane + j * m + i, r = k * plane + i * n + j;
              const float want = (xs[t] + ys[r]) + (gs[2 * r] + (cs[k * m + i] + static_cast<float>(i + 1000 * j)));
              ASSERT_EQ(zs[r], want) << backend::text(isa) << " " << k << " " << i << " " << j;
              ASSERT_EQ(ss[t], before[t] - want);
              ASSERT_EQ(ts[t], ws[t] + static_cast<double>(want + static_cast<float>(qs[t])));
            }
      }
    }
}

TEST(CodegenTiles, VerifyKeepsTheRules) {
  PlanBuilder p("kk", 1, 8);
  p.out(p.in(DType::F32, "1*"), "*1");
  const std::string plain = plan::text(p.plan);
  make_tiled(p.plan, 64);
  EXPECT_EQ(plan::verify(p.plan), "");
  EXPECT_NE(plan::text(p.plan), plain);
  EXPECT_NE(plan::text(p.plan).find(" tile d0 of 64\n"), std::string::npos);
  auto refused = [&](auto&& change, const char* reason) {
    plan::KernelPlan bad = p.plan;
    change(bad);
    EXPECT_NE(plan::verify(bad).find(reason), std::string::npos) << plan::verify(bad);
    EXPECT_NE(plan::text(bad), plan::text(p.plan));
  };
  refused([](auto& b) { b.tile_dim = -1; }, "tile_dim");
  refused([](auto& b) { b.tile_dim = 1; }, "tile_dim");
  refused([](auto& b) { b.tile = 0; }, "power of two");
  refused([](auto& b) { b.tile = 4; }, "power of two");
  refused([](auto& b) { b.tile = 48; }, "power of two");
  refused([](auto& b) { b.dims[1] = plan::DimKind::Reduced; }, "tile_dim");
}

}  // namespace
}  // namespace fastjit::test
