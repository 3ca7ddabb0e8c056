// Loops, strides, tails and reductions of CPU kernels against plain C++ loops.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "kernel_harness.h"

namespace fastjit::test {
namespace {

using ir::DType;
using ir::Op;
using ir::ReduceKind;

std::vector<float> noise(size_t n, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

// x + y * 2 over every length: body, unrolled body and tail, at every offset of a vector.
template <class T>
void tails(DType type) {
  for (backend::Isa isa : host_isas())
    for (int unroll : {1, 2, 3}) {
      PlanBuilder p("k", 0, backend::lanes_for(isa), unroll);
      const auto x = p.in(type, "1"), y = p.in(type, "*");
      const bool half = ir::is_half(type);
      p.out(half ? y : p.op(Op::Add, x, p.op(Op::Mul, y, p.constant(type, 2))), "1");
      const auto kernel = build(p.plan, isa);
      for (int64_t n = 0; n <= 70; ++n)
        for (int64_t stride : {int64_t{1}, int64_t{3}, int64_t{-2}, int64_t{0}}) {
          Array<T> a(n + 1), b(n * 3 + 3), z(n);
          for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<T>(i + 1);
          for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<T>(i * 5);
          T* start = stride < 0 ? b.data() + 2 * n : b.data();
          run(p.plan, *kernel, {{a.data() + 1, start, z.data()}, {n}, {0, stride, 0}, {}, 32}, 2);
          ASSERT_TRUE(z.guard_intact());
          for (int64_t i = 0; i < n; ++i)
            ASSERT_EQ(z[i], half ? start[i * stride] : static_cast<T>(a[i + 1] + static_cast<T>(start[i * stride] * 2)))
                << ir::text(type) << " n " << n << " stride " << stride << " at " << i;
        }
    }
}
TEST(CodegenLoops, TailsAndStrides) {
  tails<float>(DType::F32), tails<double>(DType::F64), tails<int8_t>(DType::I8), tails<int16_t>(DType::I16),
      tails<int64_t>(DType::I64), tails<uint16_t>(DType::BF16);
}

// Strided stores, also of types that no scatter takes.
template <class T>
void strided_stores(DType type) {
  for (backend::Isa isa : host_isas()) {
    PlanBuilder p("k", 0, backend::lanes_for(isa), 2);
    p.out(p.in(type, "1"), "*");
    const auto kernel = build(p.plan, isa);
    for (int64_t n : {1, 7, 16, 40, 65}) {
      Array<T> x(n), z(n * 3);
      std::iota(x.data(), x.data() + n, T(1));
      run(p.plan, *kernel, {{x.data(), z.data()}, {n}, {0, 3}});
      for (int64_t i = 0; i < 3 * n; ++i) ASSERT_EQ(z[i], i % 3 ? T(0) : x[i / 3]) << ir::text(type);
    }
  }
}
TEST(CodegenLoops, StridedStores) {
  strided_stores<float>(DType::F32), strided_stores<double>(DType::F64), strided_stores<int8_t>(DType::I8),
      strided_stores<int16_t>(DType::I16);
}

// Rank 1 to 4, a transposed and a broadcast operand, any block and any split into tasks.
TEST(CodegenLoops, RanksBlocksAndTasks) {
  for (backend::Isa isa : host_isas())
    for (int rank = 1; rank <= 4; ++rank)
      for (bool vector : {true, false}) {
        const std::string k(rank, 'k'), any = std::string(rank - 1, '*') + "1", strided(rank, '*'),
                                        flat = std::string(rank - 1, '0') + "1";
        PlanBuilder p(k, vector ? rank - 1 : -1, vector ? backend::lanes_for(isa) : 1, vector ? 2 : 1);
        const auto a = p.in(DType::F32, any), t = p.in(DType::F32, strided), b = p.in(DType::F32, flat),
                   s = p.in(DType::F32, std::string(rank, '0'));
        const auto i = p.convert(p.index(0), DType::F32);
        p.out(p.op(Op::Add, p.op(Op::Add, p.op(Op::Mul, a, t), p.op(Op::Mul, b, s)), i), any);
        const auto kernel = build(p.plan, isa);
        const int64_t shape[] = {3, 5, 4, 37};
        std::vector<int64_t> sizes(shape + 4 - rank, shape + 4), row(rank, 1), column(rank, 1);
        for (int d = rank - 2; d >= 0; --d) row[d] = row[d + 1] * sizes[d + 1];
        for (int d = 1; d < rank; ++d) column[d] = column[d - 1] * sizes[d - 1];
        const int64_t n = row[0] * sizes[0];
        auto x = noise(n), y = noise(n, 2), bias = noise(sizes.back(), 3);
        float scale = 0.7f;
        for (int64_t block : {16, 32, 1024})
          for (int tasks : {1, 3}) {
            Array<float> z(n);
            std::vector<int64_t> strides;
            for (const auto* s4 : {&row, &column, &row, &row, &row})
              strides.insert(strides.end(), s4->begin(), s4->end());
            run(p.plan, *kernel, {{x.data(), y.data(), bias.data(), &scale, z.data()}, sizes, strides, {}, block},
                tasks);
            ASSERT_TRUE(z.guard_intact());
            for (int64_t at = 0; at < n; ++at) {
              int64_t rest = at, other = 0, first = 0;
              for (int d = rank - 1; d >= 0; --d) {
                other += rest % sizes[d] * column[d];
                first = rest % sizes[d];
                rest /= sizes[d];
              }
              const float want = (x[at] * y[other] + bias[at % sizes.back()] * scale) + static_cast<float>(first);
              ASSERT_EQ(z[at], want) << "rank " << rank << " block " << block << " tasks " << tasks << " at " << at;
            }
          }
      }
}

TEST(CodegenLoops, InPlaceThroughOneOrTwoOperands) {
  for (backend::Isa isa : host_isas()) {
    PlanBuilder p("k", 0, backend::lanes_for(isa), 2);
    const auto operand = p.operand(DType::F32, "1", true);
    p.store(operand, p.op(Op::Mul, p.load(operand), p.in(DType::F32, "1")));
    const auto kernel = build(p.plan, isa);
    auto x = noise(70);
    const auto before = x;
    run(p.plan, *kernel, {{x.data(), x.data()}, {70}, {}});
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(x[i], before[i] * before[i]);
  }
}

// Rank 0: one unit, no dim.
TEST(CodegenLoops, ScalarKernel) {
  PlanBuilder p("", -1, 1);
  p.out(p.op(Op::Add, p.in(DType::F64, ""), p.constant(DType::F64, 0.5)), "");
  const auto kernel = build(p.plan, backend::Isa::Avx2);
  double x = 2, z = 0;
  run(p.plan, *kernel, {{&x, &z}, {}, {}});
  EXPECT_EQ(z, 2.5);
}

// Row kernels of every layout: reduced vec_dim, kept vec_dim (columns) and none.
struct Layout {
  const char* name;
  int vec_dim;
  bool column;  // the reduced dim is the outer one in memory
};
constexpr Layout kLayouts[] = {{"rows", 1, false}, {"columns", 0, true}, {"scalar", -1, false}};

template <class T, class R>
void reduction(ReduceKind kind, DType type, DType result, auto&& make, auto&& reference) {
  for (backend::Isa isa : host_isas())
    for (const Layout& layout : kLayouts)
      for (int unroll : {1, 4}) {
        const int lanes = layout.vec_dim < 0 ? 1 : backend::lanes_for(isa);
        PlanBuilder p("kr", layout.vec_dim, lanes, layout.vec_dim < 0 ? 1 : unroll);
        p.elem();
        const auto r = p.reduce(kind, p.in(type, layout.column ? "1*" : "*1"), result);
        p.row().out(r, layout.column ? "10" : "*0");
        const auto kernel = build(p.plan, isa);
        for (int64_t n : {1, 2, 15, 16, 17, 64, 67, 300})
          for (int64_t rows : {1, 5, 19}) {
            std::vector<T> values(n * rows);
            for (size_t i = 0; i < values.size(); ++i) values[i] = make(i, n);
            Array<R> out(rows);
            const int64_t a = layout.column ? 1 : n, b = layout.column ? rows : 1;
            run(p.plan, *kernel, {{values.data(), out.data()}, {rows, n}, {a, b, 1, 0}, {}, 16});
            ASSERT_TRUE(out.guard_intact());
            for (int64_t row = 0; row < rows; ++row) {
              std::vector<T> line(n);
              for (int64_t i = 0; i < n; ++i) line[i] = values[row * a + i * b];
              const R want = reference(line);
              ASSERT_TRUE(same_bits<R>(out[row], want))
                  << backend::text(isa) << " " << layout.name << " unroll " << unroll << " kind "
                  << static_cast<int>(kind) << " " << ir::text(type) << " n " << n << " row " << row << " gave "
                  << +out[row] << " not " << +want;
            }
          }
      }
}

float wild(size_t i, int64_t n) {  // ties, infinities and NaNs
  const auto k = static_cast<int>(i * 2654435761u >> 20 & 63);
  if (n > 16 && k == 0 && i % 5 == 0) return std::numeric_limits<float>::quiet_NaN();
  return k == 1 ? -INFINITY : static_cast<float>(k % 9) - 4;
}

template <class T>
int64_t arg_best(const std::vector<T>& line, bool low) {
  size_t best = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] != line[i]) return static_cast<int64_t>(i);
    if (low ? line[i] < line[best] : line[i] > line[best]) best = i;
  }
  return static_cast<int64_t>(best);
}
template <class T>
T best(const std::vector<T>& line, bool low) {
  return line[arg_best(line, low)];
}

