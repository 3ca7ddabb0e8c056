#pragma once
// Loops in the C++ code of torch's recurrent layers.
#include <vector>

#include "capture/record/trace.h"

namespace fastjit::capture {

/// Adds to Trace::loops those over the steps in time of layers that autograd follows (RNN.cpp in
/// aten/src/ATen/native), but of layers that run in both directions. `met`: per event how many tensors had been met
/// before it.
void add_loops_of_layers(Trace& trace, const std::vector<uint32_t>& met);

}  // namespace fastjit::capture
