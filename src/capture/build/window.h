#pragma once
// How a convolution, or a call for the gradients of one, goes over its images.
#include <optional>

#include "capture/record/trace.h"

namespace fastjit::capture {

/// Nothing: it is neither, is transposed, has groups, takes one image without a batch, or is given numbers that differ
/// from call to call.
std::optional<ir::Window> window_of(const Event& event);

}  // namespace fastjit::capture
