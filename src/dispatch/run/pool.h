#pragma once
// Memory of outputs and arenas. A large block from malloc costs its page faults on every call; blocks from this pool
// are warm. Size classes (four per power of two), 2 MiB alignment and huge pages from 4 MiB up, bounded by FASTJIT_POOL
// bytes of idle memory; the oldest idle blocks go first. What nobody took for a minute goes back to the system: looked
// for by calls, compiles and Python's garbage collector, so that no thread has to wait beside the program for it.
#include <ATen/ATen.h>

#include <cstdint>

namespace fastjit::dispatch {

struct PoolStats {
  int64_t idle_bytes, live_bytes, reuses, fresh;
};

/// At least `bytes` bytes, 64-byte aligned, uninitialised. Returned to the pool when the pointer dies. Thread-safe.
at::DataPtr pool_allocate(int64_t bytes);

/// The same straight from malloc and back to it, so that torch's calls take what this leaves. Not by aligned_alloc,
/// which asks for more than a block has that it gave before, so that none fits again: each call would touch others.
at::DataPtr plain_allocate(int64_t bytes);

/// A new tensor with the given dtype, sizes and strides in memory from `allocate`.
at::Tensor pool_tensor(at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides,
                       at::DataPtr (*allocate)(int64_t) = pool_allocate);

/// Gives all idle memory back to the system.
void pool_clear();

/// Gives back what nobody took for a minute. Cheap where there is nothing to do.
void pool_expire() noexcept;
PoolStats pool_stats();

}  // namespace fastjit::dispatch
