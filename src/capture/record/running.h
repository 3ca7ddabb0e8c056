#pragma once

namespace fastjit::capture {

/// Whether an operator that this thread records runs now: what Python code its kernel runs is the operator's own.
bool runs_operator() noexcept;

}  // namespace fastjit::capture
