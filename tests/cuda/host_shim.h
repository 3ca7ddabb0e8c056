// Runs a generated CUDA kernel on the host: one block at a time, its threads as coroutines that switch at barriers.
// With __syncthreads() every thread waits for all others, so code between barriers may run in any order; the order is
// turned around after each barrier, so that a missing one shows.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>

#define __device__
#define __global__
#define __shared__  // those of a function are static, fj_shared is below
#define __launch_bounds__(n)

namespace shim {

struct Dim {
  unsigned x = 1, y = 1, z = 1;
};
inline Dim thread_index, block_index, block_dim, grid_dim;

// As backend::KernelArgs.
struct KernelArgs {
  void* const* ptrs;
  const int64_t* sizes;
  const int64_t* strides;
  const uint64_t* scalars;
  char* scratch;
  int64_t scratch_stride, block;
};

struct Thread {
  ucontext_t context;
  std::vector<char> stack;
  bool done = false;
};
inline std::vector<Thread> threads;
inline ucontext_t scheduler;
inline void (*body)(const void*);
inline const void* parameters;
inline unsigned current;

inline void thread_main() {
  body(parameters);
  threads[current].done = true;
  swapcontext(&threads[current].context, &scheduler);
}

inline void barrier() {
  const unsigned self = current;
  swapcontext(&threads[self].context, &scheduler);
}

inline void run_block() {
  constexpr size_t kStack = 64 << 10;
  if (threads.size() < block_dim.x) threads.resize(block_dim.x);
  for (unsigned t = 0; t < block_dim.x; ++t) {
    Thread& thread = threads[t];
    thread.stack.resize(kStack);
    thread.done = false;
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.data();
    thread.context.uc_stack.ss_size = kStack;
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, thread_main, 0);
  }
  unsigned alive = block_dim.x;
  for (bool forward = true; alive > 0; forward = !forward) {
    unsigned finished = 0;
    for (unsigned i = 0; i < block_dim.x; ++i) {
      current = forward ? i : block_dim.x - 1 - i;
      thread_index.x = current;
      swapcontext(&scheduler, &threads[current].context);
      finished += threads[current].done;
    }
    if (finished != 0 && finished != alive) {
      std::fprintf(stderr, "host shim: a thread left while others wait at __syncthreads()\n");
      std::abort();
    }
    alive -= finished;
  }
}

// A kernel without barriers needs no coroutines.
inline void run_threads() {
  for (unsigned t = 0; t < block_dim.x; ++t) {
    thread_index.x = t;
    body(parameters);
  }
}

template <class Params, void (*Kernel)(Params)>
void call(const void* words) {
  Params p;
  std::memcpy(static_cast<void*>(&p), words, sizeof p);
  Kernel(p);
}

// Every block of the grid that is set; `barriers`: the kernel has some.
inline void run_grid(void (*kernel)(const void*), const void* words, bool barriers) {
  body = kernel;
  parameters = words;
  for (unsigned b = 0; b < grid_dim.x; ++b) {
    block_index.x = b;
    barriers ? run_block() : run_threads();
  }
}

struct Layout {
  int operands, rank;
  std::vector<int> divided;  // dims whose divisors are parameters
  std::vector<int> strides;  // places in KernelArgs::strides that are parameters
  int scalars, scratch;
  bool blocks;
  int kept;
};

// The shift and the magic number for which (x * magic / 2^32 + x) >> shift is x / n below 2^31, apart from the
// engine's.
inline uint64_t divisor(uint64_t n) {
  uint64_t shift = 0;
  while (uint64_t{1} << shift < n) ++shift;
  const uint64_t magic = ((uint64_t{1} << (32 + shift)) + n - 1) / n - (uint64_t{1} << 32);
  return shift << 32 | (magic & 0xffffffffu);
}

// The parameter struct as the launcher fills it, and a small grid, so that every loop over the grid repeats.
template <class Params, void (*Kernel)(Params)>
void launch(const Layout& layout, const KernelArgs* args) {
  std::vector<uint64_t> words;
  for (int i = 0; i < layout.operands; ++i) words.push_back(reinterpret_cast<uint64_t>(args->ptrs[i]));
  int64_t reduced = 1;
  for (int d = 0; d < layout.rank; ++d) {
    words.push_back(static_cast<uint64_t>(args->sizes[d]));
    if (d >= layout.kept) reduced *= args->sizes[d];
  }
  for (int dim : layout.divided) words.push_back(divisor(static_cast<uint64_t>(args->sizes[dim])));
  for (int place : layout.strides) words.push_back(static_cast<uint64_t>(args->strides[place]));
  for (int i = 0; i < layout.scalars; ++i) words.push_back(args->scalars[i]);
  grid_dim.x = 2;
  block_dim.x = 64;  // two warps
  std::vector<char> scratch;
  if (layout.scratch) {
    const int64_t stride = (reduced * 8 + 63) / 64 * 64;
    scratch.resize(static_cast<size_t>(stride * layout.scratch * grid_dim.x));
    words.push_back(reinterpret_cast<uint64_t>(scratch.data()));
    words.push_back(static_cast<uint64_t>(stride));
  }
  static_assert(std::is_trivially_copyable_v<Params>);
  if (words.size() * 8 != sizeof(Params)) {
    std::fprintf(stderr, "host shim: %zu parameter words for a struct of %zu bytes\n", words.size(), sizeof(Params));
    std::abort();
  }
  run_grid(call<Params, Kernel>, words.data(), layout.blocks);
}

}  // namespace shim

#define threadIdx shim::thread_index
#define blockIdx shim::block_index
#define blockDim shim::block_dim
#define gridDim shim::grid_dim
inline void __syncthreads() { shim::barrier(); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(uint64_t{a} * b >> 32); }
// All threads of the block are here together: generated kernels shuffle nowhere else.
inline unsigned __shfl_xor_sync(unsigned, unsigned value, unsigned across) {
  static unsigned given[1024];
  const unsigned self = shim::thread_index.x;
  given[self] = value;
  shim::barrier();
  const unsigned got = given[self ^ across];
  shim::barrier();
  return got;
}
extern "C" __attribute__((weak)) long long fj_shared[6144] = {};

template <class To, class From>
inline To fj_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
inline float __uint_as_float(unsigned bits) { return fj_bits<float>(bits); }
inline unsigned __float_as_uint(float x) { return fj_bits<unsigned>(x); }
inline int __float_as_int(float x) { return fj_bits<int>(x); }
inline long long __double_as_longlong(double x) { return fj_bits<long long>(x); }
inline double __longlong_as_double(long long bits) { return fj_bits<double>(bits); }

using std::copysign;
using std::floor;

// Bisection on erf and erfc; for tests only.
inline double erfinv(double y) {
  if (!(y > -1 && y < 1)) return y == 1 ? INFINITY : y == -1 ? -INFINITY : NAN;
  const double target = std::fabs(y);
  double low = 0, high = 6;
  for (int i = 0; i < 200 && low < high; ++i) {
    const double middle = low + (high - low) / 2;
    if (middle == low || middle == high) break;
    const bool below = target < 0.5 ? std::erf(middle) < target : std::erfc(middle) > 1 - target;
    (below ? low : high) = middle;
  }
  return y == 0 ? y : std::copysign(high, y);
}
inline float erfinvf(float y) { return static_cast<float>(erfinv(static_cast<double>(y))); }
