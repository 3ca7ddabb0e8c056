// Pointwise ops on the CPU against scalar C++: every arithmetic op, dtype and conversion, body and tail lanes alike.
#include <llvm/Support/CommandLine.h>

#include <cmath>
#include <functional>
#include <limits>

#include "kernel_harness.h"

namespace fastjit::test {
namespace {

using ir::DType;
using ir::Op;

template <class T>
constexpr DType kType = DType::F32;
template <>
constexpr DType kType<double> = DType::F64;
template <>
constexpr DType kType<int8_t> = DType::I8;
template <>
constexpr DType kType<int16_t> = DType::I16;
template <>
constexpr DType kType<int32_t> = DType::I32;
template <>
constexpr DType kType<int64_t> = DType::I64;
template <>
constexpr DType kType<uint8_t> = DType::U8;
template <>
constexpr DType kType<bool> = DType::Bool;

template <class T>
std::vector<T> samples() {
  std::vector<T> out;
  if constexpr (std::is_same_v<T, bool>) {
    out = {false, true};
  } else if constexpr (std::is_floating_point_v<T>) {
    using L = std::numeric_limits<T>;
    out = {0,
           T(-0.0),
           1,
           -1,
           T(0.5),
           T(-0.5),
           T(1.5),
           T(2.5),
           T(-2.5),
           3,
           -7,
           T(1e10),
           T(-3e9),
           T(127.9),
           T(-129),
           200,
           300,
           T(70000),
           L::max(),
           L::lowest(),
           L::min(),
           L::denorm_min(),
           -L::denorm_min(),
           L::infinity(),
           -L::infinity(),
           L::quiet_NaN(),
           T(2147483648.0),
           T(-2147483648.0),
           T(9.3e18),
           T(1e30),
           T(3.3e-5),
           T(0.1)};
  } else {
    using L = std::numeric_limits<T>;
    out = {
        0, 1, T(-1), 2, T(-2), 3, 7, T(-7), 8, 31, 63, 64, 100, L::max(), L::min(), T(L::max() - 1), T(L::min() + 1)};
  }
  return out;
}

template <class T>
using Stored = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;

// All pairs of samples, then again from another start, so that each pair meets several lanes and the tail.
template <class In, class Out>
void check(Op op, int arity, const std::function<Out(In, In)>& reference,
           const std::function<bool(In, In)>& skip = {}) {
  const auto values = samples<In>();
  for (backend::Isa isa : host_isas())
    for (int unroll : {1, 2}) {
      PlanBuilder p("k", 0, backend::lanes_for(isa), unroll);
      const auto a = p.in(kType<In>, "1"), b = arity > 1 ? p.in(kType<In>, "1") : 0;
      p.out(p.op(op, a, b), "1");
      const auto kernel = build(p.plan, isa);
      const size_t n = values.size() * values.size() + 5;
      Array<Stored<In>> x(n), y(n);
      Array<Stored<Out>> z(n);
      for (size_t i = 0; i < n; ++i) {
        x[i] = values[i % values.size()];
        y[i] = values[i / values.size() % values.size()];
      }
      Launch launch{{x.data(), y.data(), z.data()}, {static_cast<int64_t>(n)}, {}};
      if (arity == 1) launch.ptrs = {x.data(), z.data()};
      run(p.plan, *kernel, launch);
      ASSERT_TRUE(z.guard_intact());
      for (size_t i = 0; i < n; ++i) {
        if (skip && skip(x[i], y[i])) continue;
        const Stored<Out> want = reference(x[i], y[i]);
        ASSERT_TRUE(same_bits<Stored<Out>>(z[i], want))
            << ir::text(op) << " " << ir::text(kType<In>) << " " << backend::text(isa) << " of " << +x[i] << ", "
            << +y[i] << " gave " << +z[i] << " not " << +want;
      }
    }
}

template <class T>
T floor_div(T a, T b) {  // c10::div_floor_floating
  if (b == 0) return a / b;
  const T mod = std::fmod(a, b);
  T div = (a - mod) / b;
  if (mod != 0 && (b < 0) != (mod < 0)) div -= 1;
  if (div == 0) return std::copysign(T(0), a / b);
  T floor = std::floor(div);
  if (div - floor > T(0.5)) floor += 1;
  return floor;
}
template <class T>
T remainder_of(T a, T b) {
  const T mod = std::fmod(a, b);
  return mod != 0 && (b < 0) != (mod < 0) ? mod + b : mod;
}

template <class T>
void float_ops() {
  check<T, T>(Op::Add, 2, [](T a, T b) { return a + b; });
  check<T, T>(Op::Sub, 2, [](T a, T b) { return a - b; });
  check<T, T>(Op::Mul, 2, [](T a, T b) { return a * b; });
  check<T, T>(Op::Div, 2, [](T a, T b) { return a / b; });
  check<T, T>(Op::Fmod, 2, [](T a, T b) { return std::fmod(a, b); });
  check<T, T>(Op::Remainder, 2, remainder_of<T>);
  check<T, T>(Op::FloorDiv, 2, floor_div<T>);
  check<T, T>(Op::Min, 2, [](T a, T b) { return a != a ? a : a < b ? a : b; });
  check<T, T>(Op::Max, 2, [](T a, T b) { return a != a ? a : a > b ? a : b; });
  check<T, T>(Op::FMin, 2, [](T a, T b) { return a != a ? b : b < a ? b : a; });
  check<T, T>(Op::FMax, 2, [](T a, T b) { return a != a ? b : b > a ? b : a; });
  check<T, T>(Op::Copysign, 2, [](T a, T b) { return std::copysign(a, b); });
  check<T, T>(Op::Neg, 1, [](T a, T) { return -a; });
  check<T, T>(Op::Abs, 1, [](T a, T) { return std::fabs(a); });
  check<T, T>(Op::Sqrt, 1, [](T a, T) { return std::sqrt(a); });
  check<T, T>(Op::Rsqrt, 1, [](T a, T) { return 1 / std::sqrt(a); });
  check<T, T>(Op::Floor, 1, [](T a, T) { return std::floor(a); });
  check<T, T>(Op::Ceil, 1, [](T a, T) { return std::ceil(a); });
  check<T, T>(Op::Trunc, 1, [](T a, T) { return std::trunc(a); });
  check<T, T>(Op::Round, 1, [](T a, T) { return std::nearbyint(a); });
}

template <class T>
void comparisons() {
  check<T, bool>(Op::Eq, 2, [](T a, T b) { return a == b; });
  check<T, bool>(Op::Ne, 2, [](T a, T b) { return a != b; });
  check<T, bool>(Op::Lt, 2, [](T a, T b) { return a < b; });
  check<T, bool>(Op::Le, 2, [](T a, T b) { return a <= b; });
  check<T, bool>(Op::Gt, 2, [](T a, T b) { return a > b; });
  check<T, bool>(Op::Ge, 2, [](T a, T b) { return a >= b; });
  if constexpr (std::is_floating_point_v<T>)
    check<T, bool>(Op::SignBit, 1, [](T a, T) { return std::signbit(a); });
  else
    check<T, bool>(Op::SignBit, 1, [](T a, T) { return std::is_signed_v<T> && static_cast<int64_t>(a) < 0; });
}

template <class T>
void integer_ops() {
  using U = std::make_unsigned_t<std::common_type_t<T, int>>;
  constexpr int bits = 8 * sizeof(T);
  check<T, T>(Op::Add, 2, [](T a, T b) { return T(U(a) + U(b)); });
  check<T, T>(Op::Sub, 2, [](T a, T b) { return T(U(a) - U(b)); });
  check<T, T>(Op::Mul, 2, [](T a, T b) { return T(U(a) * U(b)); });
  check<T, T>(Op::Min, 2, [](T a, T b) { return a < b ? a : b; });
  check<T, T>(Op::Max, 2, [](T a, T b) { return a > b ? a : b; });
  check<T, T>(Op::And, 2, [](T a, T b) { return T(a & b); });
  check<T, T>(Op::Or, 2, [](T a, T b) { return T(a | b); });
  check<T, T>(Op::Xor, 2, [](T a, T b) { return T(a ^ b); });
  check<T, T>(Op::Not, 1, [](T a, T) { return T(~a); });
  check<T, T>(Op::Neg, 1, [](T a, T) { return T(U(0) - U(a)); });
  check<T, T>(Op::Abs, 1, [](T a, T) { return a < 0 ? T(U(0) - U(a)) : a; });
  check<T, T>(Op::Shl, 2, [](T a, T b) { return b < 0 || b >= bits ? T(0) : T(U(a) << b); });
  check<T, T>(Op::Shr, 2, [](T a, T b) { return b < 0 || b >= bits ? T(a < 0 ? -1 : 0) : T(a >> b); });
}

template <class T>
void divisions(T divisor) {
  const auto values = samples<T>();
  for (backend::Isa isa : host_isas()) {
    PlanBuilder p("k", 0, backend::lanes_for(isa));
    const auto a = p.in(kType<T>, "1"), b = p.constant(kType<T>, static_cast<double>(divisor));
    for (Op op : {Op::Div, Op::FloorDiv, Op::Remainder, Op::Fmod}) p.out(p.op(op, a, b), "1");
    const auto kernel = build(p.plan, isa);
    Array<T> x(values.size());
    std::copy(values.begin(), values.end(), x.data());
    std::vector<Array<T>> z(4, Array<T>(values.size()));
    run(p.plan, *kernel,
        {{x.data(), z[0].data(), z[1].data(), z[2].data(), z[3].data()}, {static_cast<int64_t>(values.size())}, {}});
    for (size_t i = 0; i < values.size(); ++i) {
      using Wide = __int128;
      const Wide n = values[i], d = divisor, q = n / d, m = n % d;
      const bool adjust = m != 0 && (m < 0) != (d < 0);
      EXPECT_EQ(z[0][i], T(q)) << +values[i] << " / " << +divisor;
      EXPECT_EQ(z[1][i], T(adjust ? q - 1 : q)) << +values[i] << " // " << +divisor;
      EXPECT_EQ(z[2][i], T(adjust ? m + d : m)) << +values[i] << " % " << +divisor;
      EXPECT_EQ(z[3][i], T(m)) << +values[i] << " fmod " << +divisor;
    }
  }
}

template <class From, class To>
To converted(From x) {
  if constexpr (std::is_same_v<To, bool>) {
    return x != 0;
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    constexpr bool wide = sizeof(To) == 8 || std::is_same_v<To, uint8_t>;
    const From limit = wide ? From(0x1p63) : From(0x1p31), whole = std::trunc(x);
    const int64_t n = whole >= -limit && whole < limit ? static_cast<int64_t>(whole) : wide ? INT64_MIN : INT32_MIN;
    return static_cast<To>(n);
  } else {
    return static_cast<To>(x);
  }
}

template <class From, class... To>
void conversions_to() {
  auto one = [&]<class T>(T*) {
    const auto values = samples<From>();
    for (backend::Isa isa : host_isas()) {
      PlanBuilder p("k", 0, backend::lanes_for(isa));
      p.out(p.convert(p.in(kType<From>, "1"), kType<T>), "1");
      const auto kernel = build(p.plan, isa);
      const size_t n = values.size() + 21;
      Array<Stored<From>> x(n);
      Array<Stored<T>> z(n);
      for (size_t i = 0; i < n; ++i) x[i] = values[i % values.size()];
      run(p.plan, *kernel, {{x.data(), z.data()}, {static_cast<int64_t>(n)}, {}});
      ASSERT_TRUE(z.guard_intact());
      for (size_t i = 0; i < n; ++i)
        ASSERT_TRUE(same_bits<Stored<T>>(z[i], converted<From, T>(x[i])))
            << ir::text(kType<From>) << " " << +x[i] << " to " << ir::text(kType<T>) << " gave " << +z[i] << " not "
            << +converted<From, T>(x[i]);
    }
  };
  (one(static_cast<To*>(nullptr)), ...);
}
template <class From>
void conversions() {
  conversions_to<From, float, double, int8_t, int16_t, int32_t, int64_t, uint8_t, bool>();
}

TEST(Codegen, FloatOps) { float_ops<float>(), float_ops<double>(); }
TEST(Codegen, IntegerOps) {
  integer_ops<int8_t>(), integer_ops<int16_t>(), integer_ops<int32_t>(), integer_ops<int64_t>(), integer_ops<uint8_t>();
}
TEST(Codegen, Comparisons) {
  comparisons<float>(), comparisons<double>(), comparisons<int8_t>(), comparisons<int16_t>(), comparisons<int32_t>(),
      comparisons<int64_t>(), comparisons<uint8_t>(), comparisons<bool>();
}
TEST(Codegen, Conversions) {
  conversions<float>(), conversions<double>(), conversions<int8_t>(), conversions<int16_t>(), conversions<int32_t>(),
      conversions<int64_t>(), conversions<uint8_t>(), conversions<bool>();
}

TEST(Codegen, BoolOps) {
  check<bool, bool>(Op::And, 2, [](bool a, bool b) { return a && b; });
  check<bool, bool>(Op::Or, 2, [](bool a, bool b) { return a || b; });
  check<bool, bool>(Op::Xor, 2, [](bool a, bool b) { return a != b; });
  check<bool, bool>(Op::Not, 1, [](bool a, bool) { return !a; });
  check<bool, bool>(Op::Add, 2, [](bool a, bool b) { return a || b; });
  check<bool, bool>(Op::Mul, 2, [](bool a, bool b) { return a && b; });
  check<bool, bool>(Op::Max, 2, [](bool a, bool b) { return a || b; });
  check<bool, bool>(Op::Min, 2, [](bool a, bool b) { return a && b; });
}

TEST(Codegen, IntegerDivisionByConstants) {
  for (int divisor : {1, -1, 2, -2, 3, 7, -7, 100, -128}) {
    divisions<int8_t>(static_cast<int8_t>(divisor));
    divisions<int16_t>(static_cast<int16_t>(divisor));
    divisions<int32_t>(divisor);
    divisions<int64_t>(divisor);
    if (divisor > 0) divisions<uint8_t>(static_cast<uint8_t>(divisor));
  }
}

TEST(Codegen, BoolLoadsAreNormalised) {
  for (backend::Isa isa : host_isas()) {
    PlanBuilder p("k", 0, backend::lanes_for(isa));
    p.out(p.in(DType::Bool, "1"), "1");
    const auto kernel = build(p.plan, isa);
    Array<uint8_t> x(37), z(37);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint8_t>(i * 8);
    run(p.plan, *kernel, {{x.data(), z.data()}, {37}, {}});
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(z[i], x[i] != 0);
  }
}

uint16_t bf16_of(float x) {
  if (x != x) return 0x7fc0;
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
bool is_nan_half(uint16_t bits, DType type) { return (bits & 0x7fff) > (type == DType::F16 ? 0x7c00 : 0x7f80); }

// Every half to float and back keeps its bits (NaN stays NaN); floats round to the nearest, ties to even.
TEST(Codegen, Halves) {
  for (backend::Isa isa : host_isas())
    for (DType type : {DType::F16, DType::BF16}) {
      PlanBuilder p("k", 0, backend::lanes_for(isa));
      const auto h = p.in(type, "1"), f = p.in(DType::F32, "1");
      const auto wide = p.convert(h, DType::F32);
      p.out(wide, "1"), p.out(p.convert(wide, type), "1"), p.out(p.convert(f, type), "1"),
          p.out(p.convert(h, DType::Bool), "1");
      const auto kernel = build(p.plan, isa);
      constexpr size_t n = 65536;
      Array<uint16_t> in(n), back(n), rounded(n);
      Array<float> source(n), out(n);
      Array<uint8_t> truth(n);
      for (size_t i = 0; i < n; ++i) {
        in[i] = static_cast<uint16_t>(i);
        source[i] = std::bit_cast<float>(static_cast<uint32_t>(i << 16 | (i * 40503u & 0xffff)));
        if (i % 3 == 0) source[i] = std::bit_cast<float>(static_cast<uint32_t>(i << 16 | 0x8000));  // ties
      }
      run(p.plan, *kernel,
          {{in.data(), source.data(), out.data(), back.data(), rounded.data(), truth.data()}, {n}, {}});
      for (size_t i = 0; i < n; ++i) {
        const auto bits = static_cast<uint16_t>(i);
        EXPECT_EQ(truth[i], (bits & 0x7fff) != 0);
        if (is_nan_half(bits, type)) {
          EXPECT_TRUE(out[i] != out[i] && is_nan_half(back[i], type));
        } else {
          EXPECT_EQ(back[i], bits);
          if (type == DType::BF16)
            EXPECT_TRUE(same_bits(out[i], std::bit_cast<float>(uint32_t{bits} << 16)));
          else
            EXPECT_TRUE(same_bits(out[i], static_cast<float>(std::bit_cast<_Float16>(bits))));
        }
        if (source[i] != source[i])
          EXPECT_TRUE(is_nan_half(rounded[i], type));
        else
          EXPECT_EQ(rounded[i], type == DType::BF16 ? bf16_of(source[i])
                                                    : std::bit_cast<uint16_t>(static_cast<_Float16>(source[i])))
              << source[i];
      }
    }
}

TEST(Codegen, WhereFmaScalarsIndexAndConstants) {
  for (backend::Isa isa : host_isas()) {
    PlanBuilder p("k", 0, backend::lanes_for(isa), 2);
    const auto x = p.in(DType::F32, "1"), s = p.scalar(DType::F64), k = p.scalar(DType::I64);
    const auto f = p.convert(s, DType::F32);
    const auto c = p.op(Op::Gt, x, p.constant(DType::F32, 0.1));
    p.out(p.op(Op::Where, c, p.op(Op::Fma, x, f, x), f), "1");
    p.out(p.op(Op::Add, p.index(0), k), "1");
    const auto kernel = build(p.plan, isa);
    Array<float> in(70), out(70);
    Array<int64_t> number(70);
    for (size_t i = 0; i < 70; ++i) in[i] = 0.1f * static_cast<float>(static_cast<int>(i) - 30);
    run(p.plan, *kernel,
        {{in.data(), out.data(), number.data()}, {70}, {}, {std::bit_cast<uint64_t>(1.7), static_cast<uint64_t>(-5)}});
    for (size_t i = 0; i < 70; ++i) {
      EXPECT_EQ(out[i], in[i] > 0.1f ? std::fma(in[i], 1.7f, in[i]) : 1.7f);
      EXPECT_EQ(number[i], static_cast<int64_t>(i) - 5);
    }
  }
}

// a * b + c is rounded twice unless numerics is Fast.
TEST(Codegen, NoContraction) {
  for (backend::Isa isa : host_isas()) {
    PlanBuilder p("k", 0, backend::lanes_for(isa));
    const auto a = p.in(DType::F32, "1"), b = p.in(DType::F32, "1"), c = p.in(DType::F32, "1");
    p.out(p.op(Op::Add, p.op(Op::Mul, a, b), c), "1");
    EXPECT_EQ(backend::compile_cpu(p.plan, cpu(isa), true).assembly.find("vfm"), std::string::npos);
    p.plan.numerics = plan::Numerics::Fast;
    EXPECT_NE(backend::compile_cpu(p.plan, cpu(isa), true).assembly.find("vfm"), std::string::npos);
  }
}

TEST(Codegen, ObjectsAreDeterministicAndZmmIsUsed) {
  for (backend::Isa isa : host_isas()) {
    PlanBuilder p("kk", 1, backend::lanes_for(isa), 2);
    const auto x = p.in(DType::F32, "*1"), y = p.in(DType::F64, "0*");
    p.out(p.op(Op::Fmod, x, p.convert(y, DType::F32)), "*1");
    const auto first = backend::compile_cpu(p.plan, cpu(isa), true), second = backend::compile_cpu(p.plan, cpu(isa));
    EXPECT_EQ(first.object, second.object);
    EXPECT_EQ(first.source, "") << "text that nobody asked for";
    EXPECT_EQ(second.assembly, "");
    EXPECT_NE(backend::llvm_ir(p.plan, cpu(isa)).find("@fj_fmod_f32("), std::string::npos);
    EXPECT_EQ(first.assembly.find("zmm") != std::string::npos, isa == backend::Isa::Avx512);
  }
}

// By option: a later LLVM that calls it otherwise would make compiles half as slow again, and nothing else would tell.
TEST(Codegen, LoopStrengthReductionIsLeftOut) {
  PlanBuilder p("k", 0, 8);
  p.out(p.in(DType::F32, "1"), "1");
  backend::compile_cpu(p.plan, cpu(backend::Isa::Avx2));
  const auto& options = llvm::cl::getRegisteredOptions();
  const auto found = options.find("disable-lsr");
  ASSERT_TRUE(found != options.end());
  EXPECT_TRUE(static_cast<llvm::cl::opt<bool>*>(found->second)->getValue());
}

}  // namespace
}  // namespace fastjit::test
