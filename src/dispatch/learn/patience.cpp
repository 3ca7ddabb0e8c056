#include "dispatch/learn/patience.h"

#include <algorithm>

#include "dispatch/call/function.h"
#include "dispatch/call/value_tree.h"
#include "support/env.h"

namespace fastjit::dispatch {
namespace {

using Cause = Patience::Cause;

constexpr uint64_t kUnused = 8;  // recordings in a row that may serve no second call
constexpr uint64_t kFirstStretch = 16, kLongestStretch = 4096;
constexpr uint64_t kStale = 16;    // times max_variants: calls after which a variant that served none of them may go
constexpr uint64_t kObjects = 64;  // recordings in a row of calls of a method, of so many objects at least
constexpr size_t kMostMet = 1024;

// Within so many, a call that comes again would have been a hit if it had been recorded.
size_t most_met(const Function& function) { return std::min<size_t>(function.options.max_variants, kMostMet); }

// Arguments are new objects each time, which soon are gone.
bool brings_new_objects(const Function& function) {
  constexpr uint64_t kDead = 4;
  return function.variants.dead() >= kDead;
}

const Patience::Met* met_before(const Function& function, const Coming& what) {
  const auto& met = function.patience.met;
  const auto found = std::ranges::find(met, what.hash, &Patience::Met::hash);
  if (found == met.end()) return nullptr;
  if (what.of_values) return &*found;
  // Where a variant has these arguments, it is something else that changes.
  return function.variants.has_arguments(what.hash) || brings_new_objects(function) ? nullptr : &*found;
}

bool is_back(const Function& function) {
  return function.stats.hits != function.patience.hits && function.variants.unused() < kUnused;
}

// Whether the last recordings speak against one more. Each object of a method is given its own, unless objects come and
// go; and what has come before may fill the room that there is.
bool is_unused(const Function& function, const CallSpec& spec, bool has_come) {
  const Variants& variants = function.variants;
  const bool of_object = Variants::owner(spec) && !brings_new_objects(function);
  const uint64_t room = std::max<uint64_t>(of_object ? kObjects : kUnused, function.options.max_variants);
  if (variants.unused() >= (has_come || of_object ? room : kUnused)) return true;
  return of_object && !has_come && variants.unused(spec) >= kUnused;
}

uint64_t stale_after(const Function& function) { return kStale * function.options.max_variants; }

}  // namespace

Coming coming(const Function& function, const ValueMiss* miss, PyObject* const* args, Py_ssize_t nargs,
              PyObject* kwnames) noexcept {
  PyObject* const first = nargs > 0 ? args[0] : nullptr;
  if (miss && !miss->path.empty()) return {hash_of(miss->path), true, first};
  return {argument_hash(args, nargs, kwnames, function.by_content), false, first};
}

bool in_stretch(const Function& function, uint64_t call, const Coming& what) {
  const Patience& patience = function.patience;
  if (call >= patience.until) return false;
  if (patience.cause == Cause::Unsound) return true;
  if (patience.owner && patience.owner != what.first) return false;
  return !met_before(function, what) && (patience.cause == Cause::Full || !is_back(function));
}

bool skips_values(const Function& function, uint64_t call) {
  const Patience& patience = function.patience;
  return call < patience.until && patience.cause == Cause::Unused && patience.unknown_values >= kUnused;
}

Patience::Cause why_wait(const Function& function, const CallSpec& spec, uint64_t call, const Coming& what) {
  const Patience& patience = function.patience;
  const Patience::Met* met = met_before(function, what);
  if (is_unused(function, spec, met) && !(patience.tries && call >= patience.until)) return Cause::Unused;
  const Variant* victim = function.variants.victim(spec, room_of(function));
  if (!victim || !victim->hits || call - victim->used > stale_after(function)) return Cause::None;
  return met && met->call > victim->used ? Cause::None : Cause::Full;
}

std::string stretch_reason(const Function& function, Patience::Cause cause, const Varied& varied,
                           const CallSpec& spec) {
  const Patience& patience = function.patience;
  if (patience.cause == cause && patience.stretches) return patience.why;
  const Room room = room_of(function);
  const std::string limit = function.variants.fills(spec, room)
                                ? "variant limit (" + std::to_string(room.variants) + ") reached"
                                : "limit of FASTJIT_VARIANT_BYTES (" + std::to_string(room.bytes) + ") reached";
  return (cause == Cause::Unused ? "its last recordings served no second call" : limit) +
         (varied.what.empty() ? "" : ": " + varied.what);
}

std::string way_out(const Function& function, Patience::Cause cause, const Varied& varied, const CallSpec& spec) {
  if (cause == Cause::Unused) return varied.advice;
  const bool by_count = function.variants.fills(spec, room_of(function));
  return std::string("raise ") + (by_count ? "max_variants" : "FASTJIT_VARIANT_BYTES") + ", or " + varied.advice;
}

bool begin_stretch(Function& function, Patience::Cause cause, const Varied& varied, const CallSpec& spec) {
  Patience& patience = function.patience;
  const uint64_t call = function.stats.calls;
  patience.why = stretch_reason(function, cause, varied, spec);
  if (patience.cause == cause && call < patience.until) return false;
  if (patience.cause != cause) patience.stretches = 0;
  patience.cause = cause;
  patience.owner = cause == Cause::Full ? Variants::owner(spec) : nullptr;
  patience.tries = cause == Cause::Unused;
  const Variant* victim = cause == Cause::Full ? function.variants.victim(spec, room_of(function)) : nullptr;
  patience.until = call + std::min(kLongestStretch, kFirstStretch << std::min(patience.stretches++, 20u));
  if (victim) patience.until = std::max(call + kFirstStretch, victim->used + stale_after(function));
  // Calls that differ once, as in the first round over sizes that come again, are not worth a word.
  return cause == Cause::Full || patience.stretches > 1;
}

void end_stretch(Function& function) {
  Patience& patience = function.patience;
  if (function.stats.calls >= patience.until) patience.tries = false;
  if (function.variants.unused() >= kUnused) return;  // it is recorded to see, or because it has come before
  patience.cause = Cause::None;
  patience.until = 0;
  patience.stretches = 0;
}

void wait(Function& function, const Coming& what) {
  Patience& patience = function.patience;
  const Patience::Met now{what.hash, function.stats.calls};
  patience.hits = function.stats.hits;
  const auto known = std::ranges::find(patience.met, what.hash, &Patience::Met::hash);
  if (known != patience.met.end()) return void(*known = now);
  if (patience.met.size() < most_met(function)) return patience.met.push_back(now);
  patience.met[patience.oldest] = now;
  patience.oldest = (patience.oldest + 1) % patience.met.size();
}

void expect_calls(Function& function) {
  function.variants.forgive();
  if (function.patience.cause == Cause::Unsound) return;
  const bool warned = function.patience.warned;
  function.patience = Patience();
  function.patience.warned = warned;
}

void stretch_unsound(Function& function, uint64_t until, const std::string& why) {
  Patience& patience = function.patience;
  patience.cause = Cause::Unsound;
  patience.until = until;
  patience.why = "an earlier recording was unsound: " + why;
  patience.owner = nullptr;
  patience.stretches = 0;
}

Room room_of(const Function& function) {
  // Of one function, as max_variants is: with a limit of the process, a function whose calls differ would drive out
  // programs of others, which serve.
  static const auto bytes = static_cast<size_t>(support::setting_int(support::Setting::VariantBytes));
  return {function.options.max_variants, bytes};
}

}  // namespace fastjit::dispatch
