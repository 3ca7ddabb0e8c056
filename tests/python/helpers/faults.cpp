// Loaded before a process by the tests: memory that runs out where one library asks for it, and a clock that is ahead.
#include <time.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <new>

extern "C" {
void* __libc_malloc(size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
int __clock_gettime(clockid_t, struct timespec*);
}

namespace {

std::atomic<uintptr_t> from{0}, to{0};
std::atomic<long> left{0};
std::atomic<long> ahead{0};

/// Whether this request is the one that fails: the n-th that code between two addresses makes.
bool fails(void* caller) {
  const auto address = reinterpret_cast<uintptr_t>(caller);
  if (address < from || address >= to || left <= 0 || --left != 0) return false;
  errno = ENOMEM;
  return true;
}

/// What operator new does: the handler may end it, or find memory.
template <class Take>
void* take_or_throw(Take take, void* caller) {
  for (;;) {
    void* block = fails(caller) ? nullptr : take();
    if (block) return block;
    const std::new_handler handler = std::get_new_handler();
    if (!handler) throw std::bad_alloc();
    handler();
  }
}

void* take(size_t size, void* caller) {
  return take_or_throw([=] { return __libc_malloc(size ? size : 1); }, caller);
}

void* take(size_t size, std::align_val_t align, void* caller) {
  return take_or_throw([=] { return __libc_memalign(static_cast<size_t>(align), size ? size : 1); }, caller);
}

template <class... Args>
void* take_or_null(Args... args) noexcept {
  try {
    return take(args...);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

}  // namespace

#define CALLER __builtin_return_address(0)
#define EXPORT __attribute__((visibility("default"), noinline))

extern "C" {
EXPORT void fail_request(uintptr_t begin, uintptr_t end, long number) {
  from = begin;
  to = end;
  left = number;
}
EXPORT void set_clock_ahead(long seconds) { ahead = seconds; }

EXPORT void* malloc(size_t size) { return fails(CALLER) ? nullptr : __libc_malloc(size); }
EXPORT void* realloc(void* block, size_t size) { return fails(CALLER) ? nullptr : __libc_realloc(block, size); }
EXPORT int clock_gettime(clockid_t clock, struct timespec* time) {
  const int result = __clock_gettime(clock, time);
  if (clock == CLOCK_MONOTONIC_COARSE) time->tv_sec += ahead;
  return result;
}
}

EXPORT void* operator new(size_t size) { return take(size, CALLER); }
EXPORT void* operator new[](size_t size) { return take(size, CALLER); }
EXPORT void* operator new(size_t size, const std::nothrow_t&) noexcept { return take_or_null(size, CALLER); }
EXPORT void* operator new(size_t size, std::align_val_t align) { return take(size, align, CALLER); }
EXPORT void* operator new(size_t size, std::align_val_t align, const std::nothrow_t&) noexcept {
  return take_or_null(size, align, CALLER);
}
