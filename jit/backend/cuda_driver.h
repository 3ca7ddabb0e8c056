#pragma once
// The CUDA driver, opened at run time: loads cubins and launches them. Streams are the integers that torch gives.
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "backend/kernel.h"
#include "plan/grid.h"

namespace fastjit::backend {

/// Opens `library` ("libcuda.so.1") once and initialises it. Empty, or why there is no usable driver.
std::string cuda_problem(const char* library = "libcuda.so.1");

/// sm of a device (90). Throws std::runtime_error.
int cuda_sm(int device);

using CudaContext = void*;
using CudaFunction = void*;

/// The primary context of a device, the one torch works in. It is kept for the rest of the process.
CudaContext cuda_context(int device);

/// Makes a context current on this thread while it lives. A thread that has not used CUDA yet has none.
class CudaContextGuard {
 public:
  explicit CudaContextGuard(CudaContext context);
  ~CudaContextGuard();
  CudaContextGuard(const CudaContextGuard&) = delete;

 private:
  bool pushed_ = false;
};

/// The entry of a kernel made by load_cuda, in a context that is current. The module is loaded at the first call for a
/// context and lives as long as that context.
CudaFunction cuda_function(const Kernel& kernel, CudaContext context);

/// Fills `words` with the kernel's parameter struct (codegen/emit_cuda.h). Of `args`, scratch is the memory of the
/// launch.
void cuda_parameters(const plan::KernelPlan& plan, const KernelArgs& args, std::vector<uint64_t>& words);

/// Launches in the current context, asynchronously. Throws std::runtime_error in words.
void cuda_launch(CudaFunction function, const plan::Grid& grid, std::span<const uint64_t> parameters, uint64_t stream);

}  // namespace fastjit::backend