TEST(CodegenReduce, MaxMinAndTheirIndices) {
  auto integer = [](size_t i, int64_t) { return static_cast<int8_t>(i * 37 % 101 - 50); };
  for (bool low : {false, true}) {
    const auto value = low ? ReduceKind::Min : ReduceKind::Max, index = low ? ReduceKind::ArgMin : ReduceKind::ArgMax;
    reduction<float, float>(value, DType::F32, DType::F32, wild, [&](const auto& line) { return best(line, low); });
    reduction<float, int64_t>(index, DType::F32, DType::I64, wild,
                              [&](const auto& line) { return arg_best(line, low); });
    reduction<int8_t, int8_t>(value, DType::I8, DType::I8, integer, [&](const auto& line) { return best(line, low); });
    reduction<int8_t, int64_t>(index, DType::I8, DType::I64, integer,
                               [&](const auto& line) { return arg_best(line, low); });
  }
  auto lowest = [](size_t, int64_t) { return -INFINITY; };
  reduction<float, int64_t>(ReduceKind::ArgMax, DType::F32, DType::I64, lowest, [](const auto&) { return 0; });
}

TEST(CodegenReduce, SumsAndProducts) {
  auto small = [](size_t i, int64_t) { return static_cast<float>(static_cast<int>(i * 7919 % 1000) - 500) * 0.37f; };
  reduction<float, float>(ReduceKind::Sum, DType::F32, DType::F32, small, [](const auto& line) {
    long double sum = 0;  // exact for these values, and so is F64
    for (float x : line) sum += x;
    return static_cast<float>(sum);
  });
  reduction<int64_t, int64_t>(
      ReduceKind::Sum, DType::I64, DType::I64,
      [](size_t i, int64_t) { return static_cast<int64_t>(i * 0x9E3779B97F4A7C15u); },
      [](const auto& line) { return static_cast<int64_t>(std::accumulate(line.begin(), line.end(), uint64_t{0})); });
  reduction<float, float>(
      ReduceKind::Prod, DType::F32, DType::F32, [](size_t i, int64_t) { return i % 3 ? 2.0f : -0.5f; },
      [](const auto& line) {
        double product = 1;
        for (float x : line) product *= x;
        return static_cast<float>(product);
      });
  // The compensation holds what a plain sum loses: 1e16, then ones, then -1e16.
  auto cancelling = [](size_t i, int64_t n) {
    return static_cast<int64_t>(i) % n == 0 ? 1e16 : static_cast<int64_t>(i) % n == n - 1 ? -1e16 : 1.0;
  };
  for (backend::Isa isa : host_isas()) {
    PlanBuilder p("r", 0, backend::lanes_for(isa), 2);
    p.elem();
    const auto r = p.reduce(ReduceKind::Sum, p.in(DType::F64, "1"), DType::F64);
    p.row().out(r, "0");
    const auto kernel = build(p.plan, isa);
    for (int64_t n : {2, 3, 50, 1001}) {
      std::vector<double> x(n);
      for (int64_t i = 0; i < n; ++i) x[i] = cancelling(i, n);
      double z = 0;
      run(p.plan, *kernel, {{x.data(), &z}, {n}, {}});
      EXPECT_EQ(z, static_cast<double>(n - 2));
      x[1] = INFINITY;
      run(p.plan, *kernel, {{x.data(), &z}, {n}, {}});
      EXPECT_EQ(z, INFINITY);
    }
    double z = 7;
    run(p.plan, *kernel, {{nullptr, &z}, {0}, {}});
    EXPECT_EQ(z, 0.0);
  }
}

