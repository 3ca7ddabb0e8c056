#pragma once
// The object that @fastjit returns: a callable with vectorcall that compares the call with what it knows and runs a
// program, or goes the slow way (learn/learn.cpp).
#include <Python.h>

#include <array>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "dispatch/call/captured.h"
#include "dispatch/call/derived.h"
#include "dispatch/call/modes.h"
#include "dispatch/call/parts.h"
#include "dispatch/call/recipe.h"
#include "dispatch/call/replay.h"
#include "dispatch/call/script_slots.h"
#include "dispatch/call/variant.h"
#include "dispatch/call/variants.h"
#include "dispatch/learn/patience.h"
#include "dispatch/run/executor.h"
#include "observe/observe.h"
#include "pass/pass.h"
#include "runtime/engine.h"

namespace fastjit::dispatch {

enum class OnUnsupported : uint8_t { Warn, Eager, Error };
enum class OnMiss : uint8_t { Compile, Background };

/// Which sizes are symbols from the first recording on.
enum class Dynamic : uint8_t { None, Found, All };  // Found: those that differ, from their second value on

struct Options {
  std::string name;  // "module.qualname"
  bool pure = false;
  plan::Numerics numerics = plan::Numerics::Eager;
  OnUnsupported on_unsupported = OnUnsupported::Warn;
  uint32_t max_variants = 64;  // of one bound object, if the function is a method
  Dynamic dynamic = Dynamic::Found;
  std::map<std::string, std::vector<int64_t>> dynamic_dims;  // of parameters, beside those that are found
  runtime::CacheMode cache = runtime::CacheMode::On;
  OnMiss on_miss = OnMiss::Compile;
  double verify = 0;    // the fraction of hits that is compared with eager
  std::string refused;  // not empty: why no call is recorded
};

struct Stats {
  uint64_t calls = 0, hits = 0, misses = 0, compiles = 0, memory_hits = 0, disk_hits = 0;
  uint64_t fallen = 0;                        // calls that fallbacks counts
  std::map<std::string, uint64_t> fallbacks;  // reason -> calls that ran eagerly because of it
  double compile_ms = 0, record_ms = 0;
  uint64_t verified = 0, mismatches = 0;
  uint64_t operators = 0;  // calls of operators that hits stood for
};

inline void count_fallback(Stats& stats, const std::string& reason) {
  ++stats.fallen;
  ++stats.fallbacks[reason];
}

struct Function {
  PyObject* callable = nullptr;  // owned; what is recorded
  PyObject* original = nullptr;  // owned; what runs eagerly, where `callable` was made of it
  std::unique_ptr<ScriptSlots> slots;
  Options options;
  Variants variants;
  Stats stats;
  ByContent by_content;
  Patience patience;
  std::vector<observe::NumberPlace> numbers;  // that recordings found, whatever became of them
  uint32_t unsound_recordings = 0, unsound_in_a_row = 0;
  std::string state;  // what the last recordings read and wrote; one after the other
  uint32_t state_recordings = 0, state_place_recordings = 0;  // of any such place, and of this one
  std::set<std::string> fixed_ints;  // arguments, ints that varied and that programs held as constants
  uint32_t refused_loops = 0;        // recordings with loops that were no loops of a program for any number of rounds
  std::string fixes_sizes;  // not empty: why a program for any size could not be made, so that each is recorded
  uint64_t state_hits = 0;  // hits before the last of them
  size_t max_values = capture::kMaxValues;  // that a recording may read out of tensors
  Parts parts;                              // what it is made of where it cannot be one program
  bool is_part = false;                     // of another function: it has none of its own
  bool warned = false;

  PyObject* eager() const { return original ? original : callable; }
};

/// The Python object.
struct FunctionObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* dict;
  PyObject* weakrefs;
  Function* function;
};

/// While it lives, this thread records.
struct RecordingFlag {
  RecordingFlag();
  ~RecordingFlag();
};

struct ValueMiss;

/// The slow way: no variant matched, or (with `miss`) none for the values that the call read. Runs the function (that
/// is its result) and learns from it where possible.
PyObject* learn(FunctionObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames, const Modes& modes,
                const ValueMiss* miss = nullptr);

