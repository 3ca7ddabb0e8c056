#pragma once
// Keeps the cache below its limits at a cost per put that does not grow with the number of entries: totals are kept in
// <root>/usage, and the folders are read only when a limit is passed (then down to 90 %), once a day, or when it is
// lost. Totals are at least what the folders hold: puts add to them, and only reading the folders makes them less. An
// entry that its writer has not added yet is all that they may lack, so the limits are passed by no more entries than
// there are writers.
#include <cstdint>

#include "cache/root.h"

namespace fastjit::cache {

/// None, unless they are given: settings.def has those of a process.
struct Limits {
  int64_t max_bytes = INT64_MAX, max_entries = INT64_MAX;
};

/// Adds what was put to the totals, and collects when that is due. False when another process kept the totals for
/// itself for `wait_ms`: then nothing was added.
struct Added {
  int64_t entries = 0, bytes = 0;
};
bool account(const Folder& root, const Limits& limits, const Added& added, int wait_ms);

/// Reads every folder, removes the least recently used entries above the limits, what crashed writers left, and sums up
/// again. True when it ran (another process may be at it).
bool collect(const Folder& root, const Limits& limits);

/// Removes files of crashed writers that are older than an hour.
void sweep_temp(const Folder& root);

/// Removes `name` in `folder` if it is still the file that `judged` describes.
bool unlink_if_same(int folder, const char* name, const struct stat& judged);

}  // namespace fastjit::cache