TEST(CodegenReduce, AnyAndAll) {
  auto flag = [](size_t i, int64_t n) { return static_cast<uint8_t>(n > 20 && i % 29 == 7 ? 2 : 0); };
  reduction<uint8_t, uint8_t>(ReduceKind::Any, DType::Bool, DType::Bool, flag, [](const auto& line) {
    return static_cast<uint8_t>(std::any_of(line.begin(), line.end(), [](int x) { return x != 0; }));
  });
  auto mostly = [](size_t i, int64_t n) { return static_cast<uint8_t>(n > 20 && i % 53 == 7 ? 0 : 3); };
  reduction<uint8_t, uint8_t>(ReduceKind::All, DType::Bool, DType::Bool, mostly, [](const auto& line) {
    return static_cast<uint8_t>(std::all_of(line.begin(), line.end(), [](int x) { return x != 0; }));
  });
}

// Max, then a kept intermediate and its sum, then both used: the shape of softmax, with a row value in every phase.
TEST(CodegenReduce, ThreePhasesWithKeep) {
  for (backend::Isa isa : host_isas())
    for (int unroll : {1, 2}) {
      PlanBuilder p("kr", 1, backend::lanes_for(isa), unroll);
      p.elem();
      const auto x = p.operand(DType::F32, "*1");
      const auto top = p.reduce(ReduceKind::Max, p.load(x), DType::F32);
      p.row();
      const auto twice = p.op(Op::Mul, top, p.constant(DType::F32, 2));
      p.phase();
      const auto e = p.op(Op::Abs, p.op(Op::Sub, p.load(x), twice));
      const auto slot = p.keep(e);
      const auto flag = p.keep(p.op(Op::Gt, e, p.constant(DType::F32, 3)));
      const auto sum = p.reduce(ReduceKind::Sum, e, DType::F32);
      p.phase();
      const auto value = p.op(Op::Div, p.recall(slot), sum);
      p.out(p.op(Op::Where, p.recall(flag), value, p.constant(DType::F32, -1)), "*1");
      p.row().out(sum, "*0");
      ASSERT_EQ(plan::verify(p.plan), "");
      const auto kernel = build(p.plan, isa);
      for (int64_t n : {1, 15, 16, 17, 33, 100}) {
        const int64_t rows = 6;
        auto input = noise(n * rows);
        Array<float> out(n * rows), sums(rows);
        run(p.plan, *kernel, {{input.data(), out.data(), sums.data()}, {rows, n}, {n, 1, n, 1, 1, 0}}, 2);
        ASSERT_TRUE(out.guard_intact() && sums.guard_intact());
        for (int64_t r = 0; r < rows; ++r) {
          const float* line = input.data() + r * n;
          const float high = *std::max_element(line, line + n) * 2;
          double total = 0;
          for (int64_t i = 0; i < n; ++i) total += std::fabs(line[i] - high);
          ASSERT_EQ(sums[r], static_cast<float>(total));
          for (int64_t i = 0; i < n; ++i) {
            const float kept = std::fabs(line[i] - high);
            ASSERT_EQ(out[r * n + i], kept > 3 ? kept / sums[r] : -1.0f) << "n " << n;
          }
        }
      }
    }
}

