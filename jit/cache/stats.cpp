#include "cache/stats.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <ctime>
#include <map>
#include <vector>

namespace fastjit::cache {

static constexpr const char* kLogName = "stats";

struct AtomicCounters {
  std::atomic<uint64_t> loads{0}, compiles{0}, evicted{0};
  std::array<std::atomic<uint64_t>, kFaultCount> faults{};
};
static AtomicCounters g_counters;

Counters counters() {
  Counters out{g_counters.loads, g_counters.compiles, g_counters.evicted, {}};
  for (size_t i = 0; i < kFaultCount; ++i) out.faults[i] = g_counters.faults[i];
  return out;
}

void reset_counters() {
  g_counters.loads = g_counters.compiles = g_counters.evicted = 0;
  for (auto& fault : g_counters.faults) fault = 0;
}

static void append(const Folder* root, std::string_view kind, std::string_view id, uint64_t count) {
  if (!root || !root->temp) return;
  constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;  // no FIFO may block
  support::Fd log(openat(root->dir.get(), kLogName, kFlags, 0600));
  if (!log) return;
  std::string line(kind);
  line.append(" ").append(id).append(" ").append(std::to_string(count)).append(" ");
  line.append(std::to_string(time(nullptr))).append("\n");
  [[maybe_unused]] const ssize_t written = write(log.get(), line.data(), line.size());
  if (lseek(log.get(), 0, SEEK_CUR) > kStatsMaxBytes) compact_stats(*root);
}

void count_load(const Folder* root, const std::string& digest_hex) {
  ++g_counters.loads;
  append(root, "load", digest_hex, 1);
}

void count_compile(const Folder* root, const std::string& digest_hex) {
  ++g_counters.compiles;
  append(root, "compile", digest_hex, 1);
}

void count_fault(const Folder* root, Fault fault) {
  ++g_counters.faults[static_cast<size_t>(fault)];
  append(root, "fault", text(fault), 1);
}

void count_evicted(const Folder* root, uint64_t entries) {
  g_counters.evicted += entries;
  append(root, "evict", "entries", entries);
}

struct Total {
  uint64_t count = 0, time = 0;
};
using Totals = std::map<std::string, Total, std::less<>>;  // "kind id"

static void add_line(Totals& totals, std::string_view line) {
  const size_t second = line.rfind(' ');
  if (second == std::string_view::npos || second == 0) return;
  const size_t first = line.rfind(' ', second - 1);
  if (first == std::string_view::npos || line.substr(0, first).find(' ') == std::string_view::npos) return;
  Total total;
  const auto number = [&](std::string_view text, uint64_t& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size();
  };
  if (!number(line.substr(first + 1, second - first - 1), total.count) || !number(line.substr(second + 1), total.time))
    return;
  Total& sum = totals[std::string(line.substr(0, first))];
  sum.count += total.count;
  sum.time = std::max(sum.time, total.time);
}

static std::string rewrite(std::string_view log) {
  Totals totals;
  for (size_t begin = 0; begin < log.size();) {
    const size_t end = std::min(log.find('\n', begin), log.size());
    add_line(totals, log.substr(begin, end - begin));
    begin = end + 1;
  }
  std::vector<const Totals::value_type*> newest;
  for (const auto& item : totals) newest.push_back(&item);
  std::ranges::stable_sort(newest, [](const auto* a, const auto* b) { return a->second.time > b->second.time; });
  std::string out;
  for (const auto* item : newest) {
    const std::string line =
        item->first + " " + std::to_string(item->second.count) + " " + std::to_string(item->second.time) + "\n";
    if (out.size() + line.size() > kStatsMaxBytes / 2) break;
    out += line;
  }
  return out;
}

void compact_stats(const Folder& root) {
  if (!root.temp) return;
  support::Fd log = support::open_read(root.dir.get(), kLogName);
  struct stat info, there;
  if (!log || flock(log.get(), LOCK_EX | LOCK_NB) != 0 || fstat(log.get(), &info) != 0) return;
  if (fstatat(root.dir.get(), kLogName, &there, AT_SYMLINK_NOFOLLOW) != 0 || there.st_ino != info.st_ino) return;
  // Never reads more than a few times the limit: what a damaged log holds beyond is dropped.
  std::string bytes(static_cast<size_t>(std::min<int64_t>(info.st_size, 4 * kStatsMaxBytes)), '\0');
  if (support::read_exactly(log.get(), bytes.data(), bytes.size()) != 0) return;
  support::publish(root.temp.get(), root.dir.get(), kLogName, rewrite(bytes));
}

}  // namespace fastjit::cache
