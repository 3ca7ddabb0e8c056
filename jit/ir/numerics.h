#pragma once
// How much rounding a program may leave out.
#include <cstdint>

namespace fastjit::ir {

/// Eager: every op rounds to its type, as eager does. Accurate: float32 between half-precision ops, one rounding a
/// stored tensor. Fast: also contraction, up to 4 ULP.
enum class Numerics : uint8_t { Eager, Accurate, Fast };

}  // namespace fastjit::ir