// Two reduced dims: the index is row-major over both; one operand moves along one of them only.
TEST(CodegenReduce, SeveralReducedDims) {
  for (backend::Isa isa : host_isas())
    for (int vec : {2, 0, -1}) {
      PlanBuilder p("krr", vec, vec < 0 ? 1 : backend::lanes_for(isa), vec < 0 ? 1 : 2);
      p.elem();
      const auto x = p.in(DType::F32, "***"), w = p.in(DType::F32, "0*0");
      const auto y = p.op(Op::Mul, x, w);
      const auto index = p.reduce(ReduceKind::ArgMax, y, DType::I64), sum = p.reduce(ReduceKind::Sum, y, DType::F32);
      p.row().out(index, "*00"), p.out(sum, "*00");
      const auto kernel = build(p.plan, isa);
      const int64_t a = 9, b = 4, c = 21;
      auto input = noise(a * b * c), weight = noise(b, 9);
      Array<int64_t> at(a);
      Array<float> sums(a);
      run(p.plan, *kernel,
          {{input.data(), weight.data(), at.data(), sums.data()},
           {a, b, c},
           {b * c, c, 1, 0, 1, 0, 1, 0, 0, 1, 0, 0},
           {},
           16});
      for (int64_t i = 0; i < a; ++i) {
        std::vector<float> line(b * c);
        double total = 0;
        for (int64_t j = 0; j < b * c; ++j) total += line[j] = input[i * b * c + j] * weight[j / c];
        EXPECT_EQ(at[i], arg_best(line, false)) << "vec " << vec;
        EXPECT_NEAR(sums[i], total, 1e-6 * (1 + std::fabs(total)));
      }
    }
}

