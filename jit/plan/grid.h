#pragma once
// How a launch is spread over a GPU: decided with the rest of the plan, obeyed by source and launch.
#include "plan/kernel_plan.h"

namespace fastjit::plan {

inline constexpr int kMostThreads = 256;  // of a block; every kernel is compiled for it

/// How threads share the iteration space.
enum class Threads : uint8_t {
  Points,      // a thread per kept point, in a loop over the grid; it runs the reductions of its point itself
  BlockPerRow  // a block per kept point; its threads share the reduced space and merge what they accumulated
};
Threads threads_of(const KernelPlan& plan);

/// blocks 0: there is nothing to do.
struct Grid {
  uint32_t blocks = 0, threads = kMostThreads;
  bool operator==(const Grid&) const = default;
};
/// For these sizes, one per dim.
Grid grid_of(const KernelPlan& plan, const int64_t* sizes);

}  // namespace fastjit::plan
