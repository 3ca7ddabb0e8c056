#include "dispatch/run/pool.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <sys/mman.h>

#include <time.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <new>

#include "support/env.h"
#include "support/fork.h"

namespace fastjit::dispatch {
namespace {

constexpr int64_t kSmall = 32 << 10;  // below: a few blocks a thread, taken and given back without a lock
constexpr int64_t kHuge = 4 << 20;    // from here on: 2 MiB aligned, huge pages
constexpr int64_t kHugeAlign = 2 << 20;
constexpr int kClasses = 4 * 64;
constexpr int64_t kIdleSeconds = 60, kLookEverySeconds = 10;
constexpr uint32_t kSmallBetweenLooks = 64;

struct Block {
  void* data;
  int64_t bytes;
  int cls;
  uint64_t stamp = 0;  // when it came back: order, and second
  int64_t second = 0;
  Block *newer = nullptr, *older = nullptr;  // in the list that it is in
};

// Blocks by the order in which they came. Nothing here takes memory: blocks come back where there may be none.
struct Blocks {
  Block *newest = nullptr, *oldest = nullptr;

  void add(Block* block) noexcept {
    block->newer = nullptr;
    block->older = newest;
    (newest ? newest->newer : oldest) = block;
    newest = block;
  }

  Block* remove(Block* block) noexcept {
    (block->newer ? block->newer->older : newest) = block->older;
    (block->older ? block->older->newer : oldest) = block->newer;
    return block;
  }
};

int64_t now_seconds() {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return now.tv_sec;
}

// Class c holds blocks of (4 + c % 4) << (c / 4) bytes: at most 25 % more than was asked for.
int class_of(int64_t bytes) {
  const int log = std::bit_width(static_cast<uint64_t>(bytes - 1)) - 1;
  const int64_t quarter = int64_t{1} << (log - 2);
  const int part = static_cast<int>((bytes + quarter - 1) / quarter) - 4;  // 1..4
  return part == 4 ? (log - 1) * 4 : (log - 2) * 4 + part;
}

int64_t bytes_of(int cls) { return int64_t{4 + cls % 4} << (cls / 4); }

class Pool {
 public:
  Pool() { support::hold_over_fork(mutex_); }

  Block* take(int64_t bytes) {
    const int cls = class_of(bytes);
    if (Block* block = take_idle(cls)) return block;
    Block* block = fresh(cls, bytes);
    if (!block) {  // the memory may be here
      clear();
      block = fresh(cls, bytes);
    }
    if (!block) throw std::bad_alloc();
    std::lock_guard lock(mutex_);
    ++stats_.fresh;
    stats_.live_bytes += block->bytes;
    return block;
  }

  void give(Block* block) noexcept {
    Blocks out;
    const int64_t now = now_seconds();
    {
      std::lock_guard lock(mutex_);
      stats_.live_bytes -= block->bytes;
      if (block->bytes > limit()) {
        out.add(block);
      } else {
        block->stamp = ++clock_;
        block->second = now;
        idle_[block->cls].add(block);
        stats_.idle_bytes += block->bytes;
        trim(limit(), out);
      }
    }
    while (out.oldest) destroy(out.remove(out.oldest));
    expire(now);
  }

  void clear() noexcept {
    Blocks out;
    {
      std::lock_guard lock(mutex_);
      trim(0, out);
    }
    while (out.oldest) give_back(out.remove(out.oldest));
  }

  void expire(int64_t now) noexcept {
    if (now < next_look_.load(std::memory_order_relaxed)) return;
    Blocks out;
    {
      std::lock_guard lock(mutex_);
      next_look_ = now + kLookEverySeconds;
      for (Blocks& list : idle_)
        while (list.oldest && now - list.oldest->second >= kIdleSeconds) drop(list, out);
    }
    while (out.oldest) give_back(out.remove(out.oldest));
  }

  PoolStats stats() {
    std::lock_guard lock(mutex_);
    return stats_;
  }

 private:
  static int64_t limit() {
    static const int64_t bytes = support::env_pool_bytes();
    return bytes;
  }

  // Where none of the class is there, a block of up to twice the size is: what is idle counts as held.
  Block* take_idle(int cls) {
    constexpr int kLarger = 4;
    std::lock_guard lock(mutex_);
    const int last = std::min(cls + kLarger, kClasses - 1);
    while (!idle_[cls].newest && cls < last) ++cls;
    Blocks& list = idle_[cls];
    if (!list.newest) return nullptr;
    Block* block = list.remove(list.newest);
    stats_.idle_bytes -= block->bytes;
    stats_.live_bytes += block->bytes;
    ++stats_.reuses;
    return block;
  }

  // Huge pages where all of one is asked for: what is never touched of a small one takes no memory.
  static Block* fresh(int cls, int64_t asked) noexcept {
    const int64_t bytes = bytes_of(cls);
    const bool huge = bytes >= kHuge;
    const int64_t align = huge ? kHugeAlign : 64;
    void* data =
        std::aligned_alloc(static_cast<size_t>(align), static_cast<size_t>((bytes + align - 1) / align * align));
    Block* block = data ? new (std::nothrow) Block{data, bytes, cls} : nullptr;
    if (!block)
      std::free(data);
    else if (huge)
      madvise(data, static_cast<size_t>(asked / kHugeAlign * kHugeAlign), MADV_HUGEPAGE);
    return block;
  }

