#pragma once
// The numbers of this Python version's instructions.
#include <Python.h>

namespace fastjit::observe {

enum Opcode : int {
#define OP(name, number, method) k_##name = number,
#include "observe/opcodes.def"
#undef OP
};

/// Arguments of BINARY_OP. The in-place forms follow the others, in the same order.
enum BinaryOperator : int { kAdd = 0, kSubtract = 10, kFirstInPlace = 13 };

}  // namespace fastjit::observe
