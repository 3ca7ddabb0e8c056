// The slow way of a call: run it eagerly, watched, and turn what was seen into a variant.
#include <pybind11/pybind11.h>

#include <algorithm>

#include "dispatch/call/function.h"
#include "dispatch/call/value_tree.h"
#include "dispatch/learn/compile.h"
#include "dispatch/learn/messages.h"
#include "dispatch/learn/recording.h"
#include "dispatch/learn/refuse.h"
#include "python/stance.h"
#include "support/error.h"

namespace fastjit::dispatch {
namespace {

constexpr uint64_t kFirstRetry = 16;  // calls after an unsound recording before the next one; doubles each time
constexpr uint32_t kMostUnsound = 3;  // such recordings in a row before other calls are not recorded for a while either

uint64_t next_try(Function& function) {
  return function.stats.calls + (kFirstRetry << std::min(function.unsound_recordings++, 20u));
}

// One variant more; others may go.
void keep(Function& function, const std::shared_ptr<Variant>& variant) {
  function.variants.add(variant, function.stats.calls);
  function.variants.make_room(*variant, room_of(function));
}

// The recording stays a variant of its own: calls like it go straight to eager, until the function is recorded again.
// Where values of tensors decided, only calls that read the same are like it.
bool install_unsound(Recording& recording, const ValueMiss* miss) {
  Function& function = recording.function;
  const bool may_pass = recording.is_first_use(recording.observation.in_library);
  recording.variant->reason = recording.unsound;
  recording.variant->retry_at = may_pass ? function.stats.calls + 1 : next_try(function);
  const uint64_t retry_at = recording.variant->retry_at;
  const bool any_size = recording.variant->program.sized != nullptr;  // calls at other sizes may be compiled
  recording.variant->drop_program();
  recording.variant->guards.captured.clear();
  const std::string reason = recording.unsound, advice = recording.advice;
  recording.variant->guards.values = miss ? miss->path : std::vector<capture::ValueGuard>();
  if (any_size) function.fixes_sizes = recording.unsound;
  const bool kept = !any_size && (miss || !recording.captured_graph.reads_values);
  if (kept) keep(function, recording.variant);
  if (++function.unsound_in_a_row > kMostUnsound || !kept) stretch_unsound(function, retry_at, reason);
  return note_fallback(function, reason, advice, may_pass);
}

// The program read other values than eager, from the same tensors.
bool reads_otherwise(const Recording& recording, const ValueMiss* miss) {
  return miss && std::ranges::any_of(miss->tried, [&](const auto& variant) {
           const Sized* sized = variant->program.sized.get();  // what it finds is compared apart
           return !(sized && sized->has_late()) && same_values(variant->guards.values, recording.captured_graph.guards);
         });
}

// The call gave something that it had read another value, so that the facts of this recording fail from now on. A flag
// settles and a cache is filled once; where it goes on, the function runs eagerly. True: nothing is kept.
bool is_passing(Recording& recording) {
  constexpr uint32_t kSame = 2, kSameConstant = 8, kAny = 16;  // recordings without a hit between them
  Function& function = recording.function;
  const observe::Observation& seen = recording.observation;
  if (seen.state.empty() || function.stats.hits != function.state_hits || function.state_recordings == 0)
    function.state_recordings = function.state_place_recordings = 0;
  if (seen.state.empty()) return false;
  if (function.state != seen.state) function.state_place_recordings = 0;
  function.state = seen.state;
  function.state_hits = function.stats.hits;
  const bool goes_on = ++function.state_place_recordings > (seen.state_is_constant ? kSameConstant : kSame) ||
                       ++function.state_recordings > kAny;
  if (goes_on) recording.unsound = "state: " + seen.state + " is read and written";
  return !goes_on && !seen.state_is_constant;
}

struct Failure {
  std::string reason, advice;
};

// What the exception that is handled now says of a compile.
Failure failure() {
  try {
    throw;
  } catch (const support::Unable& error) {
    return {"it could not be compiled (" + support::first_line(error) + ")", error.way_out()};
  } catch (const std::bad_alloc&) {
    return {"it could not be compiled (there was no memory left)", "free memory, or give the process more"};
  } catch (const std::exception& error) {
    return {"it could not be compiled (" + support::first_line(error) + ")", "please report it"};
  }
}

// Compiles what was recorded, now or later.
void make_variant(Recording& recording, const ValueMiss* miss) {
  Function& function = recording.function;
  if (function.options.on_miss == OnMiss::Background) {
    compile_later(recording);
    recording.variant->pending->has_path = miss != nullptr;
    if (miss) recording.variant->guards.values = miss->path;
  } else {
    compile(recording);
    function.unsound_in_a_row = 0;
  }
  const Variant& variant = *recording.variant;
  if (const WayBack* back = variant.pending ? variant.pending->back.get() : variant.program.back.get())
    back->watch(recording.results);
  keep(function, recording.variant);
}

PyObject* record(FunctionObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames, const Modes& modes,
                 const ValueMiss* miss) {
  Function& function = *self->function;
  Recording recording(function, modes);
  recording.varying = std::exchange(function.numbers, {});
  const auto known = function.variants.all();  // the call may drop some
  for (const auto& variant : known) {
    recording.known_calls.push_back(&variant->key.spec);
    if (variant->guards.facts) variant->guards.facts->varying(recording.varying);
  }
  recording.variant->arguments = argument_hash(args, PyVectorcall_NARGS(nargsf), kwnames, function.by_content);
  PyObject* result = observe_call(recording, args, nargsf, kwnames);
  function.numbers = std::move(recording.observation.numbers);
  if (!result) return function.variants.count_recording(), nullptr;
  if (miss && miss->is_of_other_sizes) miss = nullptr;  // it has read what others have that were tried
  const bool was_whole = recording.unsound.empty() || recording.observation.interrupted;
  if (was_whole && is_passing(recording)) return result;
  if (recording.unsound.empty() && reads_otherwise(recording, miss))
    recording.unsound = "the value of " + miss->path.back().label + " is not the same each time it is computed";
  if (recording.unsound.empty()) {
    try {
      make_variant(recording, miss);
      return result;
    } catch (const pybind11::error_already_set&) {
      Py_DECREF(result);
      throw;
    } catch (...) {
      Failure why = failure();
      recording.unsound = std::move(why.reason);
      recording.advice = std::move(why.advice);
    }
  }
  if (install_unsound(recording, miss)) return result;
  Py_DECREF(result);
  return nullptr;
}

// A pending variant that could not be compiled stays as one that could not be at once (install_unsound).
bool stays_eager(Function& function, const std::shared_ptr<Variant>& variant, const Pending& pending, Failure why) {
  function.variants.drop([&](const Variant& other) { return &other == variant.get(); });
  variant->reason = why.reason;
  variant->retry_at = next_try(function);
  const bool any_size = variant->program.sized != nullptr;
  variant->drop_program();
  variant->guards.captured.clear();
  if (any_size) function.fixes_sizes = why.reason;
  const bool kept = !any_size && (pending.has_path || !pending.reads_values);
  if (kept) keep(function, variant);
  if (++function.unsound_in_a_row > kMostUnsound || !kept) stretch_unsound(function, variant->retry_at, why.reason);
  return note_fallback(function, why.reason, why.advice);
}

// A call with wrong arguments says what eager says, and nothing else.
PyObject* eager_because(Function& function, const std::string& why, const std::string& advice, PyObject* const* args,
                        size_t nargsf, PyObject* kwnames) {
  if (function.options.on_unsupported == OnUnsupported::Error) {
    note_fallback(function, why, advice);
    return nullptr;
  }
  PyObject* result = run_in_parts(function, "", args, nargsf, kwnames);
  if (!result || note_fallback(function, why, advice)) return result;
  Py_DECREF(result);
  return nullptr;
}

// The call begins a stretch, or stays in the one that there is.
PyObject* leave_eager(Function& function, Patience::Cause cause, const CallSpec& spec, const ValueMiss* miss,
                      PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  static const std::vector<capture::ValueGuard> none;
  const std::vector<std::string> names = argument_names(function.callable, PyVectorcall_NARGS(nargsf), kwnames);
  const Varied varied = most_varied(function, spec, names, miss ? miss->path : none);
  const bool warns = begin_stretch(function, cause, varied, spec);
  const std::string why = function.patience.why, advice = way_out(function, cause, varied, spec);
  PyObject* result = run_in_parts(function, "", args, nargsf, kwnames);
  if (!result || note_stretch(function, why, advice, warns)) return result;
  Py_DECREF(result);
  return nullptr;
}

// A path of many values is a program where it comes again, as that of a decoder does. Where each call takes another
// one, as a solver's does whose steps adapt, only parts of the function come again, and they are found where the limit
// is passed.
void limit_values(Function& function) {
  constexpr ptrdiff_t kTries = 2;
  if (function.max_values == capture::kFewValues) return;
  const auto is_long = [](const Variant& variant) {
    return variant.guards.values.size() > capture::kFewValues && variant.hits == 0;
  };
  const auto all = function.variants.all();
  if (std::ranges::count_if(all, [&](const auto& variant) { return is_long(*variant); }) < kTries) return;
  function.max_values = capture::kFewValues;
  function.variants.drop(is_long);
}

// Of a call that raised. What the function was made of has words of its own for arguments that do not fit, in which
// case no frame of the function has begun.
PyObject* error_of_original(const Function& function, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  if (traceback || !PyErr_GivenExceptionMatches(type, PyExc_TypeError))
    return PyErr_Restore(type, value, traceback), nullptr;
  Py_XDECREF(type);
  Py_XDECREF(value);
  return PyObject_Vectorcall(function.original, args, nargsf, kwnames);
}

// Nobody asked for a part: it costs no error, and few recordings that do not serve later calls.
const char* leaves_part_eager(const Function& function) {
  constexpr uint64_t kFree = 4, kHitsEach = 4;
  if (stance() == Stance::ErrorOnCompile) return "stance is error_on_compile";
  if (function.stats.misses >= kFree + function.stats.hits / kHitsEach) return "its calls differ from one another";
  return nullptr;
}

}  // namespace

Settled settle(Function& function, const std::shared_ptr<Variant>& variant) {
  runtime::tend_background();
  if (!variant->pending->job->done()) return Settled::Waits;
  const std::shared_ptr<Pending> pending = std::move(variant->pending);
  variant->pending = nullptr;
  try {
    install(function, *variant, *pending);
    variant->reason.clear();
    function.unsound_in_a_row = 0;
    function.variants.used(variant, function.stats.calls);
    if (variant->listed) {
      variant->bytes = bytes_of(*variant);
      function.variants.make_room(*variant, room_of(function));
    }
    return Settled::Ready;
  } catch (...) {
    return stays_eager(function, variant, *pending, failure()) ? Settled::Eager : Settled::Raises;
  }
}

bool may_retire(const Function& function, const Variant& variant, uint64_t call) {
  return variant.retry_at && call >= std::max(variant.retry_at, function.patience.until);
}

bool retire(Function& function, const std::shared_ptr<Variant>& variant) {
  if (!may_retire(function, *variant, function.stats.calls)) return false;
  function.variants.drop([&](const Variant& other) { return &other == variant.get(); });
  return true;
}

PyObject* learn(FunctionObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames, const Modes& modes,
                const ValueMiss* miss) {
  Function& function = *self->function;
  if (!function.callable) {  // the collector has taken it apart, and a finaliser calls it
    PyErr_Format(PyExc_RuntimeError, "fastjit: %s is called while it is being collected",
                 function.options.name.c_str());
    return nullptr;
  }
  if (const char* why = unusual(modes)) return run_eager(function, why, args, nargsf, kwnames);
  if (const char* why = modes.grad() ? why_no_nodes() : nullptr) return run_eager(function, why, args, nargsf, kwnames);
  if (observe::tracer_active()) return run_eager(function, "tracer active", args, nargsf, kwnames);
  if (!function.options.refused.empty()) {
    if (!function.warned || function.options.on_unsupported == OnUnsupported::Error)
      return eager_because(function, function.options.refused, "", args, nargsf, kwnames);
    return run_eager(function, function.options.refused, args, nargsf, kwnames);
  }
  if (function.is_part)
    if (const char* why = leaves_part_eager(function)) return run_eager(function, why, args, nargsf, kwnames);
  ++function.stats.misses;
  if (stance() == Stance::ErrorOnCompile) {
    PyErr_Format(
        PyExc_RuntimeError,
        "fastjit: %s would compile for a new call (%s) while the stance is 'error_on_compile'; call warmup() before",
        function.options.name.c_str(), explain(function, args, PyVectorcall_NARGS(nargsf), kwnames).c_str());
    return nullptr;
  }
  if (miss) limit_values(function);
  const Coming what = coming(function, miss, args, PyVectorcall_NARGS(nargsf), kwnames);
  if (in_stretch(function, function.stats.calls, what)) {
    wait(function, what);
    return run_in_stretch(function, args, nargsf, kwnames);
  }
  CallSpec spec;
  std::string why, advice;
  if (!spec.build(args, PyVectorcall_NARGS(nargsf), kwnames, function.by_content, why))
    return eager_because(function, why, "", args, nargsf, kwnames);
  while (compare_by_content(function, spec)) {  // what a described instance holds may be one, too
    spec = CallSpec();
    spec.build(args, PyVectorcall_NARGS(nargsf), kwnames, function.by_content, why);
  }
  why = refuse(function, spec, argument_names(function.callable, PyVectorcall_NARGS(nargsf), kwnames), advice);
  if (!why.empty()) return eager_because(function, why, advice, args, nargsf, kwnames);
  function.variants.drop_dead();
  const Patience::Cause cause = why_wait(function, spec, function.stats.calls, what);
  if (cause != Patience::Cause::None) {
    wait(function, what);
    return leave_eager(function, cause, spec, miss, args, nargsf, kwnames);
  }
  end_stretch(function);
  PyObject* result = record(self, args, nargsf, kwnames, modes, miss);
  return result || !function.original ? result : error_of_original(function, args, nargsf, kwnames);
}

}  // namespace fastjit::dispatch
