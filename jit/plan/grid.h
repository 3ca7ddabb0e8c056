#pragma once
// How a launch is spread over a GPU: decided with the rest of the plan, obeyed by source and launch.
#include "plan/kernel_plan.h"

namespace fastjit::plan {

inline constexpr int kMostThreads = 256;  // of a block; every kernel is compiled for it

/// How threads share the iteration space.
enum class Threads : uint8_t {
  Points,       // a thread per kept point, in a loop over the grid; it runs the reductions of its point itself
  BlockPerRow,  // a block per kept point; its threads share the reduced space and merge what they accumulated
  BlockPerTile  // a block per square of a tiled plan
};
Threads threads_of(const KernelPlan& plan);

/// Points, or indices of the reduced space, that a thread takes at once, vectors of them where the plan has some: their
/// loads are under way together.
int points_per_thread(const KernelPlan& plan);

/// Whether a thread divides by the size of the dim, to tell from its number which indices are its own, and the launch
/// gives it a divisor for that: see divisor(). Of a wide plan none does.
bool is_divided(const KernelPlan& plan, int dim);

/// Of the last dim, a vector counts as one.
int64_t divided_size(const KernelPlan& plan, int dim, const int64_t* sizes);

/// For numbers below 2^31: the quotient by `size` is (x * magic / 2^32 + x) >> shift (Granlund and Montgomery, PLDI
/// 1994). The magic number in the lower half, the shift in the upper one.
uint64_t divisor(int64_t size);

/// blocks 0: there is nothing to do.
struct Grid {
  uint32_t blocks = 0, threads = kMostThreads;
  uint32_t shared_bytes = 0;  // of a block: what it keeps is there, and no scratch memory is wanted
  bool operator==(const Grid&) const = default;
};
/// For these sizes, one per dim; `scratch_stride`: bytes of each thing that a row keeps.
Grid grid_of(const KernelPlan& plan, const int64_t* sizes, int64_t scratch_stride);

}  // namespace fastjit::plan
