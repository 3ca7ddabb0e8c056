#pragma once
// Compiles and runs hand-made plans in tests.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "backend/compiler.h"
#include "plan_builder.h"

namespace fastjit::test {

inline std::vector<backend::Isa> host_isas() {
  std::vector<backend::Isa> out;
  for (backend::Isa isa : {backend::Isa::Avx2, backend::Isa::Avx512})
    if (backend::host_has(isa)) out.push_back(isa);
  return out;
}

inline backend::Target cpu(backend::Isa isa) { return {backend::Target::Kind::Cpu, isa, 0}; }

inline std::shared_ptr<const backend::Kernel> build(const plan::KernelPlan& plan, backend::Isa isa) {
  return backend::load_cpu(backend::compile_cpu(plan, cpu(isa)).object);
}

struct Launch {
  std::vector<void*> ptrs;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  // operand-major; may be empty when no stride is Any
  std::vector<uint64_t> scalars = {};
  int64_t block = 1 << 20;
};

/// Runs all units, in `tasks` calls. Scratch is sized for the reduced space.
inline void run(const plan::KernelPlan& plan, const backend::Kernel& kernel, const Launch& launch, int tasks = 1) {
  const int64_t units = plan::unit_count(plan, launch.sizes.data(), launch.block);
  int64_t reduced = 1;
  for (int d = plan.kept(); d < plan.rank(); ++d) reduced *= launch.sizes[d];
  const int64_t scratch_stride = (reduced * 8 + 63) / 64 * 64;
  std::vector<char> scratch(plan.scratch.size() * scratch_stride + 64);
  const backend::KernelArgs args{launch.ptrs.data(), launch.sizes.data(), launch.strides.data(), launch.scalars.data(),
                                 scratch.data(),     scratch_stride,      launch.block};
  for (int t = 0; t < tasks; ++t) kernel.entry(&args, units * t / tasks, units * (t + 1) / tasks);
}

/// Elements of any type as bytes, with a guard of `kGuard` bytes behind them that must survive.
template <class T>
class Array {
 public:
  explicit Array(size_t n) : values(n + kGuard, T{}) {
    std::memset(static_cast<void*>(values.data() + n), 0x5A, kGuard * sizeof(T));
  }
  Array(std::initializer_list<T> init) : Array(init.size()) { std::copy(init.begin(), init.end(), values.begin()); }
  T* data() { return values.data(); }
  T& operator[](size_t i) { return values[i]; }
  size_t size() const { return values.size() - kGuard; }
  bool guard_intact() const {
    T mark;
    std::memset(static_cast<void*>(&mark), 0x5A, sizeof mark);
    for (size_t i = size(); i < values.size(); ++i)
      if (std::memcmp(&values[i], &mark, sizeof mark) != 0) return false;
    return true;
  }
  static constexpr size_t kGuard = 64;

 private:
  std::vector<T> values;
};

template <class T>
inline bool same_bits(T a, T b) {
  if constexpr (std::is_floating_point_v<T>)
    if (a != a && b != b) return true;  // the payload of a NaN is not promised
  return std::memcmp(&a, &b, sizeof a) == 0;
}

}  // namespace fastjit::test
