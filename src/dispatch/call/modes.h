#pragma once
// Everything ambient that changes what an operator does, read in one go at entry.
#include <cstdint>
#include <string>

namespace fastjit::dispatch {

struct Modes {
  uint64_t included = 0,
           excluded = 0;  // thread-local dispatch keys: inference, autocast, dispatch modes, functorch, tracing
  uint32_t bits = 0;      // grad, forward grad, inference, torch-function state, determinism, library switches
  uint16_t default_dtype = 0;
  uint16_t autocast = 0;  // low byte: on the CPU, high byte: on CUDA; the dtype, and whether it is on
  uint32_t library = 0;   // changes with the kernels that Python code registers for operators
  bool operator==(const Modes&) const = default;

  bool grad() const { return bits & 1; }
};

struct ThisThread;

/// The current modes of this thread; about 10 ns.
Modes current_modes(const ThisThread& thread) noexcept;
Modes current_modes() noexcept;

/// Null if a program may be recorded and run under `modes`, else what is in the way: "a dispatch mode is active".
const char* unusual(const Modes& modes) noexcept;

/// What differs, in words: "grad mode was off, is on".
std::string difference(const Modes& then, const Modes& now);

/// Remembers this thread's dispatch keys as the usual ones; called once at import.
void init_modes();

}  // namespace fastjit::dispatch
