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

int64_t Costs::point(const KernelPlan& plan) const {
  constexpr int64_t kLoop = 50, kByte = 40, kPlain = 50, kExpensive = 400;
  int64_t sum = kLoop;
  for (const Instr& instr : plan.code) {
    if (instr.code == Code::Load || instr.code == Code::Store) sum += kByte * ir::size_of(instr.dtype);
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
