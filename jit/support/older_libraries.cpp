// Functions that are newer than the oldest system that FastJIT runs on (manylinux_2_34: glibc 2.34, libstdc++ of GCC
// 11), and that a newer compiler, or an LLVM that was built with one, asks for. The linker takes these hidden
// definitions before the system's (cmake/jit.cmake names them).
#include <pthread.h>
#include <sys/random.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#define FASTJIT_INSTEAD_OF(symbol) __asm__(symbol) __attribute__((visibility("hidden")))

extern "C" {
// glibc 2.36. LLVM names temporary files with it.
std::uint32_t fastjit_arc4random() FASTJIT_INSTEAD_OF("arc4random");

// std::condition_variable::wait(std::unique_lock<std::mutex>&) in the version of GCC 12, which may be cancelled.
void fastjit_wait(std::condition_variable* self, std::unique_lock<std::mutex>* lock)
    FASTJIT_INSTEAD_OF("_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE");
}

std::uint32_t fastjit_arc4random() {
  std::uint32_t value = 0;
  ssize_t got = -1;
  do {
    got = getrandom(&value, sizeof value, 0);
  } while (got < 0 && errno == EINTR);
  if (got == static_cast<ssize_t>(sizeof value)) {
    return value;
  }
  // A sandbox forbids it, and those who ask cannot be refused.
  return static_cast<std::uint32_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

void fastjit_wait(std::condition_variable* self, std::unique_lock<std::mutex>* lock) {
  pthread_cond_wait(self->native_handle(), lock->mutex()->native_handle());
}