  static void destroy(Block* block) noexcept {
    std::free(block->data);
    delete block;
  }

  // To the system, not to malloc, which may keep it.
  static void give_back(Block* block) noexcept {
    constexpr uintptr_t kPage = 4096;
    const auto begin = reinterpret_cast<uintptr_t>(block->data);
    const uintptr_t first = (begin + kPage - 1) / kPage * kPage;
    const uintptr_t last = (begin + static_cast<uintptr_t>(block->bytes)) / kPage * kPage;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
    destroy(block);
  }

  void drop(Blocks& list, Blocks& out) noexcept {
    stats_.idle_bytes -= list.oldest->bytes;
    out.add(list.remove(list.oldest));
  }

  // Oldest first. Rare, so a scan over the classes is fine.
  void trim(int64_t keep, Blocks& out) noexcept {
    while (stats_.idle_bytes > keep) {
      Blocks* oldest = nullptr;
      for (Blocks& list : idle_)
        if (list.oldest && (!oldest || list.oldest->stamp < oldest->oldest->stamp)) oldest = &list;
      if (!oldest) return;
      drop(*oldest, out);
    }
  }

  std::mutex mutex_;
  Blocks idle_[kClasses];
  uint64_t clock_ = 0;
  std::atomic<int64_t> next_look_{0};
  PoolStats stats_{};
};

// Small blocks of this thread. A block starts with its class; its data follows 64 bytes later. Without a constructor
// and a destructor, so that its place is all that a call asks for.
class SmallBlocks {
 public:
  static constexpr int kSizes = 10;  // 64 bytes to 32 KiB, powers of two
  static constexpr int kKept = 8;    // of each

  // A tensor may die on a thread after this.
  void close() noexcept {
    most_ = 0;
    for (int size = 0; size < kSizes; ++size)
      while (count_[size] > 0) std::free(kept_[size][--count_[size]]);
  }

  char* take(int64_t bytes) {
    if (++calls_ % kSmallBetweenLooks == 0) look_at_large_ones();
    const int size = bytes <= 64 ? 0 : std::bit_width(static_cast<uint64_t>(bytes - 1)) - 6;
    if (count_[size] > 0) return kept_[size][--count_[size]];
    if (most_ == kNotYet) open();
    auto* block = static_cast<char*>(std::aligned_alloc(64, 64 + (size_t{64} << size)));
    if (!block) throw std::bad_alloc();
    *reinterpret_cast<int*>(block) = size;
    return block;
  }

  void give(char* block) noexcept {
    const int size = *reinterpret_cast<int*>(block);
    if (count_[size] >= most_)
      std::free(block);
    else
      kept_[size][count_[size]++] = block;
  }

 private:
  static constexpr int kNotYet = -1;

  static void look_at_large_ones();
  void open();  // from here on blocks are kept

  uint32_t calls_ = 0;
  int most_ = kNotYet;
  int count_[kSizes] = {};
  char* kept_[kSizes][kKept] = {};
};

constinit thread_local SmallBlocks small_blocks;

void SmallBlocks::open() {
  struct End {
    SmallBlocks* blocks;
    ~End() { blocks->close(); }
  };
  thread_local End end{this};
  end.blocks->most_ = kKept;
}

void give_small(void* block) { small_blocks.give(static_cast<char*>(block)); }

// Never destroyed: tensors may outlive static destruction.
Pool& pool() {
  static Pool* const instance = new Pool;
  return *instance;
}

void SmallBlocks::look_at_large_ones() { pool().expire(now_seconds()); }

}  // namespace

at::DataPtr pool_allocate(int64_t bytes) {
  if (bytes < kSmall) {
    char* block = small_blocks.take(bytes);
    return {block + 64, block, give_small, at::Device(at::kCPU)};
  }
  Block* block = pool().take(bytes);
  return {block->data, block, [](void* context) { pool().give(static_cast<Block*>(context)); }, at::Device(at::kCPU)};
}

at::DataPtr plain_allocate(int64_t bytes) {
  constexpr uintptr_t kAlign = 64;
  void* block = std::malloc(static_cast<size_t>(bytes) + kAlign);
  if (!block) {  // the memory may be here
    pool().clear();
    block = std::malloc(static_cast<size_t>(bytes) + kAlign);
  }
  if (!block) throw std::bad_alloc();
  const uintptr_t data = (reinterpret_cast<uintptr_t>(block) + kAlign - 1) / kAlign * kAlign;
  return {reinterpret_cast<void*>(data), block, std::free, at::Device(at::kCPU)};
}

at::Tensor pool_tensor(at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides,
                       at::DataPtr (*allocate)(int64_t)) {
  const size_t bytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), c10::SymInt(static_cast<int64_t>(bytes)),
      allocate(static_cast<int64_t>(bytes)), c10::GetCPUAllocator(), /*resizable=*/true);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

void pool_clear() { pool().clear(); }
void pool_expire() noexcept { pool().expire(now_seconds()); }
PoolStats pool_stats() { return pool().stats(); }

}  // namespace fastjit::dispatch
