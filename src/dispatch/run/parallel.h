#pragma once
// Torch's own thread pool: torch.set_num_threads and OMP_NUM_THREADS hold, and no second pool competes for the cores.
#include <atomic>
#include <cstdint>

#include <c10/util/FunctionRef.h>

namespace fastjit::dispatch {

/// `body(from, to)` on parts of [begin, end), each of at least `grain` units. Runs in the calling thread when it is
/// already inside a parallel region. An exception of `body` is thrown here.
void parallel_for(int64_t begin, int64_t end, int64_t grain, c10::function_ref<void(int64_t, int64_t)> body);

/// `body(index, count)` in each of `count` threads, at most `most` of torch's, which run at the same time: they may
/// wait for each other. One where the calling thread is already inside a parallel region. `body` throws nothing.
void parallel_team(int most, c10::function_ref<void(int, int)> body);

/// Where the threads of a team wait for each other: by spinning, since that is for less than a microsecond where each
/// has a core; then asleep.
class Barrier {
 public:
  void wait(int count) noexcept;
  /// Whether one has waited asleep: others want the cores.
  bool has_slept() const noexcept { return slept_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> slept_{false};
  std::atomic<int> there_{0};
  std::atomic<uint32_t> turn_{0};
};

/// Whether to let one thread do the work of a team, since teams have waited asleep lately: for a while, longer each
/// time that they do so again.
class TeamRest {
 public:
  bool rests() const noexcept;
  void note(bool slept) noexcept;

 private:
  std::atomic<int64_t> until_{0}, rest_{0};  // nanoseconds: of the steady clock; a rest
};
extern TeamRest team_rest;  // of this process

}  // namespace fastjit::dispatch
