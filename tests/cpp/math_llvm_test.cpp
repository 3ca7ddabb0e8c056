// Elementary functions: bounds on dense samples, special values, and that a lane's result knows nothing of its
// neighbours.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "../reference/math_jit.h"

namespace {

using namespace fastjit;
using ir::Op;

constexpr size_t kCount = 1 << 16;
constexpr float kInf = INFINITY, kNan = NAN;

std::vector<backend::Isa> levels() {
  std::vector<backend::Isa> found;
  for (backend::Isa isa : {backend::Isa::Avx2, backend::Isa::Avx512})
    if (backend::host_has(isa)) found.push_back(isa);
  return found;
}

template <typename T>
int lanes_of(backend::Isa isa) {
  return backend::lanes_for(isa) * 4 / static_cast<int>(sizeof(T));
}

/// Every binade (an odd step over the bit patterns) first, then moderate values.
template <typename T>
std::vector<T> samples(unsigned seed) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  std::mt19937_64 random(seed);
  std::vector<T> out(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    const Bits bits = static_cast<Bits>(random());
    std::memcpy(&out[i], &bits, sizeof bits);
    if (i % 4)
      out[i] = static_cast<T>(
          std::ldexp(static_cast<double>(static_cast<int64_t>(random())), -63 + static_cast<int>(random() % 24) - 15));
  }
  return out;
}

template <typename T>
void check_bounds() {
  using R = std::conditional_t<sizeof(T) == 4, double, long double>;
  const auto a = samples<T>(1), b = samples<T>(2);
  std::vector<T> out(kCount);
  for (const auto& bound : reference::kBounds)
    for (backend::Isa isa : levels()) {
      reference::MathJit jit;
      const int lanes = lanes_of<T>(isa);
      jit.make<T>(bound.op, isa, lanes)(a.data(), b.data(), out.data(), static_cast<int64_t>(kCount) / lanes);
      double worst = 0;
      size_t at = 0;
      for (size_t i = 0; i < kCount; ++i) {
        const double error = reference::ulp_error<T, R>(bound.op, out[i], reference::exact<R>(bound.op, a[i], b[i]));
        if (error > worst) worst = error, at = i;
      }
      EXPECT_LE(worst, sizeof(T) == 4 ? bound.f32 : bound.f64)
          << ir::text(bound.op) << " " << backend::text(isa) << " at " << a[at] << ", " << b[at] << ": " << out[at];
    }
}

TEST(Math, FloatsWithinBounds) { check_bounds<float>(); }
TEST(Math, DoublesWithinBounds) { check_bounds<double>(); }

TEST(Math, EveryElementaryOpHasABound) {
  for (size_t i = 0; i < ir::kOpCount; ++i) {
    const Op op = static_cast<Op>(i);
    const bool listed = std::any_of(std::begin(reference::kBounds), std::end(reference::kBounds),
                                    [&](const auto& row) { return row.op == op; });
    EXPECT_EQ(codegen::math_has(op), listed) << ir::text(op);
  }
}

