#pragma once
// One compiler a key, across processes. The lock is advisory and only saves work: without it entries are still right.
#include <chrono>

#include "cache/root.h"

namespace fastjit::cache {

using Clock = std::chrono::steady_clock;

/// flock of the whole file for this process alone, tried until then and at least once. 0, EWOULDBLOCK when another
/// process held it all that time, or errno.
int lock_until(int file, Clock::time_point until);

/// flock on <root>/tmp/<digest>.lock. It dies with its holder, and the holder removes the file. Waits no longer than it
/// is told, whatever other processes and the file system do.
class KeyLock {
 public:
  enum class State { Held, TimedOut, Unavailable };

  KeyLock() = default;
  KeyLock(KeyLock&& other) noexcept = default;
  KeyLock& operator=(KeyLock&&) = delete;
  ~KeyLock();

  static KeyLock acquire(const Folder& root, const std::string& digest_hex, int wait_ms);
  State state() const { return state_; }

 private:
  support::Fd file_;
  int temp_ = -1;
  std::string name_;
  State state_ = State::Unavailable;
};

}  // namespace fastjit::cache
