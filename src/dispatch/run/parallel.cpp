#include "dispatch/run/parallel.h"

#include <ATen/Parallel.h>
#include <omp.h>
#include <sched.h>

#include <algorithm>

// at::parallel_for is a template of torch's headers: compiled without OpenMP it is a serial loop, and nothing says so.
#ifndef INTRA_OP_PARALLEL
#error "compile this file with the flags of torch's parallel backend (OpenMP)"
#endif

namespace fastjit::dispatch {

static void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void parallel_for(int64_t begin, int64_t end, int64_t grain, c10::function_ref<void(int64_t, int64_t)> body) {
  at::parallel_for(begin, end, grain, body);
}

void parallel_team(int most, c10::function_ref<void(int, int)> body) {
  const int threads = std::min(most, at::get_num_threads());
  if (threads <= 1 || at::in_parallel_region()) return body(0, 1);
#pragma omp parallel num_threads(threads)
  body(omp_get_thread_num(), omp_get_num_threads());
}

void Barrier::wait(int count) noexcept {
  constexpr int kSpins = 20'000;  // then the thread that is missing may need this one's core
  const uint32_t turn = turn_.load(std::memory_order_relaxed);
  if (there_.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
    there_.store(0, std::memory_order_relaxed);
    turn_.store(turn + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; turn_.load(std::memory_order_acquire) == turn; ++spins)
    if (spins < kSpins)
      pause();
    else
      sched_yield();
}

}  // namespace fastjit::dispatch
