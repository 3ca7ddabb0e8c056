#include "runtime/kernel_cache.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <stdexcept>
#include <vector>

#include "runtime/fork_gate.h"
#include "support/error.h"
#include "support/log.h"

namespace fastjit::runtime {

using support::Channel;

/// Every cache of the process, so that fork can hold and renew their locks.
struct ForkHandlers {
  std::mutex mutex;
  std::vector<KernelCache*> caches;

  static ForkHandlers& all() {
    static auto* instance = new ForkHandlers;  // outlives the caches
    return *instance;
  }
  static void before() {
    all().mutex.lock();
    for (KernelCache* cache : all().caches) cache->state_->mutex.lock();
  }
  static void parent() {
    for (KernelCache* cache : all().caches) cache->state_->mutex.unlock();
    all().mutex.unlock();
  }
  static void child() {
    for (KernelCache* cache : all().caches) {
      cache->state_->mutex.unlock();
      // Kernels stay; tickets belonged to threads that are not here. Their futures must not be waited for or destroyed.
      auto* fresh = new KernelCache::State;
      fresh->recent.swap(cache->state_->recent);
      fresh->by_key.swap(cache->state_->by_key);
      static_cast<void>(cache->state_.release());
      cache->state_.reset(fresh);
    }
    all().mutex.unlock();
  }
};

KernelCache::KernelCache(StoreFactory store, size_t max_live, int lock_wait_ms, size_t max_idle)
    : factory_(std::move(store)),
      max_live_(max_live),
      max_idle_(max_idle),
      lock_wait_ms_(lock_wait_ms),
      state_(new State) {
  set_fork_hooks({ForkHandlers::before, ForkHandlers::parent, ForkHandlers::child});
  const std::lock_guard lock(ForkHandlers::all().mutex);
  ForkHandlers::all().caches.push_back(this);
}

KernelCache::~KernelCache() {
  const std::lock_guard lock(ForkHandlers::all().mutex);
  std::erase(ForkHandlers::all().caches, this);
}

cache::Store* KernelCache::store() {
  std::call_once(opened_, [this] { store_ = factory_ ? factory_() : nullptr; });
  return store_.get();
}

KernelCache::KernelPtr KernelCache::find_locked(const std::string& key) {
  const auto found = state_->by_key.find(key);
  if (found == state_->by_key.end()) return nullptr;
  state_->recent.splice(state_->recent.begin(), state_->recent, found->second);
  return found->second->kernel;
}

void KernelCache::keep_locked(const std::string& key, const KernelPtr& kernel) {
  state_->recent.push_front({key, kernel});
  state_->by_key[state_->recent.front().key] = state_->recent.begin();
  while (state_->recent.size() > max_live_) {
    state_->by_key.erase(state_->recent.back().key);
    state_->recent.pop_back();
  }
  if (++state_->kept <= max_idle_) return;
  drop_idle_locked(max_idle_);
  state_->kept = 0;
}

// The most recently used `keep` of the kernels that no program holds stay.
void KernelCache::drop_idle_locked(size_t keep) {
  size_t idle = 0;
  for (auto item = state_->recent.begin(); item != state_->recent.end();) {
    if (item->kernel.use_count() > 1 || idle++ < keep) {
      ++item;
    } else {
      state_->by_key.erase(item->key);
      item = state_->recent.erase(item);
    }
  }
}

void KernelCache::forget(const std::string& digest_hex, CacheMode mode) {
  const InsideGate gate;
  {
    const std::lock_guard lock(state_->mutex);
    for (auto item = state_->recent.begin(); item != state_->recent.end(); ++item) {
      if (support::hex(support::xxh3_128(item->key)) != digest_hex) continue;
      state_->by_key.erase(item->key);
      state_->recent.erase(item);
      break;
    }
  }
  if (mode != CacheMode::On) return;
  if (cache::Store* disk = store()) disk->discard(digest_hex);
}

void KernelCache::clear_memory() {
  const InsideGate gate;
  const std::lock_guard lock(state_->mutex);
  drop_idle_locked(0);
}

size_t KernelCache::live() const {
  const std::lock_guard lock(state_->mutex);
  return state_->recent.size();
}

static double ms_since(const struct timespec& start) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec - start.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec - start.tv_nsec) / 1e6;
}

