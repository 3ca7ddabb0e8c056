#pragma once
// How much the planner has done on this thread: passes through its inner loops. Tests hold it against the size of a
// program, since seconds on a shared machine prove nothing.
#include <cstdint>

namespace fastjit::plan {

inline thread_local uint64_t work_done = 0;

inline void work(uint64_t steps = 1) { work_done += steps; }

}  // namespace fastjit::plan
