#include "cache/lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

namespace fastjit::cache {

int lock_until(int file, Clock::time_point until) {
  auto pause = std::chrono::microseconds(200);
  while (flock(file, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return errno;
    if (Clock::now() >= until) return EWOULDBLOCK;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(5000));
  }
  return 0;
}

enum class Name { Same, Another, Unknown };

/// Whether the locked file is still the one under its name: the former holder removes the file before it unlocks.
static Name judge_name(int file, int dir, const std::string& name) {
  struct stat mine, there;
  if (fstat(file, &mine) != 0) return Name::Unknown;
  if (fstatat(dir, name.c_str(), &there, AT_SYMLINK_NOFOLLOW) != 0)
    return errno == ENOENT ? Name::Another : Name::Unknown;
  return mine.st_ino == there.st_ino && mine.st_dev == there.st_dev ? Name::Same : Name::Another;
}

KeyLock KeyLock::acquire(const Folder& root, const std::string& digest_hex, int wait_ms) {
  KeyLock lock;
  if (!root.temp || root.network) return lock;
  lock.temp_ = root.temp.get();
  lock.name_ = digest_hex + ".lock";
  const auto until = Clock::now() + std::chrono::milliseconds(wait_ms);
  do {
    lock.file_ = support::Fd(openat(lock.temp_, lock.name_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    const int error = lock.file_ ? lock_until(lock.file_.get(), until) : errno;
    if (error == EWOULDBLOCK) break;
    const Name found = error == 0 ? judge_name(lock.file_.get(), lock.temp_, lock.name_) : Name::Unknown;
    if (found == Name::Same) lock.state_ = State::Held;
    if (found != Name::Another) return lock;
  } while (Clock::now() < until);
  lock.state_ = State::TimedOut;
  return lock;
}

KeyLock::~KeyLock() {
  if (!file_ || state_ != State::Held) return;
  unlinkat(temp_, name_.c_str(), 0);
  flock(file_.get(), LOCK_UN);  // a forked child may hold a copy of the descriptor: close alone would not unlock
}

}  // namespace fastjit::cache
