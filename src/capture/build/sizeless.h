#pragma once
// Autograd's way back through tensors whose sizes depend on data. Its formulas are C++ code, which may give a size of
// such a tensor to an operator as a number, where no program would find it again.
#include "capture/record/trace.h"

namespace fastjit::capture {

/// Whether no operator of the way back is given such a size. What it asks of sizes beyond whether they are none, one or
/// more, it does not ask of these.
bool goes_back_without_sizes(const Trace& trace);

}  // namespace fastjit::capture
