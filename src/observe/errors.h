#pragma once
// Errors that the observer meets when it asks objects. Many functions of Python's C interface run the handlers of
// signals, and fail with what these raise, as Ctrl-C does: that is the caller's.

namespace fastjit::observe {

/// Raises the current error, if any, at the next occasion where Python would run a handler.
void put_off_error() noexcept;

/// Clears an error that asking an object has raised; what is no Exception is put off.
void forget_error() noexcept;

}  // namespace fastjit::observe
