#include "cache/lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

namespace fastjit::cache {

/// Whether the locked file is still the one under its name: the former holder removes the file before it unlocks.
static bool still_there(int file, int dir, const std::string& name) {
  struct stat mine, there;
  return fstat(file, &mine) == 0 && fstatat(dir, name.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0 &&
         mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
}

KeyLock KeyLock::acquire(const Root& root, const std::string& digest_hex, int wait_ms) {
  using Clock = std::chrono::steady_clock;
  KeyLock lock;
  if (!root.temp || root.network) return lock;
  lock.temp_ = root.temp.get();
  lock.name_ = digest_hex + ".lock";
  const auto until = Clock::now() + std::chrono::milliseconds(wait_ms);
  auto pause = std::chrono::microseconds(200);
  for (;;) {
    if (!lock.file_) {
      lock.file_ = support::Fd(openat(lock.temp_, lock.name_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
      if (!lock.file_) return lock;
    }
    if (flock(lock.file_.get(), LOCK_EX | LOCK_NB) == 0) {
      if (still_there(lock.file_.get(), lock.temp_, lock.name_)) {
        lock.state_ = State::Held;
        return lock;
      }
      lock.file_ = support::Fd();
      continue;
    }
    if (errno != EWOULDBLOCK && errno != EINTR) return lock;
    if (Clock::now() >= until) {
      lock.state_ = State::TimedOut;
      return lock;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(5000));
  }
}

KeyLock::~KeyLock() {
  if (!file_ || state_ != State::Held) return;
  unlinkat(temp_, name_.c_str(), 0);
  flock(file_.get(), LOCK_UN);  // a forked child may hold a copy of the descriptor: close alone would not unlock
}

}  // namespace fastjit::cache
