#include "runtime/background.h"

#include <pthread.h>
#include <signal.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#include "support/fork.h"

namespace fastjit::runtime {

/// Never destroyed: the thread may outlive static destructors where a process ends without stop_background().
struct BackgroundQueue {
  std::mutex mutex;  // free at every fork
  // A child gets a new one: threads that are not there must not be woken.
  std::unique_ptr<std::condition_variable> changed = std::make_unique<std::condition_variable>();
  std::deque<std::shared_ptr<BackgroundJob>> waiting;
  std::shared_ptr<BackgroundJob> now;
  bool has_thread = false, held = false;
  std::atomic<bool> stopped{false};
  std::atomic<bool> lacks_thread{false};  // jobs wait, and no thread does them

  static BackgroundQueue& instance() {
    static BackgroundQueue* queue = [] {
      auto* made = new BackgroundQueue;
      support::hold_over_fork(made->mutex);
      pthread_atfork(nullptr, nullptr, after_fork_in_child);
      return made;
    }();
    return *queue;
  }

  static void after_fork_in_child() {
    BackgroundQueue& queue = instance();
    if (queue.now) queue.waiting.push_front(std::move(queue.now));
    queue.now = nullptr;
    static_cast<void>(queue.changed.release());
    queue.changed = std::make_unique<std::condition_variable>();
    queue.has_thread = queue.held = false;
    queue.lacks_thread = !queue.waiting.empty();
  }

  /// Under the mutex. Handlers of signals are for the threads of the program.
  void make_thread() noexcept {
    if (has_thread || waiting.empty() || stopped) return;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      std::thread([this] { work(); }).detach();
      has_thread = true;
    } catch (const std::system_error&) {
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    lacks_thread = !has_thread;
  }

  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed->wait(lock, [&] { return !held || stopped; });
      if (stopped || waiting.empty()) break;
      now = std::move(waiting.front());
      waiting.pop_front();
      const std::shared_ptr<BackgroundJob> job = now;
      lock.unlock();
      if (!job->abandoned_) job->work_();
      lock.lock();
      now = nullptr;
      if (stopped) break;  // it may have left things out
      job->done_.store(true, std::memory_order_release);
      changed->notify_all();
    }
    has_thread = false;
    changed->notify_all();
  }
};

void run_in_background(std::shared_ptr<BackgroundJob> job) {
  BackgroundQueue& queue = BackgroundQueue::instance();
  const std::lock_guard lock(queue.mutex);
  queue.waiting.push_back(std::move(job));
  queue.make_thread();
}

void tend_background() noexcept {
  BackgroundQueue& queue = BackgroundQueue::instance();
  if (!queue.lacks_thread) return;
  const std::lock_guard lock(queue.mutex);
  queue.make_thread();
}

void wait_for(const BackgroundJob& job) {
  BackgroundQueue& queue = BackgroundQueue::instance();
  std::unique_lock lock(queue.mutex);
  queue.make_thread();
  queue.changed->wait(lock, [&] { return job.done() || queue.stopped; });
}

void stop_background() {
  BackgroundQueue& queue = BackgroundQueue::instance();
  std::unique_lock lock(queue.mutex);
  queue.stopped = true;
  queue.waiting.clear();
  queue.changed->notify_all();
  queue.changed->wait(lock, [&] { return !queue.has_thread; });
}

bool is_background_stopped() noexcept { return BackgroundQueue::instance().stopped; }

void hold_background(bool held) {
  BackgroundQueue& queue = BackgroundQueue::instance();
  const std::lock_guard lock(queue.mutex);
  queue.held = held;
  queue.changed->notify_all();
}

}  // namespace fastjit::runtime
