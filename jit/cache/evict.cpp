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
  return pread(fd, line, kUsageBytes, 0) == static_cast<ssize_t>(kUsageBytes) &&
         sscanf(line, "usage %" SCNd64 " %" SCNd64 " %" SCNd64, &usage.entries, &usage.bytes, &usage.collected) == 3;
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

/// The usage file, locked, or nothing when another process has it.
static support::Fd lock_usage(const Root& root) {
  support::Fd file(openat(root.dir.get(), kUsageName, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file && !root.network && flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return {};
  return file;
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

static std::vector<Found> find_entries(const Root& root) {
  std::vector<Found> found;
  for (const std::string& folder : support::list_dir(root.dir.get())) {
    if (!is_entry_folder(folder)) continue;
    const support::Fd dir = support::open_dir(root.dir.get(), folder.c_str());
    if (!dir) continue;
    for (const std::string& name : support::list_dir(dir.get())) {
      Found item{folder, name, {}};
      if (is_entry_name(name) && fstatat(dir.get(), name.c_str(), &item.info, AT_SYMLINK_NOFOLLOW) == 0) {
        found.push_back(std::move(item));
      }
    }
  }
  return found;
}

static void sweep_temp(const Root& root) {
  const int64_t now = time(nullptr);
  for (const std::string& name : support::list_dir(root.temp.get())) {
    struct stat info;
    if (fstatat(root.temp.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode)) continue;
    if (now - info.st_mtim.tv_sec < kStaleTempSeconds) continue;
    if (is_lock_name(name)) {
      const support::Fd lock = support::open_read(root.temp.get(), name.c_str());
      if (!lock || flock(lock.get(), LOCK_EX | LOCK_NB) != 0) continue;  // still held
      unlink_if_same(root.temp.get(), name.c_str(), info);
    } else if (is_temp_name(name)) {
      unlink_if_same(root.temp.get(), name.c_str(), info);
    }
  }
}

static Usage evict(const Root& root, const Limits& limits) {
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

static void collect_locked(const Root& root, const Limits& limits, int usage_file) {
  const Usage usage = evict(root, limits);
  sweep_temp(root);
  write_usage(usage_file, usage);
}

bool collect(const Root& root, const Limits& limits) {
  if (!root.temp) return false;
  const support::Fd file = lock_usage(root);
  if (!file) return false;
  collect_locked(root, limits, file.get());
  return true;
}

void account(const Root& root, const Limits& limits, Delta& carry) {
  if (!root.temp) return;
  const support::Fd file = lock_usage(root);
  if (!file) return;
  Usage usage;
  const bool known = read_usage(file.get(), usage);
  usage.entries += carry.entries;
  usage.bytes += carry.bytes;
  carry = {};
  const int64_t age = time(nullptr) - usage.collected;
  if (!known || usage.bytes > limits.max_bytes || usage.entries > limits.max_entries || age > kCollectEverySeconds ||
      age < 0) {
    collect_locked(root, limits, file.get());
  } else {
    write_usage(file.get(), usage);
  }
}

}  // namespace fastjit::cache
