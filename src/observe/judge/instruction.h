#pragma once
// The instructions around the one that runs.
#include "observe/events/opcode_numbers.h"

namespace fastjit::observe {

struct Instruction {
  int op = 0, argument = 0, offset = 0;
};

/// The instruction behind `offset`; one of op 0 behind the last.
inline Instruction next_of(const unsigned char* ops, int end, int offset) {
  Instruction out;
  for (++offset; offset < end; ++offset) {
    const int op = ops[2 * offset];
    if (op == k_CACHE) continue;
    out = {op, out.argument << 8 | ops[2 * offset + 1], offset};
    if (op != k_EXTENDED_ARG) return out;
  }
  return {};
}

/// container[index].
inline bool reads_item(const Instruction& i) {
  return i.op == k_BINARY_SUBSCR || (i.op == k_BINARY_OP && i.argument == kSubscript);
}

inline bool loads_local(const Instruction& i) { return i.op == k_LOAD_FAST || i.op == k_LOAD_FAST_BORROW; }

}  // namespace fastjit::observe
