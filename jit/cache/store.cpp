#include "cache/store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>

#include "support/env.h"
#include "support/log.h"

namespace fastjit::cache {

using support::Channel;
using support::Setting;

static constexpr int64_t kQuietSecondsAfterWriteError = 60;
static constexpr int64_t kTouchSeconds = 86400;
static constexpr int kSettleWaitMs = 500;

static int64_t monotonic_seconds() {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

std::unique_ptr<Store> Store::open(const std::string& path, const Limits& limits, std::string& problem) {
  Folder root = open_root(path);
  problem = root.problem;
  if (!root) return nullptr;
  return std::unique_ptr<Store>(new Store(std::move(root), limits));
}

std::unique_ptr<Store> Store::open_default() {
  const Limits limits{support::setting_int(Setting::CacheMaxBytes), support::setting_int(Setting::CacheMaxEntries)};
  if (limits.max_bytes == 0 || limits.max_entries == 0) return nullptr;
  const Location location = locate();
  std::string problem = location.problem;
  std::unique_ptr<Store> store;
  if (!location.path.empty()) store = open(location.path, limits, problem);
  if (!store) {
    const std::string where = location.path.empty() ? "" : " " + support::printable(location.path);
    support::warn_once("the cache folder" + where + " is not used: " + problem + "; kernels are kept in memory only");
  } else if (!store->root().temp) {
    support::warn_once("the cache folder " + support::printable(location.path) +
                       " cannot be written; new kernels are kept in memory only");
  }
  if (store && store->root().network)
    support::log(Channel::Cache, "the cache folder is on a network file system: locks are not used");
  return store;
}

bool Store::writable() const { return root_.temp && monotonic_seconds() >= no_writes_before_; }

/// Reads the file into an aligned buffer after checking whose it is.
static std::optional<Fault> read_file(int fd, Store::Hit& hit) {
  struct stat& info = hit.info;
  if (fstat(fd, &info) != 0) return Fault::Io;
  // No link at all: removed since it was opened; its bytes are still whole.
  if (!S_ISREG(info.st_mode) || info.st_uid != geteuid() || info.st_nlink > 1 ||
      (info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return Fault::Unsafe;
  }
  if (info.st_size > static_cast<off_t>(kMaxEntryBytes)) return Fault::TooLarge;
  const auto size = static_cast<size_t>(info.st_size);
  hit.bytes.reset(new (std::nothrow) char[size + 1]);
  if (!hit.bytes) return Fault::Io;
  const int error = support::read_exactly(fd, hit.bytes.get(), size);
  if (error != 0) return error == ENODATA ? Fault::Truncated : Fault::Io;
  return decode({hit.bytes.get(), size}, hit.view);
}

std::optional<Fault> Store::read(std::string_view key, const std::string& digest_hex, Hit& hit) {
  const support::Fd folder = support::open_dir(root_.dir.get(), entry_folder(digest_hex).c_str());
  const support::Fd file = folder ? support::open_read(folder.get(), entry_name(digest_hex).c_str()) : support::Fd();
  if (!file) {
    if (errno == ENOENT) return std::nullopt;
    return errno == ELOOP || errno == ENOTDIR ? Fault::Unsafe : Fault::Io;
  }
  if (const auto fault = read_file(file.get(), hit)) return fault;
  if (hit.view.key != key) return Fault::KeyMismatch;
  if (time(nullptr) - hit.info.st_mtim.tv_sec > kTouchSeconds) {
    futimens(file.get(), nullptr);
    fstat(file.get(), &hit.info);
  }
  return std::nullopt;
}

/// Faults that only the file's own bytes can cause: it will never be of use.
static bool is_damage(Fault fault) {
  return fault == Fault::Truncated || fault == Fault::NotAnEntry || fault == Fault::Malformed ||
         fault == Fault::Checksum || fault == Fault::KeyMismatch;
}

std::optional<Store::Hit> Store::get(std::string_view key, const std::string& digest_hex) {
  Hit hit;
  const auto fault = read(key, digest_hex, hit);
  if (!fault) return hit.bytes ? std::optional<Hit>(std::move(hit)) : std::nullopt;
  support::log(Channel::Cache, "entry " + digest_hex + " is not used: " + std::string(meaning(*fault)));
  count_fault(&root_, *fault);
  if (is_damage(*fault)) remove(hit.info, digest_hex);
  return std::nullopt;
}

void Store::loaded(const Hit&, const std::string& digest_hex) { count_load(&root_, digest_hex); }

void Store::refuse(const Hit& hit, const std::string& digest_hex) {
  count_fault(&root_, Fault::Refused);
  remove(hit.info, digest_hex);
}

void Store::remove(const struct stat& judged, const std::string& digest_hex) {
  const support::Fd folder = support::open_dir(root_.dir.get(), entry_folder(digest_hex).c_str());
  if (folder) unlink_if_same(folder.get(), entry_name(digest_hex).c_str(), judged);
}

void Store::discard(const std::string& digest_hex) {
  const support::Fd folder = support::open_dir(root_.dir.get(), entry_folder(digest_hex).c_str());
  if (folder) unlinkat(folder.get(), entry_name(digest_hex).c_str(), 0);
}

static int put_file(const Folder& root, const std::string& digest_hex, std::string_view bytes) {
  const std::string folder = entry_folder(digest_hex);
  support::Fd dir = support::open_dir(root.dir.get(), folder.c_str());
  if (!dir && errno == ENOENT) {
    if (mkdirat(root.dir.get(), folder.c_str(), 0700) != 0 && errno != EEXIST) return errno;
    dir = support::open_dir(root.dir.get(), folder.c_str());
  }
  if (!dir) return errno;
  const std::string name = entry_name(digest_hex);
  const int error = support::publish(root.temp.get(), dir.get(), name, bytes);
  if (error != EISDIR || support::clear_name(root.temp.get(), dir.get(), name.c_str()) != 0) return error;
  return support::publish(root.temp.get(), dir.get(), name, bytes);
}

bool Store::put(const Entry& entry, const std::string& digest_hex) {
  if (!writable()) return false;
  const std::string bytes = encode(entry);
  if (bytes.size() > kMaxEntryBytes || static_cast<int64_t>(bytes.size()) > limits_.max_bytes) {
    count_fault(&root_, Fault::TooLarge);
    return false;
  }
  if (!settle(kSettleWaitMs)) {
    no_writes_before_ = monotonic_seconds() + kQuietSecondsAfterWriteError;
    count_fault(&root_, Fault::LockTimeout);
    return false;
  }
  if (const int error = put_file(root_, digest_hex, bytes)) {
    no_writes_before_ = monotonic_seconds() + kQuietSecondsAfterWriteError;
    count_fault(&root_, Fault::WriteFailed);
    support::warn_once("the cache folder could not be written (" + std::string(strerror(error)) +
                       "); kernels are kept in memory");
    return false;
  }
  ++unsettled_entries_;
  unsettled_bytes_ += static_cast<int64_t>(bytes.size());
  settle(0);
  sweep_temp(root_);
  return true;
}

/// Adds to the totals what was put since they were free. False when they are not, for that long.
bool Store::settle(int wait_ms) {
  const Added added{unsettled_entries_.exchange(0), unsettled_bytes_.exchange(0)};
  if (added.entries == 0 || account(root_, limits_, added, wait_ms)) return true;
  unsettled_entries_ += added.entries;
  unsettled_bytes_ += added.bytes;
  return false;
}

}  // namespace fastjit::cache
