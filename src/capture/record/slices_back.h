#pragma once
// Autograd's way back through rounds that write into a tensor of all rounds: out[t] = h.
#include <vector>

#include "capture/record/trace.h"

namespace fastjit::capture {

/// The writes that each round of the way back goes back through. For each of these CopySlices copies the gradient of
/// the whole tensor, gives the round its row and makes that zero, and the round before it gets the copy. As rounds
/// write to rows of their own, the row is that of the first gradient.
std::vector<Slices> slices_in(const Trace& trace, const PythonLoop& back);

}  // namespace fastjit::capture
