#pragma once
// Loaded kernels by key: memory, then disk, then the compiler; made once a key across threads and processes. Knows
// neither plans nor LLVM: what compiles and what loads is given by the caller.
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "backend/compiler.h"
#include "cache/store.h"
#include "runtime/engine.h"

namespace fastjit::runtime {

struct KernelRequest {
  std::string key;  // encoded cache::Fields
  cache::Kind kind = cache::Kind::CpuElf;
  std::string target;  // for the listing
  const Origin* origin = nullptr;
  CacheMode mode = CacheMode::On;
  std::function<backend::Compiled()> compile;                                         // may throw
  std::function<std::shared_ptr<const backend::Kernel>(std::span<const char>)> load;  // throws on a bad object
};

class KernelCache {
 public:
  /// `store` is asked for at the first miss in memory; it may give null. `max_live` bounds the kernels that can be
  /// found in memory, `max_idle` (roughly) those among them that no program holds.
  using StoreFactory = std::function<std::unique_ptr<cache::Store>()>;
  explicit KernelCache(StoreFactory store, size_t max_live = 4096, int lock_wait_ms = 5000, size_t max_idle = 256);
  ~KernelCache();
  KernelCache(const KernelCache&) = delete;

  /// Throws what `compile` or `load` of a fresh object throws, also to every thread that waited for it.
  KernelResult get(const KernelRequest& request);
  /// Drops a kernel from memory and, unless `mode` keeps off the disk, its entry; programs that hold it keep it.
  void forget(const std::string& digest_hex, CacheMode mode);
  void clear_memory();
  size_t live() const;

 private:
  using KernelPtr = std::shared_ptr<const backend::Kernel>;
  using Ticket = std::shared_future<KernelPtr>;
  struct Live {
    std::string key;
    KernelPtr kernel;
  };
  struct State {  // replaced whole in a forked child
    std::mutex mutex;
    std::list<Live> recent;  // front: last used
    std::unordered_map<std::string_view, std::list<Live>::iterator> by_key;
    std::unordered_map<std::string, Ticket> making;
    size_t kept = 0;  // since idle kernels were last dropped
  };
  struct Made {
    KernelPtr kernel;
    Source source;
  };

  KernelPtr find_locked(const std::string& key);
  void keep_locked(const std::string& key, const KernelPtr& kernel);
  void drop_idle_locked(size_t keep);
  Made make(const KernelRequest& request, const std::string& digest);
  KernelPtr load_from_disk(const KernelRequest& request, const std::string& digest);
  Made compile(const KernelRequest& request, const std::string& digest);
  cache::Store* store();

  friend struct ForkHandlers;
  StoreFactory factory_;
  size_t max_live_, max_idle_;
  int lock_wait_ms_;
  std::once_flag opened_;
  std::unique_ptr<cache::Store> store_;
  std::unique_ptr<State> state_;
};

}  // namespace fastjit::runtime
