#include "plan/grid.h"

#include <algorithm>
#include <bit>

namespace fastjit::plan {

Threads threads_of(const KernelPlan& plan) {
  return plan.is_row_kernel() && !plan.vec_is_kept() ? Threads::BlockPerRow : Threads::Points;
}

Grid grid_of(const KernelPlan& plan, const int64_t* sizes) {
  constexpr int64_t kMostBlocks = 1 << 20, kMostScratchBlocks = 1024;
  int64_t points = 1, reduced = 1;
  for (int d = 0; d < plan.rank(); ++d) (d < plan.kept() ? points : reduced) *= sizes[d];
  if (threads_of(plan) == Threads::Points)
    return {static_cast<uint32_t>(std::min((points + kMostThreads - 1) / kMostThreads, kMostBlocks)), kMostThreads};
  const auto threads = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(reduced, 1))));
  return {static_cast<uint32_t>(std::min(points, plan.scratch.empty() ? kMostBlocks : kMostScratchBlocks)),
          static_cast<uint32_t>(std::clamp<int64_t>(threads, 32, kMostThreads))};
}

}  // namespace fastjit::plan
