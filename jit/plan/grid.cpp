#include "plan/grid.h"

#include <algorithm>
#include <bit>

namespace fastjit::plan {

Threads threads_of(const KernelPlan& plan) {
  if (plan.tile > 0) return Threads::BlockPerTile;
  return plan.is_row_kernel() && !plan.vec_is_kept() ? Threads::BlockPerRow : Threads::Points;
}

int points_per_thread(const KernelPlan& plan) {
  constexpr int64_t kMostWaiting = 16;  // elements that a thread has asked memory for
  constexpr int64_t kMostInTile = 32;   // the same, in vectors of a tile
  constexpr int64_t kLong = 64;         // so many operations hide their own loads
  int64_t loads = 1;
  for (const Phase& phase : plan.phases)
    loads = std::max(loads, std::ranges::count_if(plan.is_row_kernel() ? phase.elem : phase.row, [&](uint32_t at) {
                       return is_load(plan.code[at]) || plan.code[at].code == Code::Recall;
                     }));
  const auto computed = std::ranges::count(plan.code, Code::Compute, &Instr::code);
  const int64_t most = computed >= kLong ? 2 : 4;
  const int64_t together = std::clamp<int64_t>(kMostWaiting / loads, 1, most);
  if (plan.vector == 1) return static_cast<int>(together);
  if (plan.tile > 0) {
    const int64_t of_thread = std::max<int64_t>(plan.tile * plan.tile / plan.vector / kMostThreads, 1);
    return static_cast<int>(std::clamp<int64_t>(kMostInTile / (plan.vector * loads), 1, of_thread));
  }
  return plan.is_row_kernel() && together >= 2 ? 2 : 1;
}

bool is_divided(const KernelPlan& plan, int dim) {
  if (plan.is_wide || dim == 0 || dim == plan.kept()) return false;
  return plan.tile == 0 || dim < plan.tile_dim;
}

int64_t divided_size(const KernelPlan& plan, int dim, const int64_t* sizes) {
  return sizes[dim] / (dim == plan.rank() - 1 ? plan.vector : 1);
}

uint64_t divisor(int64_t size) {
  const uint64_t by = static_cast<uint64_t>(std::max<int64_t>(size, 1));
  const auto shift = static_cast<uint64_t>(std::bit_width(by - 1));
  const uint64_t magic = (((uint64_t{1} << shift) - by) << 32) / by + 1;
  return shift << 32 | magic;
}

Grid grid_of(const KernelPlan& plan, const int64_t* sizes, int64_t scratch_stride) {
  constexpr int64_t kMostBlocks = 1 << 20, kMostScratchBlocks = 1024, kMostShared = 32 << 10, kWarp = 32;
  int64_t points = 1, reduced = 1;
  for (int d = 0; d < plan.rank(); ++d) (d < plan.kept() ? points : reduced) *= sizes[d];
  const int64_t together = points_per_thread(plan) * plan.vector;
  const auto count = [](int64_t all, int64_t each) { return (all + each - 1) / each; };
  if (threads_of(plan) == Threads::BlockPerTile) {
    int64_t tiles = 1;
    for (int d = 0; d < plan.rank(); ++d) tiles *= d < plan.tile_dim ? sizes[d] : count(sizes[d], plan.tile);
    return {static_cast<uint32_t>(std::min(tiles, kMostBlocks)), kMostThreads};
  }
  if (threads_of(plan) == Threads::Points) {
    const int64_t block = kMostThreads * (plan.is_row_kernel() ? 1 : together);
    return {static_cast<uint32_t>(std::min(count(points, block), kMostBlocks)), kMostThreads};
  }
  const auto threads = std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(count(reduced, together), 1)));
  const int64_t kept_bytes = scratch_stride * static_cast<int64_t>(plan.scratch.size());
  const bool is_shared = kept_bytes > 0 && kept_bytes <= kMostShared;
  const int64_t most = kept_bytes == 0 || is_shared ? kMostBlocks : kMostScratchBlocks;
  return {static_cast<uint32_t>(std::min(points, most)),
          static_cast<uint32_t>(std::clamp<int64_t>(static_cast<int64_t>(threads), kWarp, kMostThreads)),
          static_cast<uint32_t>(is_shared ? kept_bytes : 0)};
}

}  // namespace fastjit::plan
