// Stands in for the LLVM half in builds with FASTJIT_LLVM=OFF.
#include <stdexcept>

#include "backend/compiler.h"

namespace fastjit::backend {

static constexpr const char* kAbsent = "this build of fastjit has no LLVM (FASTJIT_LLVM=OFF): CPU kernels can only be loaded from the cache";

Compiled compile_cpu(const plan::KernelPlan&, const Target&, bool) { throw std::runtime_error(kAbsent); }
std::string llvm_ir(const plan::KernelPlan&, const Target&) { throw std::runtime_error(kAbsent); }
bool has_llvm() { return false; }
std::string llvm_version() { return ""; }

}  // namespace fastjit::backend
