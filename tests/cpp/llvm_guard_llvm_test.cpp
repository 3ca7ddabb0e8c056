// LLVM without memory: the process goes on, compiles nothing more, and waits for nothing.
#include <llvm/Support/ErrorHandling.h>
#include <sys/resource.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "backend/compiler.h"
#include "backend/llvm_guard.h"
#include "cache_helpers.h"
#include "support/error.h"
#include "support/log.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FASTJIT_OWN_MALLOC 1
namespace {
std::atomic<long> allocations_left{-1};  // below zero: any number

bool allowed() {
  if (allocations_left < 0) return true;
  if (allocations_left > 0) --allocations_left;
  if (allocations_left > 0) return true;
  errno = ENOMEM;
  return false;
}
}  // namespace

// LLVM is linked statically, so its calls and those of operator new come here.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* malloc(size_t size) { return allowed() ? __libc_malloc(size) : nullptr; }
void* calloc(size_t count, size_t size) { return allowed() ? __libc_calloc(count, size) : nullptr; }
void* realloc(void* block, size_t size) { return allowed() ? __libc_realloc(block, size) : nullptr; }
}
#endif

namespace fastjit {
namespace {

plan::KernelPlan some_plan() {
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

std::string object;  // where there is one, it is linked instead of a plan compiled
std::vector<std::shared_ptr<const backend::Kernel>> linked;

/// What compiling says: "" when it works, else the reason and, after a line, the way out.
std::string compile() {
  try {
    if (!object.empty()) return linked.emplace_back(backend::load_cpu(object))->entry ? "" : "no kernel";
    return backend::compile_cpu(some_plan(), {}).object.empty() ? "no object" : "";
  } catch (const support::Unable& error) {
    return std::string(error.what()) + "\n" + error.way_out();
  }
}

std::string said;
void keep(support::Channel, std::string_view message) { said += std::string(message) + "\n"; }

#ifdef FASTJIT_OWN_MALLOC
constexpr const char* kOut =
    "LLVM ran out of memory, and makes no more kernels in this process\n"
    "give the process more memory and start it again";
constexpr const char* kSaid =
    "LLVM ran out of memory; no kernel is compiled or loaded any more in this process, and what needs a new one "
    "runs eagerly";

/// Compiles with memory for so many allocations. True when that worked, or said why not, and what comes then does too.
bool goes_on_after(long allocations, bool first, bool& ran_out) {
  support::set_log_sink(keep);
  if (!first && !compile().empty()) return false;
  said.reserve(1000);
  said.clear();
  allocations_left = allocations;
  std::string what;
  try {
    what = compile();
  } catch (const std::bad_alloc&) {  // before LLVM was begun with, or while its end was told
    what = "bad_alloc";
  }
  allocations_left = -1;
  ran_out = !what.empty();
  if (!ran_out) return compile().empty() && said.empty();
  const std::string again = compile(), once_more = compile();
  const bool ended = again == kOut && said == std::string(kSaid) + "\n";
  return again == once_more && (ended || (again.empty() && said.empty()));
}

// The states in which allocations fail differ by what was compiled before: in the first compile LLVM makes its tables.
void with_ever_more_memory(bool first) {
  int outs = 0;
  long allocations = 1;
  for (bool ran_out = true; ran_out; allocations += 1 + allocations / 12) {
    int pipes[2];
    ASSERT_EQ(pipe(pipes), 0);
    EXPECT_TRUE(test::in_child([&] {
      bool out = false;
      const bool ok = goes_on_after(allocations, first, out);
      return write(pipes[1], &out, 1) == 1 && ok;
    })) << allocations;
    close(pipes[1]);
    if (read(pipes[0], &ran_out, 1) != 1) ran_out = true;
    close(pipes[0]);
    outs += ran_out;
    ASSERT_LT(allocations, 10'000'000);
  }
  EXPECT_GT(outs, object.empty() ? 30 : 20);
}

TEST(LlvmGuard, OutOfMemoryInTheFirstCompile) { with_ever_more_memory(true); }
TEST(LlvmGuard, OutOfMemoryInALaterCompile) { with_ever_more_memory(false); }

void with_ever_more_memory_for_links(bool first) {
  object = backend::compile_cpu(some_plan(), {}).object;
  with_ever_more_memory(first);
  object.clear();
}

TEST(LlvmGuard, OutOfMemoryInTheFirstLink) { with_ever_more_memory_for_links(true); }
TEST(LlvmGuard, OutOfMemoryInALaterLink) { with_ever_more_memory_for_links(false); }

TEST(LlvmGuard, OutOfMemoryWhileAKernelIsDropped) {
  object = backend::compile_cpu(some_plan(), {}).object;
  for (long allocations = 1; allocations < 12; ++allocations)
    EXPECT_TRUE(test::in_child([&] {
      support::set_log_sink(keep);
      said.reserve(1000);
      linked.reserve(8);
      if (!compile().empty() || !compile().empty()) return false;
      allocations_left = allocations;
      linked.pop_back();
      allocations_left = -1;
      const std::string what = compile();
      return what.empty() ? said.empty() : what == kOut && said == std::string(kSaid) + "\n";
    })) << allocations;
  object.clear();
}

#endif

TEST(LlvmGuard, AFatalErrorEndsLlvmAndNotTheProcess) {
  EXPECT_TRUE(test::in_child([] {
    support::set_log_sink(keep);
    if (!compile().empty()) return false;
    std::string what;
    try {
      backend::with_llvm(backend::Use::Compile, [] { llvm::report_fatal_error("Cannot select: t7\nand more"); });
    } catch (const support::Unable& error) {
      what = std::string(error.what()) + "\n" + error.way_out();
    }
    return what ==
               "LLVM gave up: Cannot select: t7, and makes no more kernels in this process\n"
               "start the process again, and please report it" &&
           compile() == what &&
           said.starts_with("LLVM gave up: Cannot select: t7; no kernel is compiled or loaded any more in");
  }));
}

TEST(LlvmGuard, AnErrorOfOursEndsNothing) {
  EXPECT_TRUE(test::in_child([] {
    plan::KernelPlan plan = some_plan();
    plan.lanes = 3;
    try {
      backend::compile_cpu(plan, {});
      return false;
    } catch (const std::runtime_error& error) {
      return std::string(error.what()).starts_with("illegal kernel plan") && compile().empty();
    }
  }));
}

TEST(LlvmGuard, WithoutHeadroomLlvmIsNotBegunWith) {
  EXPECT_TRUE(test::in_child([] {
    support::set_log_sink(keep);
    struct rlimit before;
    getrlimit(RLIMIT_AS, &before);
    struct rlimit low = before;
    low.rlim_cur = size_t{40} << 20;
    setrlimit(RLIMIT_AS, &low);
    const std::string what = compile();
    setrlimit(RLIMIT_AS, &before);
    return what ==
               "the compiler needs 64 MiB of memory, and cannot get them\nfree memory, or raise the limit of the "
               "process (ulimit -v)" &&
           compile().empty() && said.empty();
  }));
}

}  // namespace
}  // namespace fastjit