// A number loaded before empty reduced loops is not read; what the row list loads still is.
TEST(CodegenReduce, EmptyRows) {
  for (backend::Isa isa : host_isas()) {
    PlanBuilder p("kr", 1, backend::lanes_for(isa));
    p.elem();
    const auto sum =
        p.reduce(ReduceKind::Sum, p.op(Op::Mul, p.in(DType::F32, "*1"), p.in(DType::F32, "*0")), DType::F32);
    p.row().out(p.op(Op::Add, sum, p.in(DType::F32, "*0")), "*0");
    const auto kernel = build(p.plan, isa);
    std::vector<float> bias{1, 2, 3}, out(3);
    run(p.plan, *kernel, {{nullptr, nullptr, bias.data(), out.data()}, {3, 0}, {0, 1, 1, 0, 1, 0, 1, 0}});
    EXPECT_EQ(out, bias);
  }
}

// x @ w.t() and x @ w, with a bias for each column, over sizes around every number of rows and lanes.
template <class T>
void products(DType type, bool row_major_weight) {
  for (backend::Isa isa : host_isas())
    for (int rows : {1, 2, 4})
      for (int unroll : {1, 2, 4}) {
        const int lanes = backend::lanes_for(isa);
        // Dims: columns and then rows of x side by side; with lanes along the columns, rows first.
        PlanBuilder p("kkr", row_major_weight ? 1 : 2, lanes, unroll);
        p.plan.rows = static_cast<uint8_t>(rows);
        const uint32_t x = p.elem().in(type, row_major_weight ? "*01" : "0*1");
        const uint32_t w = p.in(type, row_major_weight ? "01*" : "*01");
        const uint32_t dot = p.dot(x, w);
        const uint32_t bias = p.row().in(type, row_major_weight ? "010" : "100");
        p.out(p.op(Op::Add, dot, bias), row_major_weight ? "*10" : "1*0");
        ASSERT_EQ(plan::verify(p.plan), "");
        const auto kernel = build(p.plan, isa);
        for (int64_t m : {1, 2, 3, 4, 5, 9})
          for (int64_t n : {1, 3, 17, 70})
            for (int64_t k : {2, 16, 33, 100}) {
              const auto a = noise(m * k), b = noise(n * k, 2), c = noise(n, 3);
              Array<T> av(m * k), bv(n * k), cv(n), out(m * n);
              std::copy(a.begin(), a.end(), av.data());
              std::copy(b.begin(), b.end(), bv.data());
              std::copy(c.begin(), c.end(), cv.data());
              const std::vector<int64_t> sizes = row_major_weight ? std::vector{m, n, k} : std::vector{n, m, k};
              const std::vector<int64_t> strides = row_major_weight
                                                       ? std::vector<int64_t>{k, 0, 1, 0, 1, n, 0, 1, 0, n, 1, 0}
                                                       : std::vector<int64_t>{0, k, 1, k, 0, 1, 1, 0, 0, 1, n, 0};
              run(p.plan, *kernel, {{av.data(), bv.data(), cv.data(), out.data()}, sizes, strides, {}, 64}, 3);
              ASSERT_TRUE(out.guard_intact());
              for (int64_t i = 0; i < m; ++i)
                for (int64_t j = 0; j < n; ++j) {
                  double want = cv[j], size = std::fabs(want);
                  for (int64_t t = 0; t < k; ++t) {
                    const double term =
                        double(av[i * k + t]) * double(row_major_weight ? bv[t * n + j] : bv[j * k + t]);
                    want += term;
                    size += std::fabs(term);
                  }
                  const double unit = size * std::numeric_limits<T>::epsilon();
                  ASSERT_NEAR(out[i * n + j], want, 4 * unit) << "m " << m << " n " << n << " k " << k << " at " << i
                                                              << ", " << j << " rows " << rows << " unroll " << unroll;
                }
            }
      }
}
TEST(CodegenLoops, ProductsOfSeveralRows) {
  for (const bool row_major_weight : {false, true}) {
    products<float>(DType::F32, row_major_weight);
    products<double>(DType::F64, row_major_weight);
  }
}

}  // namespace
}  // namespace fastjit::test
