#pragma once
// Which of its loops eager runs a pointwise operator in (ATen/TensorIterator.cpp, cpu/Loops.h).
#include <initializer_list>

#include "capture/lower/util.h"

namespace fastjit::capture {

/// True if no element goes through the vector loop of a kernel of these operands, all of `type`, whose result is memory
/// of its own: rows are shorter than two vectors, or operands are not contiguous along them.
bool in_scalar_loop(const Call& call, std::initializer_list<size_t> operands, ScalarType type);

}  // namespace fastjit::capture
