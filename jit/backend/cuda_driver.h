#pragma once
// The CUDA driver, opened at run time: loads cubins and launches them. Streams are the integers that torch gives.
#include <cstdint>
#include <memory>
#include <string>

#include "backend/kernel.h"
#include "codegen/emit_cuda.h"

namespace fastjit::backend {

/// Opens `library` ("libcuda.so.1") once and initialises it. Empty, or why there is no usable driver.
std::string cuda_problem(const char* library = "libcuda.so.1");

/// sm of a device (90). Throws std::runtime_error.
int cuda_sm(int device);

/// Launches a kernel made by load_cuda on the calling thread's current context, asynchronously. The module is loaded at
/// the first launch in a context and lives as long as the kernel. Throws std::runtime_error in words.
void cuda_launch(const Kernel& kernel, const codegen::CudaLaunch& launch, const std::vector<uint64_t>& parameters,
                 uint64_t stream);

}  // namespace fastjit::backend
