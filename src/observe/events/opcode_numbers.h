#pragma once
// The numbers of this Python version's instructions.
#include <Python.h>

namespace fastjit::observe {

enum Opcode : int {
#define OP(name, number, method) k_##name = number,
#include "observe/events/opcodes.def"
#undef OP
// What this version does not have.
#if PY_VERSION_HEX >= 0x030C0000
  k_PRECALL = -3,
#endif
#if PY_VERSION_HEX < 0x030E0000
  k_LOAD_FAST_BORROW = -1,
  k_LOAD_SMALL_INT = -2,
#else
  k_BINARY_SUBSCR = -1,
#endif
};

/// Arguments of BINARY_OP. The in-place forms follow the others, in the same order; 3.14 has container[index] behind
/// them.
enum BinaryOperator : int { kAdd = 0, kOr = 7, kSubtract = 10, kFirstInPlace = 13, kSubscript = 26 };

}  // namespace fastjit::observe
