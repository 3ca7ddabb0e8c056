// Memory, disk, compiler: one compile a key, whatever threads, processes and fork do. The compiler here is a fake.
#include "runtime/engine.h"

#include <atomic>
#include <stdexcept>
#include <thread>

#include "cache_helpers.h"
#include "runtime/fork_gate.h"
#include "runtime/kernel_cache.h"

namespace fastjit {
namespace {

using runtime::CacheMode;
using runtime::KernelCache;
using runtime::Source;
using test::TempDir;

struct FakeKernel : backend::Kernel {
  explicit FakeKernel(std::string text) : object(std::move(text)) {}
  std::string object;
};

struct Fake {
  std::atomic<int> compiles{0}, loads{0};
  std::atomic<bool> fail{false}, refuse{false};
  int compile_us = 2000;

  runtime::KernelRequest request(const std::string& name, CacheMode mode = CacheMode::On) {
    static const runtime::Origin origin{"model.fake", "f32[4]", [] { return std::string("%0 = input"); }};
    runtime::KernelRequest out;
    out.key = test::key_of(name);
    out.target = "cpu-avx2";
    out.origin = &origin;
    out.mode = mode;
    out.compile = [this, name] {
      ++compiles;
      std::this_thread::sleep_for(std::chrono::microseconds(compile_us));
      if (fail) throw std::runtime_error("LLVM says no");
      return backend::Compiled{"object of " + name, "source", "", 2.0};
    };
    out.load = [this](std::span<const char> object) {
      ++loads;
      if (refuse) throw std::runtime_error("undefined symbol");
      return std::make_shared<const FakeKernel>(std::string(object.begin(), object.end()));
    };
    return out;
  }
};

KernelCache::StoreFactory at(const TempDir& dir) {
  return [path = dir.path] {
    std::string problem;
    return cache::Store::open(path, {}, problem);
  };
}

std::string object_of(const runtime::KernelResult& result) {
  return static_cast<const FakeKernel&>(*result.kernel).object;
}

TEST(KernelCache, MemoryThenDiskThenCompiler) {
  const TempDir dir;
  Fake fake;
  {
    KernelCache kernels(at(dir));
    const auto first = kernels.get(fake.request("a"));
    EXPECT_EQ(first.source, Source::Compiled);
    EXPECT_EQ(first.key, test::digest_of(test::key_of("a")));
    EXPECT_EQ(kernels.get(fake.request("a")).source, Source::Memory);
    EXPECT_EQ(kernels.get(fake.request("b")).source, Source::Compiled);
  }
  KernelCache kernels(at(dir));
  const auto loaded = kernels.get(fake.request("a"));
  EXPECT_EQ(loaded.source, Source::Disk);
  EXPECT_EQ(object_of(loaded), "object of a");
  EXPECT_EQ(fake.compiles, 2);
}

TEST(KernelCache, ModesKeepOffTheDisk) {
  const TempDir dir;
  Fake fake;
  KernelCache(at(dir)).get(fake.request("a", CacheMode::MemoryOnly));
  KernelCache(at(dir)).get(fake.request("a", CacheMode::ReadOnly));
  EXPECT_EQ(test::count_entries(dir.path), 0u);
  KernelCache(at(dir)).get(fake.request("a"));
  EXPECT_EQ(KernelCache(at(dir)).get(fake.request("a", CacheMode::ReadOnly)).source, Source::Disk);
  EXPECT_EQ(KernelCache(at(dir)).get(fake.request("a", CacheMode::MemoryOnly)).source, Source::Compiled);
  EXPECT_EQ(KernelCache(nullptr).get(fake.request("a")).source, Source::Compiled);
}

TEST(KernelCache, ARefusedObjectIsCompiledAgain) {
  const TempDir dir;
  Fake fake;
  KernelCache(at(dir)).get(fake.request("a"));
  KernelCache kernels(at(dir));
  auto request = fake.request("a");
  int calls = 0;
  request.load = [&](std::span<const char> object) -> std::shared_ptr<const backend::Kernel> {
    if (calls++ < 1) throw std::runtime_error("unknown relocation");
    return std::make_shared<const FakeKernel>(std::string(object.begin(), object.end()));
  };
  const uint64_t before = test::faults(cache::Fault::Refused);
  EXPECT_EQ(kernels.get(request).source, Source::Compiled);
  EXPECT_EQ(test::faults(cache::Fault::Refused), before + 1);
  EXPECT_EQ(KernelCache(at(dir)).get(fake.request("a")).source, Source::Disk);
}

TEST(KernelCache, AFailureIsRaisedAndNotKept) {
  const TempDir dir;
  Fake fake;
  fake.fail = true;
  KernelCache kernels(at(dir));
  EXPECT_THROW(kernels.get(fake.request("a")), std::runtime_error);
  EXPECT_EQ(test::count_entries(dir.path), 0u);
  fake.fail = false;
  EXPECT_EQ(kernels.get(fake.request("a")).source, Source::Compiled);
}

TEST(KernelCache, ThreadsCompileOnceAKey) {
  const TempDir dir;
  Fake fake;
  fake.compile_us = 3000;
  KernelCache kernels(at(dir));
  for (int round = 0; round < 20; ++round) {
    fake.fail = round % 5 == 4;
    const int before = fake.compiles;
    std::atomic<int> right{0}, failed{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 16; ++i) {
      threads.emplace_back([&] {
        const std::string name = "r" + std::to_string(round);
        try {
          right += object_of(kernels.get(fake.request(name))) == "object of " + name;
        } catch (const std::runtime_error&) {
          ++failed;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (fake.fail) {
      EXPECT_EQ(failed, 16);
    } else {
      EXPECT_EQ(right, 16);
      EXPECT_EQ(fake.compiles, before + 1);
    }
  }
}

TEST(KernelCache, ProcessesCompileOnceAKey) {
  const TempDir dir;
  int results[2], start[2];
  ASSERT_EQ(pipe(results), 0);
  ASSERT_EQ(pipe(start), 0);
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) {
    children.push_back(fork());
    if (children.back() == 0) {
      alarm(30);
      Fake fake;
      close(start[1]);
      char byte;
      if (read(start[0], &byte, 1) != 0) _exit(2);
      KernelCache kernels(at(dir));
      for (int key = 0; key < 8; ++key) {
        const std::string name = "k" + std::to_string(key);
        if (object_of(kernels.get(fake.request(name))) != "object of " + name) _exit(3);
      }
      const int compiles = fake.compiles;
      _exit(write(results[1], &compiles, sizeof compiles) == sizeof compiles ? 0 : 4);
    }
  }
  close(start[1]);
  int total = 0;
  for (const pid_t child : children) {
    int status = 0, compiles = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    if (read(results[0], &compiles, sizeof compiles) == sizeof compiles) total += compiles;
  }
  close(results[0]), close(results[1]), close(start[0]);
  EXPECT_EQ(total, 8);
  EXPECT_EQ(test::count_entries(dir.path), 8u);
}

TEST(KernelCache, AStuckLockHolderCostsABoundedWait) {
  const TempDir dir;
  Fake fake;
  const auto store = test::open_store(dir.path);
  const cache::KeyLock held = store->lock(test::digest_of(test::key_of("a")), 0);
  ASSERT_EQ(held.state(), cache::KeyLock::State::Held);
  KernelCache kernels(at(dir), 16, 50);
  EXPECT_EQ(kernels.get(fake.request("a")).source, Source::Compiled);
  EXPECT_EQ(test::count_entries(dir.path), 1u);
}

TEST(KernelCache, ForgetsWhatNobodyHolds) {
  Fake fake;
  KernelCache kernels(nullptr, 4);
  const auto held = kernels.get(fake.request("held"));
  kernels.get(fake.request("dropped"));
  kernels.clear_memory();
  EXPECT_EQ(kernels.live(), 1u);
  EXPECT_EQ(kernels.get(fake.request("held")).source, Source::Memory);
  EXPECT_EQ(kernels.get(fake.request("dropped")).source, Source::Compiled);
  for (int i = 0; i < 10; ++i) kernels.get(fake.request(std::to_string(i)));
  EXPECT_EQ(kernels.live(), 4u);
  EXPECT_EQ(kernels.get(fake.request("9")).source, Source::Memory);
  EXPECT_EQ(kernels.get(fake.request("5")).source, Source::Compiled);
}

TEST(KernelCache, KeepsFewThatNobodyHolds) {
  Fake fake;
  fake.compile_us = 0;
  KernelCache kernels(nullptr, 4096, 5000, 8);
  std::vector<runtime::KernelResult> held;
  for (int i = 0; i < 100; ++i) {
    held.push_back(kernels.get(fake.request("held" + std::to_string(i))));
    kernels.get(fake.request("dropped" + std::to_string(i)));
  }
  EXPECT_GE(kernels.live(), 100u + 8u);
  EXPECT_LE(kernels.live(), 100u + 8u + 9u);
  EXPECT_EQ(kernels.get(fake.request("held0")).source, Source::Memory);
  EXPECT_EQ(kernels.get(fake.request("dropped99")).source, Source::Memory);
  EXPECT_EQ(kernels.get(fake.request("dropped0")).source, Source::Compiled);
}

TEST(KernelCache, AForgottenKernelIsCompiledAgain) {
  const TempDir dir;
  Fake fake;
  KernelCache kernels(at(dir));
  const auto first = kernels.get(fake.request("a"));
  kernels.get(fake.request("b"));
  kernels.forget(first.key, CacheMode::ReadOnly);
  EXPECT_EQ(test::count_entries(dir.path), 2u);
  EXPECT_EQ(kernels.get(fake.request("a")).source, Source::Disk);
  kernels.forget(first.key, CacheMode::On);
  EXPECT_EQ(test::count_entries(dir.path), 1u);
  EXPECT_EQ(object_of(first), "object of a");  // who holds it keeps it
  EXPECT_EQ(kernels.get(fake.request("a")).source, Source::Compiled);
  EXPECT_EQ(kernels.get(fake.request("b")).source, Source::Memory);
  kernels.forget("no such key", CacheMode::On);
}

// Eight threads ask, forget and clear at once: each gets the kernel of its key, and nothing else is promised.
TEST(KernelCache, ThreadsAskForgetAndClear) {
  const TempDir dir;
  Fake fake;
  fake.compile_us = 20;
  KernelCache kernels(at(dir), 6, 5000, 3);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 150; ++i) {
        const std::string name = "k" + std::to_string((i * (t + 1)) % 11);
        const auto result = kernels.get(fake.request(name, i % 3 ? CacheMode::MemoryOnly : CacheMode::On));
        wrong += object_of(result) != "object of " + name;
        if (i % 17 == t) kernels.forget(result.key, CacheMode::On);
        if (i % 50 == t) kernels.clear_memory();
        wrong += kernels.live() > 6;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Fork, AChildOfACompilingProcessCompiles) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer supports no threads in the child of a process that has some";
#endif
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "GCC 12's AddressSanitizer does not hold its allocator over a fork: a child can wait for ever";
#endif
  const TempDir dir;
  Fake fake;
  fake.compile_us = 500;
  KernelCache kernels(at(dir));
  kernels.get(fake.request("warm"));
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; !stop; ++i)
        kernels.get(fake.request(std::to_string(t) + ":" + std::to_string(i % 50),
                                 i % 2 ? CacheMode::On : CacheMode::MemoryOnly));
    });
  }
  for (int round = 0; round < 60; ++round) {
    EXPECT_TRUE(test::in_child(
        [&] {
          const std::string name = "child" + std::to_string(round);
          return kernels.get(fake.request("warm")).source == Source::Memory &&
                 object_of(kernels.get(fake.request(name))) == "object of " + name &&
                 object_of(kernels.get(fake.request("0:1"))) == "object of 0:1";
        },
        10))
        << round;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

TEST(Fork, AThreadThatForksInsideDoesNotWaitForItself) {
  const runtime::InsideGate gate;
  EXPECT_TRUE(test::in_child([] { return true; }, 5));
}

plan::KernelPlan any_plan() {
  plan::KernelPlan plan;
  plan.dims = {plan::DimKind::Kept};
  plan.operands = {{ir::DType::F32, false, {plan::StrideClass::Unit}},
                   {ir::DType::F32, true, {plan::StrideClass::Unit}}};
  plan.code = {{plan::Code::Load, ir::DType::F32}, {plan::Code::Store, ir::DType::F32}};
  plan.code[1].imm = 1;
  plan.phases = {{{}, {0, 1}}};
  plan.vec_dim = 0;
  plan.lanes = 8;
  return plan;
}

TEST(KernelKey, EveryFieldOfPlanAndTargetIsInIt) {
  const plan::KernelPlan plan = any_plan();
  const backend::Target avx2{};
  const std::string key = runtime::kernel_key(plan, avx2);
  EXPECT_EQ(key, runtime::kernel_key(any_plan(), avx2));
  const auto fields = cache::decode_fields(key);
  ASSERT_TRUE(fields);
  for (const auto& [name, value] : *fields) {
    EXPECT_TRUE(!value.empty() || name == "llvm") << name;
  }
  backend::Target avx512{};
  avx512.isa = backend::Isa::Avx512;
  EXPECT_NE(runtime::kernel_key(plan, avx512), key);
  const auto changed = [&](auto change) {
    plan::KernelPlan other = any_plan();
    change(other);
    return runtime::kernel_key(other, avx2) != key;
  };
  EXPECT_TRUE(changed([](auto& it) { it.lanes = 4; }));
  EXPECT_TRUE(changed([](auto& it) { it.unroll = 2; }));
  EXPECT_TRUE(changed([](auto& it) { it.vec_dim = -1; }));
  EXPECT_TRUE(changed([](auto& it) { it.numerics = plan::Numerics::Fast; }));
  EXPECT_TRUE(changed([](auto& it) { it.numerics = plan::Numerics::Accurate; }));
  EXPECT_TRUE(changed([](auto& it) { it.operands[0].dtype = ir::DType::F64; }));
  EXPECT_TRUE(changed([](auto& it) { it.operands[0].output = true; }));
  EXPECT_TRUE(changed([](auto& it) { it.operands[0].strides = {plan::StrideClass::Any}; }));
  EXPECT_TRUE(changed([](auto& it) { it.dims[0] = plan::DimKind::Reduced; }));
  EXPECT_TRUE(changed([](auto& it) { it.scalars = {ir::DType::F64}; }));
  EXPECT_TRUE(changed([](auto& it) { it.scratch = {ir::DType::F32}; }));
  EXPECT_TRUE(changed([](auto& it) { it.code[1].imm = 0; }));
  EXPECT_TRUE(changed([](auto& it) { it.code[0].code = plan::Code::Const; }));
  EXPECT_TRUE(changed([](auto& it) { it.phases[0].elem = {0}; }));
}

}  // namespace
}  // namespace fastjit
