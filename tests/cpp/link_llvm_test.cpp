// Kernels are linked by ORC: what their memory looks like, what thousands cost, threads, forks and no memory.
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <set>
#include <thread>

#include "cache_helpers.h"
#include "chain_object.h"
#include "runtime/kernel_cache.h"
#include "support/error.h"

namespace fastjit::test {
namespace {

using ir::DType;
using ir::Op;
using Kernels = std::vector<std::shared_ptr<const backend::Kernel>>;

bool right(const backend::Kernel& kernel, int constant = 1) {
  Array<float> x{1, 2, 3}, z(3);
  Array<int8_t> y{1, 2, 1};
  run(chain(constant), kernel, {{x.data(), y.data(), z.data()}, {3}, {0, 1, 0}});
  for (size_t i = 0; i < 3; ++i)
    if (z[i] != std::fmod(x[i] + static_cast<float>(y[i] * constant), 3.5f)) return false;
  return true;
}

std::vector<std::string> maps() {
  std::ifstream file("/proc/self/maps");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST(Link, NothingIsWritableAndExecutable) {
  Kernels kernels;
  for (int i = 0; i < 20; ++i) kernels.push_back(backend::load_cpu(object()));
  for (const std::string& line : maps()) EXPECT_EQ(line.find("rwx"), std::string::npos) << line;
  EXPECT_THROW(backend::load_cpu(std::span<const char>("not an object", 13)), std::runtime_error);
}

TEST(Link, KernelsOfOneNameLiveSideBySide) {
  const auto one = backend::load_cpu(object(1)), two = backend::load_cpu(object(2)),
             again = backend::load_cpu(object(1));
  EXPECT_EQ((std::set{one->entry, two->entry, again->entry}.size()), 3u);
  EXPECT_TRUE(right(*one, 1) && right(*two, 2) && right(*again, 1));
}

TEST(Link, ThousandsOfKernelsCostAHandfulOfMaps) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer maps memory of its own";
#endif
  const auto keep = backend::load_cpu(object());
  const size_t before = maps().size();
  for (int i = 0; i < 2000; ++i) backend::load_cpu(object());
  EXPECT_LE(maps().size(), before + 2);
  Kernels kernels;
  for (int i = 0; i < 2000; ++i) kernels.push_back(backend::load_cpu(object()));
  EXPECT_LE(maps().size(), before + 40);
  for (size_t i = 0; i < kernels.size(); i += 2) kernels[i].reset();  // holes do not split mappings
  EXPECT_LE(maps().size(), before + 40);
  for (const auto& kernel : kernels) EXPECT_TRUE(!kernel || right(*kernel));
  kernels.clear();
  EXPECT_LE(maps().size(), before + 40);
}

TEST(Link, MemoryOfADeadKernelGoesBackAndIsUsedAgain) {
  auto resident = [](const void* entry) {
    unsigned char page = 0;
    mincore(reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(entry) & ~uintptr_t{4095}), 4096, &page);
    return page & 1;
  };
  auto address = [](const auto& kernel) { return reinterpret_cast<const void*>(kernel->entry); };
  auto kernel = backend::load_cpu(object());
  const void* first = address(kernel);
  EXPECT_TRUE(resident(first));
  kernel.reset();
  EXPECT_FALSE(resident(first));
  for (int i = 0; i < 600; ++i) {  // more than once through the names that the linker uses again
    kernel = backend::load_cpu(object());
    ASSERT_EQ(address(kernel), first);
    ASSERT_TRUE(right(*kernel));
    kernel.reset();
  }
}

TEST(Link, ThreadsCompileLinkAndRunAtOnce) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 1; t <= 4; ++t)
    threads.emplace_back([t, &wrong] {
      for (int round = 0; round < 5; ++round) {
        const auto kernel = build(chain(t), backend::Isa::Avx2);
        wrong += !right(*kernel, t);
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// At every fork another thread is somewhere in the linker.
TEST(Link, AForkedChildRunsDropsAndLinks) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer starts no thread after a fork of a process with threads";
#endif
  auto kernel = backend::load_cpu(object(1));
  object(2);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) backend::load_cpu(object(1));
  });
  for (int i = 0; i < 40; ++i)
    EXPECT_TRUE(in_child([&] {
      alarm(20);
      bool ok = right(*kernel, 1);
      const auto linked = backend::load_cpu(object(2));
      kernel.reset();
      return ok && right(*linked, 2) && right(*backend::load_cpu(object(1)), 1);
    }));
  stop = true;
  other.join();
  EXPECT_TRUE(right(*kernel, 1));
}

// The object is not at fault: an entry of the cache stays, and what died meanwhile is dropped with the next link.
TEST(Link, WithoutHeadroomItSaysSoAndTheEntryStays) {
  EXPECT_TRUE(in_child([] {
    TempDir dir;
    const std::string key = key_of("k");
    int loads = 0;
    auto get = [&](runtime::KernelCache& cache) {
      runtime::KernelRequest request;
      request.key = key;
      request.compile = [] { return backend::compile_cpu(chain(), cpu(backend::Isa::Avx2)); };
      request.load = [&](std::span<const char> bytes) { return ++loads, backend::load_cpu(bytes); };
      return cache.get(request);
    };
    auto open = [&] {
      std::string problem;
      return cache::Store::open(dir.path + "/c", {}, problem);
    };
    if (get(*std::make_unique<runtime::KernelCache>(open)).source != runtime::Source::Compiled) return false;
    struct rlimit before;
    getrlimit(RLIMIT_AS, &before);
    struct rlimit low = before;
    low.rlim_cur = size_t{4} << 20;
    auto dying = backend::load_cpu(object());
    std::string what;
    runtime::KernelCache cache(open);
    setrlimit(RLIMIT_AS, &low);
    dying.reset();
    try {
      get(cache);
    } catch (const support::Unable& error) {
      what = error.what();
    }
    setrlimit(RLIMIT_AS, &before);
    return what == "the linker needs 8 MiB of memory, and cannot get them" && loads == 2 &&
           get(cache).source == runtime::Source::Disk;
  }));
}

}  // namespace
}  // namespace fastjit::test
