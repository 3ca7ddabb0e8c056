#pragma once
// The table of formulas.def.
#include "capture/record/trace.h"

namespace fastjit::capture {

/// Whether what this node of autograd's graph ran has a row.
bool is_known_formula(const Trace& trace, uint32_t node);

}  // namespace fastjit::capture
