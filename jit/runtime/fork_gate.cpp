#include "runtime/fork_gate.h"

#include <pthread.h>

#include <condition_variable>
#include <mutex>
#include <new>

namespace fastjit::runtime {

namespace {

struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  int inside = 0;
  bool forking = false;
};

// Never destroyed: threads may still be inside when the process ends. Built anew in a child.
alignas(Gate) char g_storage[sizeof(Gate)];
Gate* g_gate = new (g_storage) Gate;
ForkHooks g_hooks{};
thread_local int t_depth = 0;

void before_fork() {
  if (t_depth > 0) return;
  {
    std::unique_lock lock(g_gate->mutex);
    g_gate->changed.wait(lock, [] { return !g_gate->forking; });
    g_gate->forking = true;
    g_gate->changed.wait(lock, [] { return g_gate->inside == 0; });
  }
  if (g_hooks.before) g_hooks.before();
}

void after_fork_parent() {
  if (t_depth > 0) return;
  if (g_hooks.parent) g_hooks.parent();
  const std::lock_guard lock(g_gate->mutex);
  g_gate->forking = false;
  g_gate->changed.notify_all();
}

void after_fork_child() {
  if (t_depth > 0) return;
  new (g_gate) Gate;  // the old one counts threads that do not exist here
  if (g_hooks.child) g_hooks.child();
}

}  // namespace

InsideGate::InsideGate() {
  if (t_depth++ > 0) return;
  std::unique_lock lock(g_gate->mutex);
  g_gate->changed.wait(lock, [] { return !g_gate->forking; });
  ++g_gate->inside;
}

InsideGate::~InsideGate() {
  if (--t_depth > 0) return;
  const std::lock_guard lock(g_gate->mutex);
  if (--g_gate->inside == 0) g_gate->changed.notify_all();
}

void set_fork_hooks(const ForkHooks& hooks) {
  static std::once_flag once;
  std::call_once(once, [&] {
    g_hooks = hooks;
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
  });
}

}  // namespace fastjit::runtime
