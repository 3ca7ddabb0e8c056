// The cost model: see cost.h.
#include "plan/cost.h"

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
