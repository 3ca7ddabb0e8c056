#pragma once
// Keeps the cache below its limits at a cost per put that does not grow with the number of entries: totals are kept in
// <root>/usage, and the folders are read only when a limit is passed (then down to 90 %), once a day, or when it is
// lost.
#include <cstdint>

#include "cache/root.h"

namespace fastjit::cache {

struct Limits {
  int64_t max_bytes = 1LL << 30;
  int64_t max_entries = 16384;
};

/// Adds to the totals after a put or a removal, and collects when that is due. Never blocks: totals that cannot be
/// written now are carried to the next call. `carry` belongs to the store.
struct Delta {
  int64_t entries = 0, bytes = 0;
};
void account(const Root& root, const Limits& limits, Delta& carry);

/// Reads every folder, removes the least recently used entries above the limits, files of crashed writers older than an
/// hour, and sums up again. True when it ran (another process may be at it).
bool collect(const Root& root, const Limits& limits);

/// Removes `name` in `folder` if it is still the file that `judged` describes.
bool unlink_if_same(int folder, const char* name, const struct stat& judged);

}  // namespace fastjit::cache
