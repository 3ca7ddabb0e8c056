#pragma once
// How much recording has done on this thread: instructions judged, operators noted, passes through inner loops that
// could grow with a program. Tests hold it against the size of the program, since seconds on a shared machine prove
// nothing; the planner counts its own (plan/work.h).
#include <cstddef>
#include <cstdint>

namespace fastjit::support {

inline thread_local uint64_t recording_work = 0;

inline void count_work(size_t steps = 1) { recording_work += steps; }

}  // namespace fastjit::support
