#pragma once
// One thread a process that compiles what nobody waits for. It is made when there is something to do and ends when
// there is nothing left, knows neither Python nor torch, and is stopped before the process ends.
#include <atomic>
#include <functional>
#include <memory>

namespace fastjit::runtime {

/// Something to be done once. What `work` reads is never changed, and what it makes it makes anew and publishes by its
/// last step: in a forked child, which does not inherit the thread, it is done again from the start.
class BackgroundJob {
 public:
  explicit BackgroundJob(std::function<void()> work) : work_(std::move(work)) {}
  bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  /// Nobody wants the result any more: if it has not begun it is left out, and counts as done.
  void abandon() noexcept { abandoned_ = true; }

 private:
  friend struct BackgroundQueue;
  std::function<void()> work_;  // throws nothing
  std::atomic<bool> done_{false}, abandoned_{false};
};

/// Queues a job. Never waits for another.
void run_in_background(std::shared_ptr<BackgroundJob> job);

/// To be called now and then while a job is waited for without waiting: in a forked child, and where no thread could be
/// made before, makes the thread. Cheap.
void tend_background() noexcept;

/// Waits until `job` is done or stop_background() was called.
void wait_for(const BackgroundJob& job);

/// For the end of the process: drops what has not begun, and waits for what has. A job asks is_background_stopped()
/// between its steps. Later jobs are never done.
void stop_background();
bool is_background_stopped() noexcept;

/// For tests: while it is held, the thread begins no job.
void hold_background(bool held);

}  // namespace fastjit::runtime