KernelResult KernelCache::get(const KernelRequest& request) {
  struct timespec start;
  clock_gettime(CLOCK_MONOTONIC, &start);
  const std::string digest = support::hex(support::xxh3_128(request.key));
  std::promise<KernelPtr> promise;
  Ticket ticket;
  {
    std::unique_lock lock(state_->mutex);
    if (KernelPtr kernel = find_locked(request.key))
      return {std::move(kernel), Source::Memory, ms_since(start), digest};
    const auto making = state_->making.find(request.key);
    if (making != state_->making.end()) {
      ticket = making->second;
      lock.unlock();
      return {ticket.get(), Source::Memory, ms_since(start), digest};
    }
    state_->making.emplace(request.key, promise.get_future().share());
  }
  try {
    Made made = make(request, digest);
    const std::lock_guard lock(state_->mutex);
    keep_locked(request.key, made.kernel);
    state_->making.erase(request.key);
    promise.set_value(made.kernel);
    return {std::move(made.kernel), made.source, ms_since(start), digest};
  } catch (...) {
    const std::lock_guard lock(state_->mutex);
    state_->making.erase(request.key);
    promise.set_exception(std::current_exception());
    throw;
  }
}

KernelCache::Made KernelCache::make(const KernelRequest& request, const std::string& digest) {
  cache::Store* disk = nullptr;
  if (request.mode != CacheMode::MemoryOnly) {
    const InsideGate gate;
    disk = store();
    if (KernelPtr kernel = load_from_disk(request, digest)) return {std::move(kernel), Source::Disk};
  }
  if (!disk || request.mode != CacheMode::On || !disk->writable()) return compile(request, digest);

  // Outside the gate: fork must not wait for another process.
  const cache::KeyLock lock = disk->lock(digest, lock_wait_ms_);
  if (lock.state() == cache::KeyLock::State::TimedOut) cache::count_fault(&disk->root(), cache::Fault::LockTimeout);
  {
    const InsideGate gate;
    if (KernelPtr kernel = load_from_disk(request, digest)) return {std::move(kernel), Source::Disk};
  }
  return compile(request, digest);
}

KernelCache::KernelPtr KernelCache::load_from_disk(const KernelRequest& request, const std::string& digest) {
  if (!store_) return nullptr;
  const auto hit = store_->get(request.key, digest);
  if (!hit) return nullptr;
  try {
    if (hit->view.kind != request.kind) throw std::runtime_error("it is for another kind of device");
    KernelPtr kernel = request.load(hit->view.object);
    store_->loaded(*hit, digest);
    return kernel;
  } catch (const support::Unable&) {  // no fault of the entry's
    throw;
  } catch (const std::exception& error) {
    support::log(Channel::Cache, "entry " + digest + " was refused: " + error.what());
    store_->refuse(*hit, digest);
    return nullptr;
  }
}

static cache::Entry make_entry(const KernelRequest& request, backend::Compiled&& compiled) {
  static const Origin nobody;
  const Origin& origin = request.origin ? *request.origin : nobody;
  char compile_ms[32];
  snprintf(compile_ms, sizeof compile_ms, "%.3f", compiled.compile_ms);
  cache::Entry entry;
  entry.kind = request.kind;
  entry.key = request.key;
  entry.meta = {{"function", origin.function},
                {"signature", origin.signature},
                {"target", request.target},
                {"compile_ms", compile_ms},
                {"created", std::to_string(time(nullptr))}};
  if (origin.ir) entry.ir = origin.ir();
  entry.source = std::move(compiled.source);
  entry.object = std::move(compiled.object);
  return entry;
}

static void log_compile(const KernelRequest& request, const std::string& digest, double ms) {
  if (!support::log_on(Channel::Compile)) return;
  char text[64];
  snprintf(text, sizeof text, " in %.1f ms (key %.12s)", ms, digest.c_str());
  std::string what = "compiled a kernel";
  if (request.origin) what += " of " + request.origin->function + "(" + request.origin->signature + ")";
  support::log(Channel::Compile, support::printable(what) + " for " + request.target + text);
}

KernelCache::Made KernelCache::compile(const KernelRequest& request, const std::string& digest) {
  const InsideGate gate;
  const cache::Folder* root = store_ ? &store_->root() : nullptr;
  const bool keep = store_ && request.mode == CacheMode::On;
  try {
    if (support::log_on(Channel::Miss)) support::log(Channel::Miss, "no kernel for key " + digest);
    backend::Compiled compiled = request.compile();
    log_compile(request, digest, compiled.compile_ms);
    KernelPtr kernel = request.load(compiled.object);
    cache::count_compile(keep ? root : nullptr, digest);
    if (keep) store_->put(make_entry(request, std::move(compiled)), digest);
    return {std::move(kernel), Source::Compiled};
  } catch (const std::exception&) {
    cache::count_fault(keep ? root : nullptr, cache::Fault::CompileFailed);
    throw;
  }
}

}  // namespace fastjit::runtime
