#pragma once
#include "plan/program.h"

namespace fastjit::plan {

/// Makes loops of launches that repeat. Which launches run, in which order and on which operands, stays as it is, so
/// this asks nothing about what depends on what.
void roll(Program& program);
/// The same of steps of any kind, in rounds with a call of torch's, which the executor of this library runs: `graph` is
/// what was planned. A program for any size stays as it is.
void roll_steps(Program& program, const ir::Graph& graph);

}  // namespace fastjit::plan
