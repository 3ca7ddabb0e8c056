#include "runtime/engine.h"

#include <stdexcept>

#include "backend/nvrtc.h"
#include "codegen/cuda/emit.h"
#include "runtime/kernel_cache.h"
#include "support/log.h"

namespace fastjit::runtime {

/// Never destroyed: threads may still compile, and programs hold kernels, while the process ends.
static KernelCache& kernels() {
  static auto* instance = new KernelCache([] { return cache::Store::open_default(); });
  return *instance;
}

void set_up() {
  kernels();
  backend::host_has(backend::Isa::Avx2);
  support::log_on(support::Channel::Compile);
}

// The source says everything about a CUDA kernel that the engine decides, so its key outlives a build of the engine.
static std::string cuda_key(const plan::KernelPlan& plan, const backend::Target& target) {
  std::string options;
  for (const std::string& option : backend::nvrtc_options(plan.numerics)) options += option + " ";
  return cache::encode({{"domain", "fastjit cuda kernel"},
                        {"format", std::to_string(cache::kFormat)},
                        {"nvrtc", backend::nvrtc_version()},
                        {"target", backend::text(target)},
                        {"options", options},
                        {"source", codegen::cuda_source(plan)}});
}

std::string kernel_key(const plan::KernelPlan& plan, const backend::Target& target) {
  if (target.kind == backend::Target::Kind::Cuda) return cuda_key(plan, target);
  return cache::encode({{"domain", "fastjit kernel"},
                        {"format", std::to_string(cache::kFormat)},
                        {"build", std::string(backend::engine_build_id())},
                        {"llvm", backend::llvm_version()},
                        {"target", backend::text(target)},
                        {"numerics", std::string(ir::text(plan.numerics))},
                        {"plan", plan::text(plan)}});
}

KernelResult get_kernel(const plan::KernelPlan& plan, const backend::Target& target, const Origin& origin,
                        CacheMode mode) {
  const bool cuda = target.kind == backend::Target::Kind::Cuda;
  if (cuda) {
    if (const std::string problem = backend::nvrtc_problem(); !problem.empty()) throw std::runtime_error(problem);
  } else if (!backend::host_has(target.isa)) {
    throw std::runtime_error("this CPU lacks " + std::string(backend::text(target.isa)));
  }
  KernelRequest request;
  request.key = kernel_key(plan, target);
  request.target = backend::text(target);
  request.origin = &origin;
  request.mode = mode;
  request.kind = cuda ? cache::Kind::Cubin : cache::Kind::CpuElf;
  request.compile = [&] { return cuda ? backend::compile_cuda(plan, target) : backend::compile_cpu(plan, target); };
  request.load = cuda ? backend::load_cuda : backend::load_cpu;
  return kernels().get(request);
}

void forget_kernel(const std::string& digest_hex, CacheMode mode) { kernels().forget(digest_hex, mode); }

void clear_memory() { kernels().clear_memory(); }

}  // namespace fastjit::runtime