/// Whether the reason of a variant to stay eager may have passed by this call of the function, which may be recorded.
bool may_retire(const Function& function, const Variant& variant, uint64_t call);
/// Drops such a variant. False: it stays.
bool retire(Function& function, const std::shared_ptr<Variant>& variant);

/// Whether the variant is for this call, but for the values that it reads out of tensors. `tensors` and `numbers` have
/// room for its spec's and get the call's.
bool serves(const Variant& variant, const Modes& modes, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
            PyObject** tensors, PyObject** numbers) noexcept;

/// FASTJIT_CHECK=record: runs the function under both observers although `known` serves the call, and raises an
/// AssertionError if the recording differs from the one that `known` was made of. Returns the function's own result.
PyObject* check_recording(FunctionObject* self, const Variant& known, PyObject* const* numbers, PyObject* const* args,
                          size_t nargsf, PyObject* kwnames);

/// Runs the Python function, which records nothing now, and counts why.
PyObject* run_in_stretch(Function& function, PyObject* const* args, size_t nargsf, PyObject* kwnames);
/// Runs the Python function and counts why.
PyObject* run_eager(Function& function, const std::string& reason, PyObject* const* args, size_t nargsf,
                    PyObject* kwnames);
/// The same of a function that cannot be one program: its parts may be.
PyObject* run_in_parts(Function& function, const std::string& reason, PyObject* const* args, size_t nargsf,
                       PyObject* kwnames);
/// A hit of the variant has ended.
void count_hit(Function& function, Variant& variant);

/// Counts a call that is left eager for a while, and reports it. With `warns`, the first of the function warns, unless
/// on_unsupported="eager". False with an exception set: warnings are errors.
bool note_stretch(Function& function, const std::string& reason, const std::string& advice, bool warns);
/// Counts a fallback and, the first time, warns or raises as `on_unsupported` says. False with an exception set if it
/// raises. `may_pass`: the next call is recorded too; what a library does at its first use is not worth a warning then.
bool note_fallback(Function& function, const std::string& reason, const std::string& advice, bool may_pass = false);

c10::Device device_of(const Variant& variant);

using Objects = c10::SmallVector<PyObject*, 8>;  // per program input
/// The same, unpacked.
struct Inputs : c10::SmallVector<const at::Tensor*, 8> {
  c10::SmallVector<char*, 8> first_elements;  // of each, where known: see run(). Empty: of none
};

/// Runs a matching variant. Returns null without an exception if the call must restart in eager (`why` says the
/// reason); then everything is as it was before. `is_just_found`: nothing has run since serves() said yes.
PyObject* run_variant(const Variant& variant, PyObject* const* arg_tensors, PyObject* const* numbers, std::string& why,
                      ValueCheck* check = nullptr, bool is_just_found = false);
/// The same on tensors of the caller's choice, none of which shares memory with one that is written. Effects on Python
/// objects are not made. `targets`: those of the call's spec.
/// With `check`: also null, and `why` empty, where the check stopped the program.
PyObject* run_on_tensors(const Variant& variant, const Objects& objects, const Inputs& inputs, PyObject* const* numbers,
                         PyObject* const* targets, std::string& why, ValueCheck* check = nullptr);
/// Why run_variant() would restart the call in eager before its first step; empty: it would not. Runs nothing.
std::string why_not_run(const Variant& variant, PyObject* const* arg_tensors, PyObject* const* numbers);
/// FASTJIT_CHECK=record, unless something else (Dynamo) evaluates Python frames now, whose own code would be recorded.
bool checks_recordings();
/// Whether a written tensor shares memory with another: such a call runs eagerly.
bool overlaps(const Variant& variant, PyObject* const* arg_tensors);

/// If `variant` would not serve the call, says so in words ("argument 0 was f32[4], is f32[8]").
std::string explain(const Function& function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);

PyTypeObject* make_function_type(PyObject* module);

/// A compiled function that is a part of another one with these options; null with an exception set.
PyObject* new_part(PyObject* callable, PyObject* module, const Options& options);

/// What a compiled function records, borrowed; null for any other object, and where guards of a caller's would not see
/// all that it reads.
PyObject* wrapped_callable(PyObject* object);

}  // namespace fastjit::dispatch
