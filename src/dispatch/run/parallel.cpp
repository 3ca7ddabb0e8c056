#include "dispatch/run/parallel.h"

#include <ATen/Parallel.h>
#include <omp.h>

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

// Where others want the cores too, a thread that yields hands its core on for a whole slice, and the others then wait
// for it in turn: a loop took seconds so. One that sleeps is woken at once.
void Barrier::wait(int count) noexcept {
  constexpr int kSpins = 4'000;  // some 50 to 100 us
  const uint32_t turn = turn_.load(std::memory_order_relaxed);
  if (there_.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
    there_.store(0, std::memory_order_relaxed);
    turn_.store(turn + 1, std::memory_order_release);
    turn_.notify_all();
    return;
  }
  for (int spins = 0; spins < kSpins; ++spins) {
    if (turn_.load(std::memory_order_acquire) != turn) return;
    pause();
  }
  turn_.wait(turn, std::memory_order_acquire);
}

}  // namespace fastjit::dispatch
