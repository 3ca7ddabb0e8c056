#pragma once
// What memory, arithmetic and launches cost, in picoseconds, and how much one kernel holds: the one place that
// decisions of the planner are weighed with. The default constants were measured on a two-core x86-64 machine with
// AVX-512 (docs/planning.md says how) and are the same everywhere, so that a graph has one plan on all machines with
// equal vectors.
#include <cstddef>
#include <cstdint>

#include "ir/graph.h"
#include "plan/kernel_plan.h"

namespace fastjit::plan {

/// How much work an operation is per element.
enum class Work : uint8_t { None, Plain, Division, Function };
Work work_of(ir::Op op);

/// A product of matrices: `batch` times rows x inner by inner x columns, of elements of so many bytes.
struct ProductSize {
  int64_t batch, rows, columns, inner;
  int bytes;
  bool across;  // lanes run along rows or columns; else along the inner dim, and each result adds its lanes up
};

/// A convolution or one of its gradients: products of two elements, those that lanes compute where the last vector of
/// channels is not full, and elements of the weight, which kernels reorder.
struct ConvolutionSize {
  int64_t points, with_idle, weight;
  int bytes, lanes;
};

struct Costs {
  int64_t l2_bytes = 1 << 20, l3_bytes = 32 << 20;
  int64_t l2_read = 6, l3_read = 37, memory_read = 60;  // a byte
  int64_t write_tenths = 15;                            // of a read: the line is fetched first
  int64_t plain = 10, division = 190, function = 270;   // a point, in vectors
  int64_t launch = 100'000;                             // a kernel more
  int64_t serial = 30'000'000;  // a launch that takes less is one thread's: waking another costs as much
  int64_t task = 20'000'000;    // what a thread should get of a longer one
  int64_t split = 3'000'000;    // a launch that threads share which have just ended another
  int64_t barrier = 150'000;    // two threads that stay awake wait for each other
  /// The largest product whose epilogue follows the whole of it; beyond, both run over so many bytes at a time. MKL in
  /// row tiles cost 4 to 9 % at 512 and 1024, more than the epilogue gained.
  int64_t tile_bytes = 32 << 20;

  /// A value of so many bytes, written by one kernel and read by the next.
  int64_t read(int64_t bytes) const;
  int64_t write(int64_t bytes) const { return read(bytes) * write_tenths / 10; }
  int64_t compute(Work work) const;
  /// A point of a launch that may have to be split, whose operands come from no cache in particular.
  int64_t point(const KernelPlan& plan) const;

  /// Computing a value again may read a quarter more than the value itself.
  bool reads_more(int64_t elements, int64_t own) const { return elements * 4 > own * 5; }
  /// Two kernels over so many points that share an operand join from a quarter of the points on: they read it once.
  bool is_worth_sharing(int64_t elements, int64_t points) const { return elements * 4 >= points; }
  /// An expensive value is stored, not computed at each of the points it is broadcast to, from four times its own on;
  /// a small kernel computes it sooner than it costs a launch.
  bool is_spread(int64_t own, int64_t points) const { return own > 1 && points >= 4 * own; }
  bool is_small(int64_t points) const { return points < 4096; }
  /// A product by torch's library, called alone, and by a kernel.
  int64_t library(const ProductSize& size) const;
  int64_t own(const ProductSize& size) const;
  int64_t library(const ConvolutionSize& size) const;
  int64_t own(const ConvolutionSize& size) const;
  /// Rows of a product of matrices that its epilogue follows at a time; 0: all.
  int64_t tile_rows(int64_t rows, int64_t row_bytes) const;
};

/// What one kernel holds at most, whatever more would gain: beyond, the prefetcher's streams do not last, and its text
/// would grow with the program. Registers are no limit: what they do not hold lies in the first-level cache, while a
/// cut stores every value that crosses it (48 operations a kernel made an equation of state of 260 four times slower).
struct Bounds {
  static constexpr size_t cone = 512;     // operations below one value
  static constexpr size_t streams = 24;   // loads below one value, operands of a kernel joined from several
  static constexpr size_t roots = 8;      // values that it computes for others
  static constexpr size_t code = 2000;    // instructions
  static constexpr int nesting = 1000;    // nodes on one path
  static constexpr int copies = 2;        // of one expensive operation in one place
  static constexpr int64_t keep = 16384;  // reduced points that it remembers from one phase to the next
  static constexpr size_t look_back = 4;  // earlier readers of an operand that are tried because they share it
};

}  // namespace fastjit::plan
