#pragma once
// The disk cache: one file an entry. Every fault is counted and becomes a miss; nothing here throws, and waits are
// bounded.
#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "cache/entry.h"
#include "cache/evict.h"
#include "cache/lock.h"
#include "cache/root.h"
#include "cache/stats.h"

namespace fastjit::cache {

class Store {
 public:
  /// Null when the folder is refused; `problem` says why.
  static std::unique_ptr<Store> open(const std::string& path, const Limits& limits, std::string& problem);
  /// From the settings. Null, with one warning, when there is no usable folder; null without one when it is turned off.
  static std::unique_ptr<Store> open_default();

  struct Hit {
    std::unique_ptr<char[]> bytes;
    EntryView view;  // into bytes
    struct stat info{};
  };

  /// The entry of `key` (encoded fields) whose digest is `digest_hex`, checked whole. A load is counted by the caller
  /// once the object has been linked (loaded), a refused object with refuse().
  std::optional<Hit> get(std::string_view key, const std::string& digest_hex);
  void loaded(const Hit& hit, const std::string& digest_hex);
  void refuse(const Hit& hit, const std::string& digest_hex);

  /// Removes the entry, whatever it holds.
  void discard(const std::string& digest_hex);

  /// Publishes the entry with one rename. After a failure nothing is written for a minute; nor when another process
  /// keeps the totals for itself for half a second and so hides how full the folder is.
  bool put(const Entry& entry, const std::string& digest_hex);

  KeyLock lock(const std::string& digest_hex, int wait_ms) { return KeyLock::acquire(root_, digest_hex, wait_ms); }
  bool writable() const;
  const Folder& root() const { return root_; }

 private:
  Store(Folder root, const Limits& limits) : root_(std::move(root)), limits_(limits) {}
  std::optional<Fault> read(std::string_view key, const std::string& digest_hex, Hit& hit);
  void remove(const struct stat& judged, const std::string& digest_hex);
  bool settle(int wait_ms);

  Folder root_;
  Limits limits_;
  std::atomic<int64_t> no_writes_before_{0};                        // seconds of the monotonic clock
  std::atomic<int64_t> unsettled_entries_{0}, unsettled_bytes_{0};  // put, and not in the totals yet
};

}  // namespace fastjit::cache
