// Stands in for the LLVM half in builds with FASTJIT_LLVM=OFF.
#include "backend/compiler.h"
#include "support/error.h"

namespace fastjit::backend {

[[noreturn]] static void absent() {
  throw support::Unable("this build of fastjit has no LLVM, which compiles and links CPU kernels",
                        "build it with FASTJIT_LLVM=ON");
}

Compiled compile_cpu(const plan::KernelPlan&, const Target&, bool) { absent(); }
std::string compile_cpu_as(const std::string&, const plan::KernelPlan&, const Target&) { absent(); }
std::string llvm_ir(const plan::KernelPlan&, const Target&) { absent(); }
std::shared_ptr<const Kernel> load_cpu(std::span<const char>) { absent(); }
bool has_llvm() { return false; }
std::string llvm_version() { return ""; }

}  // namespace fastjit::backend
