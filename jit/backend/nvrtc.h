#pragma once
// NVRTC, opened at run time: CUDA C++ to a cubin. Needs neither a GPU nor a driver.
#include <string>
#include <vector>

#include "backend/compiler.h"

namespace fastjit::backend {

/// Where to look first; empty: only the default places. Has no effect once the library is open.
void set_nvrtc_path(const std::string& path);

/// Opens the library. Empty, or why it cannot be used.
std::string nvrtc_problem();
std::string nvrtc_version();  // "13.5"; "" while there is none

/// The pinned options of a compile, without the architecture.
std::vector<std::string> nvrtc_options(plan::Numerics numerics);

/// Compiles `source` for sm_`sm`. `assembly` is the PTX. Throws std::runtime_error with NVRTC's log. Thread-safe.
Compiled compile_cuda_source(const std::string& source, int sm, plan::Numerics numerics);
Compiled compile_cuda(const plan::KernelPlan& plan, const Target& target);

/// The name of the kernel in a cubin; empty where there is none. Reads untrusted bytes.
std::string cubin_entry(std::span<const char> object);

/// Empty when `object` looks like a cubin with the entry symbol; else the reason. Reads untrusted bytes.
std::string validate_cubin(std::span<const char> object);

struct CudaModules;  // cuda_driver.cpp
std::shared_ptr<CudaModules> make_cuda_modules();

/// A cubin that is checked and kept; the driver loads it at the first launch.
struct CudaKernel final : Kernel {
  std::string cubin, entry;
  std::shared_ptr<CudaModules> modules = make_cuda_modules();
};
std::shared_ptr<const Kernel> load_cuda(std::span<const char> object);

}  // namespace fastjit::backend
