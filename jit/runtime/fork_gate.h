#pragma once
// fork() and compiling: a child inherits only the thread that forked, so no other thread may then be inside the
// compiler, the linker or a lock of the engine. fork() waits for those that are inside, and new ones wait for fork().

namespace fastjit::runtime {

/// Marks this thread as inside. Nests. A thread that forks while inside does not wait for itself.
class InsideGate {
 public:
  InsideGate();
  ~InsideGate();
  InsideGate(const InsideGate&) = delete;
};

/// Called in the forking thread: `before` with every thread outside, then `parent` or `child`. Registered for good.
struct ForkHooks {
  void (*before)();
  void (*parent)();
  void (*child)();
};
void set_fork_hooks(const ForkHooks& hooks);

}  // namespace fastjit::runtime
