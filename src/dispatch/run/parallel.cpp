#include "dispatch/run/parallel.h"

#include <ATen/Parallel.h>
#include <omp.h>

#include <algorithm>
#include <chrono>

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
  slept_.store(true, std::memory_order_relaxed);
  turn_.wait(turn, std::memory_order_acquire);
}

TeamRest team_rest;

static int64_t now() noexcept {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

bool TeamRest::rests() const noexcept {
  const int64_t until = until_.load(std::memory_order_relaxed);
  return until != 0 && now() < until;
}

// Measured on two cores with as many other processes: a loop of 120 launches of a microsecond took 16 to 30 ms in a
// team, call after call, and 0.3 ms in one thread.
void TeamRest::note(bool slept) noexcept {
  constexpr int64_t kFirst = 50'000'000, kMost = 2'000'000'000;
  const int64_t last = rest_.load(std::memory_order_relaxed);
  if (!slept && last == 0) return;
  const int64_t rest = slept ? std::clamp(2 * last, kFirst, kMost) : 0;
  rest_.store(rest, std::memory_order_relaxed);
  until_.store(slept ? now() + rest : 0, std::memory_order_relaxed);
}

}  // namespace fastjit::dispatch
