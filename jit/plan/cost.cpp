// The cost model: see cost.h.
#include "plan/cost.h"

#include <algorithm>

namespace fastjit::plan {

Work work_of(ir::Op op) {
  if (!ir::is_pointwise(op)) return Work::None;
  if (!ir::is_expensive(op)) return Work::Plain;
  return op < ir::Op::Exp ? Work::Division : Work::Function;
}

/// From the smallest cache whose half holds it; the other half is for what the kernels read beside it. Only the value's
/// own size counts, so that equal values are judged alike wherever they stand.
int64_t Costs::read(int64_t bytes) const {
  const int64_t rate = bytes <= l2_bytes / 2 ? l2_read : bytes <= l3_bytes / 2 ? l3_read : memory_read;
  return bytes * rate;
}

// Measured: MKL's sgemm on two cores with AVX-512 (Zen 4), 1 to 16 rows by 64 to 3072 inner and columns. It takes twice
// as long a product for few rows, whatever their number; the least of it is counted.
int64_t Costs::library(const ProductSize& size) const {
  constexpr int64_t kCall = 1'500'000, kFew = 40, kEight = 25, kSixteen = 18, kMany = 13;
  const int64_t narrow = std::min(size.rows, size.columns);
  const int64_t each = narrow <= 4 ? kFew : narrow <= 8 ? kEight : narrow <= 16 ? kSixteen : kMany;
  return kCall + size.batch * size.rows * size.columns * size.inner * each * size.bytes / 4;
}

int64_t Costs::own(const ProductSize& size) const {
  constexpr int64_t kAcross = 16, kAlong = 15, kSum = 1'400, kFactor = 32 << 10, kFar = 14;
  const int64_t results = size.batch * size.rows * size.columns, points = results * size.inner;
  int64_t each = size.across ? kAcross : kAlong;
  // The factor that each vector of the other one meets comes from the second-level cache once it fills the first.
  if (!size.across && std::min(size.rows, size.columns) * size.inner * size.bytes > kFactor) each += kFar;
  const int64_t whole = points * each * size.bytes / 4 + (size.across ? 0 : results * kSum);
  // Two threads help where the library does badly; it makes more of both where there is much to do for all rows.
  const bool few = std::min(size.rows, size.columns) <= 16;
  return launch + (few && whole > serial ? whole * 6 / 10 : whole);
}

// Measured: oneDNN 3 on two cores with AVX2 (Zen 3), 3 to 64 channels, 4 x 4 to 64 x 64 points, batch 4; the least of
// it. Of vectors twice as wide it is assumed that the library takes half, and a kernel, with fewer sums in flight,
// more.
int64_t Costs::library(const ConvolutionSize& size) const {
  constexpr int64_t kCall = 15'000'000, kFirst = 2 << 20, kSlow = 40, kFast = 17;
  const int64_t each = size.lanes >= 16 ? 2 : 1, first = std::min(size.points, kFirst);
  return kCall + (first * kSlow + (size.points - first) * kFast) / each * size.bytes / 4;
}

int64_t Costs::own(const ConvolutionSize& size) const {
  constexpr int64_t kEach = 20, kEachWide = 13, kReorder = 500, kLaunches = 3;  // zeros, weight, sums
  const int64_t sums = size.with_idle * (size.lanes >= 16 ? kEachWide : kEach);
  return kLaunches * launch + (sums + size.weight * kReorder) * size.bytes / 4;
}

int64_t Costs::point(const KernelPlan& plan) const {
  constexpr int64_t kProduct = 30, kLoop = 50, kByte = 40, kPlain = 50, kExpensive = 400;
  int64_t sum = kLoop;
  for (const Instr& instr : plan.code) {
    if (is_dot(instr)) return kProduct * ir::size_of(instr.dtype) / 4;
    if (is_load(instr) || instr.code == Code::Store) sum += kByte * ir::size_of(instr.dtype);
    if (instr.code == Code::Compute) sum += ir::is_expensive(instr.op) ? kExpensive : kPlain;
  }
  return sum;
}

int64_t Costs::tile_rows(int64_t rows, int64_t row_bytes) const {
  constexpr int64_t kFewest = 64, kMultiple = 8;
  return rows * row_bytes <= tile_bytes ? 0 : std::max(kFewest, tile_bytes / row_bytes / kMultiple * kMultiple);
}

int64_t Costs::compute(Work work) const {
  switch (work) {
    case Work::None:
      return 0;
    case Work::Plain:
      return plain;
    case Work::Division:
      return division;
    case Work::Function:
      return function;
  }
  return 0;
}

}  // namespace fastjit::plan
