#include "backend/llvm_guard.h"

#include <llvm/Support/ErrorHandling.h>
#include <setjmp.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "support/error.h"
#include "support/log.h"

namespace fastjit::backend {
namespace {

// Several times what the largest kernels take. Where that much can be mapped, LLVM does not run out.
struct Headroom {
  const char* who;
  size_t bytes;
};
constexpr Headroom kHeadroom[] = {{"compiler", size_t{64} << 20}, {"linker", size_t{8} << 20}};
constexpr size_t kReserveBytes = size_t{256} << 10;  // for what is said once LLVM has run out

enum class End : uint8_t { None, NoMemory, Fatal };
std::atomic<End> g_end{End::None};
std::atomic<bool> g_ending{false};  // a thread is the first to end it, and says how
std::array<char, 160> g_fatal{};    // what LLVM said
std::atomic<void*> g_reserve{nullptr};

// Where the handlers go back to: over LLVM's frames, not through them. Some have no unwinding tables, so that a throw
// ends the process, and destructors of ours would destroy objects of LLVM that are half made.
thread_local jmp_buf* t_way_out = nullptr;

[[noreturn]] void leave(End end, const char* reason = "") {
  if (!g_ending.exchange(true)) {
    snprintf(g_fatal.data(), g_fatal.size(), "%s", reason);
    g_end = end;
  }
  longjmp(*std::exchange(t_way_out, nullptr), 1);
}

// Both return, and LLVM ends the process, only where it is used outside of with_llvm.
void on_bad_alloc(void*, const char*, bool) {
  if (t_way_out) leave(End::NoMemory);
}

void on_fatal_error(void*, const char* reason, bool) {
  if (t_way_out) leave(End::Fatal, reason);
}

std::atomic<std::new_handler> g_former{nullptr};

/// operator new has failed, in this thread or in another, which gets what it got without this handler.
void on_failed_new() {
  if (t_way_out) leave(End::NoMemory);
  const std::new_handler former = g_former;
  if (!former) throw std::bad_alloc();
  former();
}

/// Installed while any thread is in LLVM.
class NewHandler {
 public:
  NewHandler() {
    const std::lock_guard hold(lock());
    if (inside()++ == 0) g_former = std::set_new_handler(on_failed_new);
  }
  ~NewHandler() {
    const std::lock_guard hold(lock());
    if (--inside() == 0 && std::get_new_handler() == on_failed_new) std::set_new_handler(g_former);
  }
  NewHandler(const NewHandler&) = delete;

 private:
  // Free at every fork: who holds it holds a lock that fork() takes.
  static std::mutex& lock() {
    static auto* const lock = new std::mutex;
    return *lock;
  }
  static int& inside() {
    static int count = 0;
    return count;
  }
};

void install_handlers() {
  [[maybe_unused]] static const bool once = [] {
    llvm::install_bad_alloc_error_handler(on_bad_alloc);
    llvm::install_fatal_error_handler(on_fatal_error);
    g_reserve = std::malloc(kReserveBytes);
    return true;
  }();
}

bool can_map(size_t bytes) {
  void* block = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return block != MAP_FAILED && munmap(block, bytes) == 0;
}

std::string how_it_ended() {
  if (g_end == End::NoMemory) return "LLVM ran out of memory";
  const std::string text(g_fatal.data());
  return "LLVM gave up: " + support::printable(text.substr(0, text.find('\n')));
}

// Said once; where there was no memory even for that, the next time.
[[noreturn]] void refuse() {
  support::warn_once(
      how_it_ended() +
      "; no kernel is compiled or loaded any more in this process, and what needs a new one runs eagerly");
  throw support::Unable(how_it_ended() + ", and makes no more kernels in this process",
                        g_end == End::NoMemory ? "give the process more memory and start it again"
                                               : "start the process again, and please report it");
}

/// Runs `work`. False: a handler ended it, and what it had on its stack is lost.
bool runs_to_its_end(const std::function<void()>& work) {
  jmp_buf back;
  if (_setjmp(back) != 0) return false;
  t_way_out = &back;
  try {
    work();
  } catch (...) {
    t_way_out = nullptr;
    throw;
  }
  t_way_out = nullptr;
  return true;
}

}  // namespace

void with_llvm(Use use, const std::function<void()>& work) {
  if (g_end != End::None) refuse();
  install_handlers();
  const Headroom& needs = kHeadroom[static_cast<size_t>(use)];
  if (!can_map(needs.bytes))
    throw support::Unable("the " + std::string(needs.who) + " needs " + std::to_string(needs.bytes >> 20) +
                              " MiB of memory, and cannot get them",
                          "free memory, or raise the limit of the process (ulimit -v)");
  const NewHandler handler;
  try {
    if (runs_to_its_end(work)) return;
  } catch (const std::bad_alloc&) {
    if (!g_ending.exchange(true)) g_end = End::NoMemory;
  }
  std::free(g_reserve.exchange(nullptr));
  refuse();
}

}  // namespace fastjit::backend
