#pragma once
// Locks and fork(): a child inherits only the thread that forked, and a lock that another thread held would stay held.
#include <mutex>

namespace fastjit::support {

/// From now on fork() happens with `lock` free. For a mutex that lives for ever, and whose holder waits for nothing but
/// memory: fork() takes these locks after all others of the engine.
void hold_over_fork(std::mutex& lock);

}  // namespace fastjit::support
