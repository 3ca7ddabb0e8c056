#pragma once
// nonzero(mask) and x[mask] on the CPU: torch goes through a mask twice, element by element, which for a threshold that
// few pass takes longer than all else.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace fastjit::dispatch {

/// Runs the operator on its arguments if it is one of these and the mask lies in rows or, of two dims, in columns. The
/// result then is torch's, values and strides, and the stack holds it; else the stack is as it was.
bool compacted(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace fastjit::dispatch
