#pragma once
// CUDA C++ of one kernel plan, for people and for NVRTC. Accumulators are those of the CPU: F32 sums and products in
// double, F64 sums compensated.
//
// The kernel takes one struct by value. All its fields have 8 bytes, in this order: a pointer per operand; a size per
// dim; a stride (in elements) per operand and dim of StrideClass::Any, operand-major; the run-time scalars; with
// scratch slots their memory and the bytes of one slot of one block.
#include <cstdint>
#include <string>
#include <vector>

#include "backend/kernel.h"
#include "plan/kernel_plan.h"

namespace fastjit::codegen {

inline constexpr int kCudaBlock = 256;  // most threads of a block; every kernel is compiled for it

/// How threads share the iteration space.
enum class CudaShape : uint8_t {
  Points,      // a thread per kept point, in a loop over the grid; it runs the reductions of its point itself
  BlockPerRow  // a block per kept point; its threads share the reduced space and merge what they accumulated
};
CudaShape cuda_shape(const plan::KernelPlan& plan);

/// The whole source: equal plans give equal text.
std::string cuda_source(const plan::KernelPlan& plan);

struct CudaLaunch {
  uint32_t grid = 1, block = kCudaBlock;
  int64_t scratch_stride = 0;  // bytes of one slot of one block
  int64_t scratch_bytes = 0;   // of the whole launch
};
/// Grid and block for these sizes; `grid` is 0 when there is nothing to do.
CudaLaunch cuda_launch(const plan::KernelPlan& plan, const int64_t* sizes);

/// Fills `words` with the kernel's parameter struct. Of `args`, scratch is the memory of the launch.
void cuda_parameters(const plan::KernelPlan& plan, const backend::KernelArgs& args, std::vector<uint64_t>& words);

}  // namespace fastjit::codegen
