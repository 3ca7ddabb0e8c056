#pragma once
#include <cstdint>

namespace fastjit::support {

/// The operations of Python on floats that programs run themselves: those of capture::NumberOp.
enum class Arithmetic : uint8_t { Add, Sub, Mul, Div, Pow, Neg, Sqrt };

}  // namespace fastjit::support
