#pragma once
// From a plan to a loaded kernel: memory, then disk, then the compiler; one compile per key across threads and
// processes.
#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "backend/compiler.h"
#include "backend/kernel.h"
#include "plan/kernel_plan.h"

namespace fastjit::runtime {

/// Who asks, for the people who read the cache listing. Not part of the key.
struct Origin {
  std::string function;             // "model.gelu_bias"
  std::string signature;            // "f32[1024,1024],f32[1024]"
  std::function<std::string()> ir;  // gives the text of the captured graph, where an entry is written; may be empty
};

/// Makes what all threads share. To be called while nothing can fork beside it: the child of a fork that came while
/// another thread made it would wait for that thread for ever.
void set_up();

enum class CacheMode : uint8_t { On, ReadOnly, MemoryOnly };

enum class Source : uint8_t { Memory, Disk, Compiled };
struct KernelResult {
  std::shared_ptr<const backend::Kernel> kernel;
  Source source = Source::Compiled;
  double ms = 0;    // time to get it
  std::string key;  // hex digest of the kernel key
};

/// The kernel for `plan` on `target`. Throws std::runtime_error when it can neither be loaded nor compiled (no LLVM,
/// LLVM's error). Any fault of the disk cache is a miss. Safe from any thread; the caller must not hold the GIL.
KernelResult get_kernel(const plan::KernelPlan& plan, const backend::Target& target, const Origin& origin,
                        CacheMode mode = CacheMode::On);

/// The bytes of the whole kernel key for a plan and target (format, build id, compiler, target, numerics, plan text).
std::string kernel_key(const plan::KernelPlan& plan, const backend::Target& target);

/// Forgets the kernel with this digest, in memory and on disk where `mode` may write there: the next that asks
/// compiles.
void forget_kernel(const std::string& digest_hex, CacheMode mode);

void clear_memory();  // forgets every kernel no program holds

}  // namespace fastjit::runtime
