// Largest error of the elementary functions, in ulp, rounding included, as JSON.
//   exhaustive_math                 all 2^32 floats of every unary function; 2^28 pairs of binary ones; 2^24 doubles
//   exhaustive_math --step N [fn]   every Nth float (N odd meets every binade), doubles 2^24 / N; only function fn
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "reference/math_jit.h"

namespace {

using namespace fastjit;

constexpr size_t kBlock = 4096;

struct Worst {
  double ulp = 0, a = 0, b = 0;
  uint64_t over_half = 0, count = 0;
  void merge(const Worst& other) {
    if (other.ulp > ulp) ulp = other.ulp, a = other.a, b = other.b;
    over_half += other.over_half, count += other.count;
  }
};

template <typename T>
T random_value(std::mt19937_64& random) {  // half of them of moderate size
  const uint64_t bits = random();
  if (bits & 1)
    return static_cast<T>(
        std::ldexp(static_cast<double>(static_cast<int64_t>(random())), -63 + static_cast<int>(bits >> 59) - 20));
  const uint64_t pattern = random();
  T value;
  std::memcpy(&value, &pattern, sizeof value);
  return value;
}

template <typename T>
Worst measure(reference::ArrayFn<T> function, ir::Op op, int lanes, uint64_t step, uint64_t part, uint64_t parts) {
  using R = std::conditional_t<sizeof(T) == 4, double, long double>;
  const bool binary = ir::info(op).arity == 2, every = sizeof(T) == 4 && !binary;
  const uint64_t total = (every ? uint64_t{1} << 32 : uint64_t{1} << (sizeof(T) == 4 ? 28 : 24)) / step;
  std::mt19937_64 random(part + 1);
  std::vector<T> a(kBlock), b(kBlock), out(kBlock);
  Worst worst;
  for (uint64_t begin = total * part / parts; begin < total * (part + 1) / parts; begin += kBlock) {
    for (size_t i = 0; i < kBlock; ++i) {
      const uint32_t pattern = static_cast<uint32_t>((begin + i) * step);
      a[i] = b[i] = random_value<T>(random);
      if (every)
        std::memcpy(&a[i], &pattern, sizeof pattern);
      else if (binary)
        b[i] = random_value<T>(random);
    }
    function(a.data(), b.data(), out.data(), static_cast<int64_t>(kBlock) / lanes);
    for (size_t i = 0; i < kBlock; ++i) {
      const R want = reference::exact<R>(op, a[i], b[i]);
      const double error = reference::ulp_error(op, out[i], want);
      ++worst.count;
      worst.over_half += error > 0.5;
      if (error > worst.ulp)
        worst.ulp = error, worst.a = static_cast<double>(a[i]), worst.b = static_cast<double>(b[i]);
    }
  }
  return worst;
}

template <typename T>
void row(const reference::Bound& bound, backend::Isa isa, uint64_t step, bool& first, bool& good) {
  const int lanes = backend::lanes_for(isa) / (sizeof(T) == 8 ? 2 : 1);
  reference::MathJit jit;
  auto function = jit.make<T>(bound.op, isa, lanes);
  Worst parts[2];
  std::thread other([&] { parts[1] = measure<T>(function, bound.op, lanes, step, 1, 2); });
  parts[0] = measure<T>(function, bound.op, lanes, step, 0, 2);
  other.join();
  parts[0].merge(parts[1]);
  const double promised = sizeof(T) == 4 ? bound.f32 : bound.f64;
  good = good && parts[0].ulp <= promised;
  std::printf(
      "%s{\"function\": \"%s\", \"type\": \"%s\", \"isa\": \"%s\", \"bound\": %.1f, \"max_ulp\": %.4f, \"at\": \"%a",
      first ? "" : ",\n", std::string(ir::text(bound.op)).c_str(), sizeof(T) == 4 ? "f32" : "f64",
      std::string(backend::text(isa)).c_str(), promised, parts[0].ulp, parts[0].a);
  if (ir::info(bound.op).arity == 2) std::printf(", %a", parts[0].b);
  std::printf("\", \"over_half\": %llu, \"count\": %llu}", static_cast<unsigned long long>(parts[0].over_half),
              static_cast<unsigned long long>(parts[0].count));
  std::fflush(stdout);
  first = false;
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t step = 1;
  std::string only;
  for (int i = 1; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--step") && i + 1 < argc)
      step = std::strtoull(argv[++i], nullptr, 10);
    else
      only = argv[i];
  }
  bool first = true, good = true;
  std::puts("[");
  for (const auto& bound : reference::kBounds) {
    if (!only.empty() && ir::text(bound.op) != only) continue;
    for (backend::Isa isa : {backend::Isa::Avx2, backend::Isa::Avx512}) {
      if (!backend::host_has(isa)) continue;
      row<float>(bound, isa, step, first, good);
      row<double>(bound, isa, step, first, good);
    }
  }
  std::puts("\n]");
  return good ? 0 : 1;
}
