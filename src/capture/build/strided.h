#pragma once
// as_strided, which addresses memory and not a tensor.
#include "capture/record/trace.h"

namespace fastjit::capture {

/// Whether the operator, one of OpFlag::ReachesStorage, is a view of elements of its own tensor: a row says which.
/// Where memory begins that `was_there` before the call, another call may tell otherwise.
bool lies_in_its_tensor(const Event& event, bool was_there);

}  // namespace fastjit::capture
