#pragma once
// What happened, counted in this process and in <root>/stats: a log of lines "kind id count seconds\n", appended with
// one write each. A line may be lost or torn; readers skip what does not parse.
#include <array>
#include <cstdint>

#include "cache/entry.h"
#include "cache/root.h"

namespace fastjit::cache {

struct Counters {
  uint64_t loads = 0;  // from disk
  uint64_t compiles = 0;
  uint64_t evicted = 0;
  std::array<uint64_t, kFaultCount> faults{};
};

Counters counters();  // of this process
void reset_counters();

/// `root` may be null: then only this process counts.
void count_load(const Folder* root, const std::string& digest_hex);
void count_compile(const Folder* root, const std::string& digest_hex);
void count_fault(const Folder* root, Fault fault);
void count_evicted(const Folder* root, uint64_t entries);

inline constexpr int64_t kStatsMaxBytes = 2 << 20;

/// Adds up equal lines and keeps the newest half of kStatsMaxBytes. Lines appended meanwhile may be lost.
void compact_stats(const Folder& root);

}  // namespace fastjit::cache
