#pragma once
// The numbers of this Python version's instructions.
#include <Python.h>

namespace fastjit::observe {

enum Opcode : int {
#define OP(name, number, method) k_##name = number,
#include "observe/opcodes.def"
#undef OP
};

}  // namespace fastjit::observe
