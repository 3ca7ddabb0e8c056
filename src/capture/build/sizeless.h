#pragma once
// Autograd's way back through tensors whose sizes depend on data. Its formulas are C++ code, which may give a size of
// such a tensor to an operator as a number, where no program would find it again.
#include "capture/record/trace.h"

namespace fastjit::capture {

/// Whether no operator of the way back from the call's outputs is given such a size, and no output that requires grad
/// has one. What a formula asks of sizes is whether they are none, one or more, which are values of the path.
bool goes_back_without_sizes(const Trace& trace, const std::vector<Use>& outputs);

}  // namespace fastjit::capture
