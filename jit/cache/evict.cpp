#include "cache/evict.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <ctime>
#include <vector>

#include "cache/lock.h"
#include "cache/stats.h"

namespace fastjit::cache {

static constexpr const char* kUsageName = "usage";
static constexpr int64_t kCollectEverySeconds = 86400;
static constexpr int64_t kStaleTempSeconds = 3600;
static constexpr size_t kUsageBytes = 72;  // a fixed line, so that one pwrite replaces it whole

struct Usage {
  int64_t entries = 0, bytes = 0, collected = 0;
};

static bool read_usage(int fd, Usage& usage) {
  char line[kUsageBytes + 1] = {};
  Usage read;
  if (pread(fd, line, kUsageBytes, 0) != static_cast<ssize_t>(kUsageBytes) ||
      sscanf(line, "usage %" SCNd64 " %" SCNd64 " %" SCNd64, &read.entries, &read.bytes, &read.collected) != 3)
    return false;
  constexpr int64_t kMost = int64_t{1} << 60;  // sums stay far from overflow
  if (read.entries < 0 || read.bytes < 0 || read.entries > kMost || read.bytes > kMost) return false;
  usage = read;
  return true;
}

static void write_usage(int fd, const Usage& usage) {
  char line[kUsageBytes + 1];
  snprintf(line, sizeof line, "usage %-20" PRId64 " %-20" PRId64 " %-20" PRId64, usage.entries, usage.bytes,
           usage.collected);
  std::string bytes(line);
  bytes.resize(kUsageBytes, ' ');
  bytes.back() = '\n';
  [[maybe_unused]] const ssize_t written = pwrite(fd, bytes.data(), bytes.size(), 0);
}

static support::Fd open_usage(const Folder& root) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;  // no FIFO may block
  support::Fd file(openat(root.dir.get(), kUsageName, kFlags, 0600));
  struct stat info;
  if (file && (fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode))) return {};
  return file;
}

struct Totals {
  support::Fd file;   // locked; none where it cannot be used: limits are then kept without it
  bool busy = false;  // another process has it
};

static Totals lock_usage(const Folder& root, int wait_ms) {
  support::Fd file = open_usage(root);
  if (!file && support::clear_name(root.temp.get(), root.dir.get(), kUsageName) == 0) file = open_usage(root);
  if (!file || root.network) return {std::move(file)};
  const auto until = Clock::now() + std::chrono::milliseconds(wait_ms);
  if (lock_until(file.get(), until) == EWOULDBLOCK) return {{}, true};
  return {std::move(file)};
}

bool unlink_if_same(int folder, const char* name, const struct stat& judged) {
  struct stat now;
  return fstatat(folder, name, &now, AT_SYMLINK_NOFOLLOW) == 0 && support::same_file(now, judged) &&
         unlinkat(folder, name, 0) == 0;
}

struct Found {
  std::string folder, name;
  struct stat info;
};

static std::vector<Found> find_entries(const Folder& root) {
  std::vector<Found> found;
  for (const std::string& folder : support::list_dir(root.dir.get())) {
    if (!is_entry_folder(folder)) continue;
    const support::Fd dir = support::open_dir(root.dir.get(), folder.c_str());
    if (!dir) continue;
    for (const std::string& name : support::list_dir(dir.get())) {
      Found item{folder, name, {}};
      const bool there = is_entry_name(name) && fstatat(dir.get(), name.c_str(), &item.info, AT_SYMLINK_NOFOLLOW) == 0;
      if (there && !S_ISDIR(item.info.st_mode)) found.push_back(std::move(item));
    }
  }
  return found;
}

void sweep_temp(const Folder& root) {
  if (!root.temp) return;
  const int64_t now = time(nullptr);
  for (const std::string& name : support::list_dir(root.temp.get())) {
    struct stat info;
    if (fstatat(root.temp.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (now - info.st_mtim.tv_sec < kStaleTempSeconds) continue;
    if (S_ISDIR(info.st_mode) && is_temp_name(name)) unlinkat(root.temp.get(), name.c_str(), AT_REMOVEDIR);
    if (!S_ISREG(info.st_mode)) continue;
    if (is_lock_name(name)) {
      const support::Fd lock = support::open_read(root.temp.get(), name.c_str());
      if (!lock || flock(lock.get(), LOCK_EX | LOCK_NB) != 0) continue;  // still held
      unlink_if_same(root.temp.get(), name.c_str(), info);
    } else if (is_temp_name(name)) {
      unlink_if_same(root.temp.get(), name.c_str(), info);
    }
  }
}

static Usage evict(const Folder& root, const Limits& limits) {
  std::vector<Found> found = find_entries(root);
  Usage usage{static_cast<int64_t>(found.size()), 0, time(nullptr)};
  for (const Found& item : found) usage.bytes += item.info.st_size;
  if (usage.bytes <= limits.max_bytes && usage.entries <= limits.max_entries) return usage;

  std::ranges::sort(found, [](const Found& a, const Found& b) {
    const auto& x = a.info.st_mtim;
    const auto& y = b.info.st_mtim;
    return x.tv_sec != y.tv_sec ? x.tv_sec < y.tv_sec : x.tv_nsec < y.tv_nsec;
  });
  const int64_t bytes = limits.max_bytes - limits.max_bytes / 10,
                entries = limits.max_entries - limits.max_entries / 10;
  uint64_t evicted = 0;
  for (const Found& item : found) {
    if (usage.bytes <= bytes && usage.entries <= entries) break;
    const support::Fd dir = support::open_dir(root.dir.get(), item.folder.c_str());
    if (!dir || !unlink_if_same(dir.get(), item.name.c_str(), item.info)) continue;
    usage.bytes -= item.info.st_size;
    --usage.entries;
    ++evicted;
  }
  if (evicted > 0) count_evicted(&root, evicted);
  return usage;
}

static void collect_with(const Folder& root, const Limits& limits, const Totals& totals) {
  const Usage usage = evict(root, limits);
  sweep_temp(root);
  if (totals.file) write_usage(totals.file.get(), usage);
}

bool collect(const Folder& root, const Limits& limits) {
  if (!root.temp) return false;
  const Totals totals = lock_usage(root, 0);
  if (!totals.busy) collect_with(root, limits, totals);
  return !totals.busy;
}

bool account(const Folder& root, const Limits& limits, const Added& added, int wait_ms) {
  if (!root.temp) return true;
  const Totals totals = lock_usage(root, wait_ms);
  if (totals.busy) return false;
  Usage usage;
  const bool known = totals.file && read_usage(totals.file.get(), usage);
  usage.entries += added.entries;
  usage.bytes += added.bytes;
  const int64_t age = time(nullptr) - usage.collected;
  if (!known || usage.bytes > limits.max_bytes || usage.entries > limits.max_entries || age > kCollectEverySeconds ||
      age < 0) {
    collect_with(root, limits, totals);
  } else {
    write_usage(totals.file.get(), usage);
  }
  return true;
}

}  // namespace fastjit::cache
