#pragma once
// When a call that no variant serves is recorded, and when it is left eager. A recording costs many times the call, and
// pays only if its variant serves later calls. So a function has stretches of calls in which it records nothing.
// Unused: its last eight recordings (of a method: of the bound object) served no second call. The stretch is of 16
// calls, then one call is recorded to see, and if that does not help, the next stretch is twice as long.
// Full: there is no room for a variant more, and even the least recently used one serves now and then. The stretch
// lasts until that one has served no call for a while, and may go. Unsound: recordings came to nothing (learn.cpp).
// Within the first two a call is recorded all the same if its arguments, or the values that it reads, have come before:
// later than the variant that has to go was used, where one has to.
#include <Python.h>

#include <cstdint>
#include <string>
#include <vector>

#include "capture/calls.h"

namespace fastjit::dispatch {

struct Function;
struct Room;
struct ValueMiss;
class CallSpec;

struct Patience {
  enum class Cause : uint8_t { None, Unused, Full, Unsound };
  Cause cause = Cause::None;    // of the last stretch
  uint64_t until = 0;           // the call of the function with which it ends
  uint32_t stretches = 0;       // in a row
  std::string why;              // of its cause
  PyObject* owner = nullptr;    // Full: the object whose calls it is for, an address; null: all calls
  bool tries = false;           // the first call after the stretch is recorded
  bool warned = false;          // of the whole function
  uint64_t hits = 0;            // of the function, when the stretch was found to go on
  uint32_t unknown_values = 0;  // calls in a row that read what no variant knows
  struct Met {
    uint64_t hash, call;
  };
  std::vector<Met> met;  // calls that were left eager, as many as there is room for variants
  size_t oldest = 0;     // where the next one goes when it is full
};

/// What is known of a call at no cost: a hash of its arguments, or where values that it read are new, of these.
struct Coming {
  uint64_t hash = 0;
  bool of_values = false;
  PyObject* first = nullptr;  // its first argument
};
Coming coming(const Function& function, const ValueMiss* miss, PyObject* const* args, Py_ssize_t nargs,
              PyObject* kwnames) noexcept;

/// Whether the function is within a stretch with this call of it, and nothing about the call ends that.
bool in_stretch(const Function& function, uint64_t call, const Coming& what);
/// Whether calls that a program with values would serve are not even begun: within an Unused stretch where the last
/// programs that were begun met values which no variant knows.
bool skips_values(const Function& function, uint64_t call);

/// Outside a stretch, or where the call may end it: None if the call is to be recorded, else why it is not.
Patience::Cause why_wait(const Function& function, const CallSpec& spec, uint64_t call, const Coming& what);

/// What of the calls kept changing, and what to do about it.
struct Varied {
  std::string what;  // "a took 9 values", "opt.lr at model.py:9 keeps changing"; empty: nothing is known
  std::string advice;
};
/// Over the variants and this call; `path`, not empty: the values that it read, of which the last is new. (explain.cpp)
Varied most_varied(const Function& function, const CallSpec& spec, const std::vector<std::string>& names,
                   const std::vector<capture::ValueGuard>& path);
/// The reason that calls in a stretch are counted under: the same for stretches in a row.
std::string stretch_reason(const Function& function, Patience::Cause cause, const Varied& varied, const CallSpec& spec);

/// What a person can do about it.
std::string way_out(const Function& function, Patience::Cause cause, const Varied& varied, const CallSpec& spec);

/// The call begins a stretch, or stays in the one that there is. True: it is worth a warning.
bool begin_stretch(Function& function, Patience::Cause cause, const Varied& varied, const CallSpec& spec);
/// The call is recorded.
void end_stretch(Function& function);
/// The call is left eager: if it comes again, that is known.
void wait(Function& function, const Coming& what);
/// Someone asks for the next calls, so that they will come again: what is known of others says nothing about them.
void expect_calls(Function& function);
/// Unsound recordings: none for all calls until then.
void stretch_unsound(Function& function, uint64_t until, const std::string& why);

Room room_of(const Function& function);

}  // namespace fastjit::dispatch
