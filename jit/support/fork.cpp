#include "support/fork.h"

#include <pthread.h>

#include <vector>

namespace fastjit::support {

namespace {

struct Held {
  std::mutex mutex;
  std::vector<std::mutex*> locks;

  static Held& all() {
    static auto* instance = new Held;
    return *instance;
  }
};

void before_fork() {
  Held::all().mutex.lock();
  for (std::mutex* lock : Held::all().locks) lock->lock();
}

void after_fork() {
  for (std::mutex* lock : Held::all().locks) lock->unlock();
  Held::all().mutex.unlock();
}

// fork() calls what was registered first last. Registered while the library is loaded, and so before the fork gate
// (runtime/fork_gate.h): the threads that the gate waits for may need these locks to get out.
[[maybe_unused]] const int registered = pthread_atfork(before_fork, after_fork, after_fork);

}  // namespace

void hold_over_fork(std::mutex& lock) {
  const std::lock_guard hold(Held::all().mutex);
  Held::all().locks.push_back(&lock);
}

}  // namespace fastjit::support
