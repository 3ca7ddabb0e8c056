#pragma once
// as_strided, which addresses memory and not a tensor.
#include "capture/record/trace.h"

namespace fastjit::capture {

/// Whether the operator, one of OpFlag::ReachesStorage, is a view of elements of its own tensor, with which its memory
/// begins: a row says which.
bool lies_in_its_tensor(const Event& event);

}  // namespace fastjit::capture
