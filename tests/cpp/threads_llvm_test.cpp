// Kernels asked for, compiled, loaded, run and dropped by many threads at once, through the process's own engine. The
// tsan preset runs this under ThreadSanitizer.
#include <atomic>
#include <bit>
#include <thread>

#include "kernel_harness.h"
#include "runtime/engine.h"

namespace fastjit {
namespace {

using test::Array;

// out = x * factor
plan::KernelPlan times(double factor, backend::Isa isa) {
  plan::KernelPlan plan;
  plan.dims = {plan::DimKind::Kept};
  plan.operands = {{ir::DType::F32, false, {plan::StrideClass::Unit}},
                   {ir::DType::F32, true, {plan::StrideClass::Unit}}};
  plan.code = {{plan::Code::Load, ir::DType::F32},
               {plan::Code::Const, ir::DType::F32},
               {plan::Code::Compute, ir::DType::F32, ir::Op::Mul},
               {plan::Code::Store, ir::DType::F32}};
  plan.code[1].imm = std::bit_cast<uint64_t>(factor);
  plan.code[2].args[0] = 0;
  plan.code[2].args[1] = 1;
  plan.code[3].args[0] = 2;
  plan.code[3].imm = 1;
  plan.phases = {{{}, {0, 1, 2, 3}}};
  plan.vec_dim = 0;
  plan.lanes = static_cast<uint8_t>(backend::lanes_for(isa));
  return plan;
}

bool multiplies(const backend::Kernel& kernel, const plan::KernelPlan& plan, float factor) {
  Array<float> x(37), out(37);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  test::run(plan, kernel, {{x.data(), out.data()}, {37}, {}});
  for (size_t i = 0; i < x.size(); ++i)
    if (out[i] != x[i] * factor) return false;
  return out.guard_intact();
}

TEST(Threads, CompileRunAndDropKernels) {
  const backend::Isa isa = test::host_isas().back();
  constexpr int kThreads = 8, kRounds = 24, kKernels = 6;
  std::atomic<int> compiled{0}, wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round) {
        const int which = (t + round) % kKernels;
        const double factor = 1.5 + which;
        const plan::KernelPlan plan = times(factor, isa);
        const runtime::Origin origin{"threads", "f32[37]", {}};
        const auto result = runtime::get_kernel(plan, test::cpu(isa), origin, runtime::CacheMode::MemoryOnly);
        compiled += result.source == runtime::Source::Compiled;
        wrong += !multiplies(*result.kernel, plan, static_cast<float>(factor));
        if (round % 8 == t) runtime::clear_memory();
        if (round % 12 == t) runtime::forget_kernel(result.key, runtime::CacheMode::MemoryOnly);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GE(compiled, kKernels);
  EXPECT_LT(compiled, kThreads * kRounds);
}

}  // namespace
}  // namespace fastjit
