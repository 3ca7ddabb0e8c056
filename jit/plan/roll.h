#pragma once
#include "plan/program.h"

namespace fastjit::plan {

/// Makes loops of launches that repeat. Which launches run, in which order and on which operands, stays as it is, so
/// this asks nothing about what depends on what.
void roll(Program& program);

}  // namespace fastjit::plan
