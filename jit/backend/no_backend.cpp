// Stands in for the LLVM half in builds with FASTJIT_LLVM=OFF.
#include "backend/compiler.h"
#include "support/error.h"

namespace fastjit::backend {

[[noreturn]] static void absent() {
  throw support::Unable("this build of fastjit has no LLVM: CPU kernels can only be loaded from the cache",
                        "build it with FASTJIT_LLVM=ON");
}

Compiled compile_cpu(const plan::KernelPlan&, const Target&, bool) { absent(); }
std::string llvm_ir(const plan::KernelPlan&, const Target&) { absent(); }
bool has_llvm() { return false; }
std::string llvm_version() { return ""; }

}  // namespace fastjit::backend