struct Special {
  Op op;
  float a, b, want;
};
const Special kSpecials[] = {
    {Op::Exp, -kInf, 0, 0},
    {Op::Exp, kInf, 0, kInf},
    {Op::Exp, kNan, 0, kNan},
    {Op::Exp, 0.f, 0, 1},
    {Op::Exp, -0.f, 0, 1},
    {Op::Exp, 88.72284f, 0, kInf},
    {Op::Exp, -103.98f, 0, 0},
    {Op::Exp, -103.97f, 0, 1e-45f},
    {Op::Log, 0.f, 0, -kInf},
    {Op::Log, -0.f, 0, -kInf},
    {Op::Log, -1.f, 0, kNan},
    {Op::Log, 1.f, 0, 0.f},
    {Op::Log, kInf, 0, kInf},
    {Op::Log1p, -1.f, 0, -kInf},
    {Op::Log1p, -0.f, 0, -0.f},
    {Op::Log1p, 1e-45f, 0, 1e-45f},
    {Op::Log1p, kInf, 0, kInf},
    {Op::Expm1, -0.f, 0, -0.f},
    {Op::Expm1, 1e-45f, 0, 1e-45f},
    {Op::Expm1, -kInf, 0, -1},
    {Op::Expm1, kInf, 0, kInf},
    {Op::Tanh, -0.f, 0, -0.f},
    {Op::Tanh, 1e-45f, 0, 1e-45f},
    {Op::Tanh, kInf, 0, 1},
    {Op::Tanh, -kInf, 0, -1},
    {Op::Tanh, 1e30f, 0, 1},
    {Op::Erf, -0.f, 0, -0.f},
    {Op::Erf, 1e-45f, 0, 1e-45f},
    {Op::Erf, kInf, 0, 1},
    {Op::Erf, -kInf, 0, -1},
    {Op::Erf, 1e30f, 0, 1},
    {Op::Sigmoid, kInf, 0, 1},
    {Op::Sigmoid, -kInf, 0, 0},
    {Op::Sigmoid, kNan, 0, kNan},
    {Op::Sigmoid, 0.f, 0, 0.5f},
    {Op::Sin, -0.f, 0, -0.f},
    {Op::Sin, 1e-45f, 0, 1e-45f},
    {Op::Sin, kInf, 0, kNan},
    {Op::Cos, -kInf, 0, kNan},
    {Op::Cos, 0.f, 0, 1},
    {Op::Tan, -0.f, 0, -0.f},
    {Op::Asin, -0.f, 0, -0.f},
    {Op::Asin, 1.5f, 0, kNan},
    {Op::Atan, -0.f, 0, -0.f},
    {Op::Acos, 1.f, 0, 0.f},
    {Op::Sinh, -0.f, 0, -0.f},
    {Op::Asinh, -0.f, 0, -0.f},
    {Op::Asinh, -kInf, 0, -kInf},
    {Op::Atanh, -0.f, 0, -0.f},
    {Op::Atanh, 1.f, 0, kInf},
    {Op::Acosh, 1.f, 0, 0.f},
    {Op::Acosh, 0.5f, 0, kNan},
    {Op::Erfinv, 1.f, 0, kInf},
    {Op::Erfinv, -1.f, 0, -kInf},
    {Op::Erfinv, -0.f, 0, -0.f},
    {Op::Erfc, -kInf, 0, 2},
    {Op::Erfc, kInf, 0, 0},
    {Op::Hypot, kInf, kNan, kInf},
    {Op::Hypot, kNan, 1, kNan},
    {Op::Pow, kNan, 0.f, 1},
    {Op::Pow, kInf, -0.f, 1},
    {Op::Pow, 1.f, kNan, 1},
    {Op::Pow, -1.f, kInf, 1},
    {Op::Pow, -1.f, -kInf, 1},
    {Op::Pow, -0.f, -3.f, -kInf},
    {Op::Pow, -0.f, -2.f, kInf},
    {Op::Pow, -0.f, 3.f, -0.f},
    {Op::Pow, -8.f, 0.5f, kNan},
    {Op::Pow, -2.f, 3.f, -8},
    {Op::Pow, 0.f, -1.f, kInf},
    {Op::Pow, -kInf, 3.f, -kInf},
    {Op::Pow, -kInf, -3.f, -0.f},
    {Op::Pow, kInf, -1.f, 0.f},
    {Op::Pow, -kInf, 0.5f, kInf},
    {Op::Pow, 2.f, kInf, kInf},
    {Op::Pow, 0.5f, kInf, 0.f},
    {Op::Pow, 2.f, -kInf, 0.f},
    {Op::Pow, 0.5f, -kInf, kInf},
    {Op::Pow, kNan, 1.f, kNan},
    {Op::Atan2, 0.f, -0.f, 3.14159274f},
    {Op::Atan2, -0.f, -0.f, -3.14159274f},
    {Op::Atan2, -0.f, 1.f, -0.f},
    {Op::Atan2, kInf, kInf, 0.785398163f},
    {Op::Atan2, kInf, -kInf, 2.35619449f},
    {Op::Atan2, 1.f, 0.f, 1.57079633f},
    {Op::Atan2, kNan, 1.f, kNan},
};

/// `want` is the float the exact result rounds to; a double is compared after rounding.
template <typename T>
void check_specials() {
  for (const Special& s : kSpecials) {
    if (sizeof(T) == 8 && (std::fabs(s.a) > 80 && std::isfinite(s.a) && s.op == Op::Exp)) continue;  // where floats end
    for (backend::Isa isa : levels())
      for (int lanes : {0, lanes_of<T>(isa)}) {
        reference::MathJit jit;
        std::vector<T> a(std::max(lanes, 1), static_cast<T>(s.a)), b(a.size(), static_cast<T>(s.b)), out(a.size());
        jit.make<T>(s.op, isa, lanes)(a.data(), b.data(), out.data(), 1);
        const float got = static_cast<float>(out.back());
        EXPECT_TRUE(std::isnan(s.want) ? std::isnan(got) : got == s.want && std::signbit(got) == std::signbit(s.want))
            << ir::text(s.op) << "(" << s.a << ", " << s.b << ") = " << got << ", not " << s.want << " lanes " << lanes;
      }
  }
}

TEST(Math, SpecialFloats) { check_specials<float>(); }
TEST(Math, SpecialDoubles) { check_specials<double>(); }

template <typename T>
void check_lanes() {
  for (const auto& bound : reference::kBounds)
    for (backend::Isa isa : levels()) {
      const int lanes = lanes_of<T>(isa);
      reference::MathJit vector_jit, scalar_jit;
      auto vector = vector_jit.make<T>(bound.op, isa, lanes), scalar = scalar_jit.make<T>(bound.op, isa, 0);
      const auto probes = samples<T>(3);
      for (int probe = 0; probe < 64; ++probe)
        for (T neighbour : {T(0), T(1e30), T(NAN)}) {
          const int at = probe % lanes;
          std::vector<T> a(lanes, neighbour), b(lanes, neighbour), out(lanes);
          a[at] = probes[probe], b[at] = probes[probe + 64];
          T alone = 0;
          vector(a.data(), b.data(), out.data(), 1);
          scalar(&a[at], &b[at], &alone, 1);
          const bool same = std::isnan(alone) ? std::isnan(out[at]) : std::memcmp(&alone, &out[at], sizeof(T)) == 0;
          EXPECT_TRUE(same) << ir::text(bound.op) << "(" << a[at] << ") beside " << neighbour << ": " << out[at]
                            << ", alone " << alone;
        }
    }
}

TEST(Math, FloatLanesAreIndependent) { check_lanes<float>(); }
TEST(Math, DoubleLanesAreIndependent) { check_lanes<double>(); }

}  // namespace
