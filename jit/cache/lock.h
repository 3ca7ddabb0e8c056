#pragma once
// One compiler a key, across processes. The lock is advisory and only saves work: without it entries are still right.
#include "cache/root.h"

namespace fastjit::cache {

/// flock on <root>/tmp/<digest>.lock. It dies with its holder, and the holder removes the file.
class KeyLock {
 public:
  enum class State { Held, TimedOut, Unavailable };

  KeyLock() = default;
  KeyLock(KeyLock&& other) noexcept = default;
  KeyLock& operator=(KeyLock&&) = delete;
  ~KeyLock();

  static KeyLock acquire(const Root& root, const std::string& digest_hex, int wait_ms);
  State state() const { return state_; }

 private:
  support::Fd file_;
  int temp_ = -1;
  std::string name_;
  State state_ = State::Unavailable;
};

}  // namespace fastjit::cache
