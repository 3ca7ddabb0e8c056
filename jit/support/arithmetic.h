#pragma once
#include <cstdint>

namespace fastjit::support {

/// The operations of Python on floats that programs run themselves: those of capture::NumberOp.
enum class Arithmetic : uint8_t { Add, Sub, Mul, Div, Pow, Neg, Sqrt };
/// Those on ints that programs follow where they are made of sizes; // and % as Python has them.
enum class IntArithmetic : uint8_t { Add, Sub, Mul, FloorDiv, Mod, Neg };
/// What Python asks of floats, the comparisons in the order of Py_LT: programs compare the answer with the recorded
/// one.
enum class Test : uint8_t { Lt, Le, Eq, Ne, Gt, Ge, IsNan, IsInf, IsFinite };

}  // namespace fastjit::support
