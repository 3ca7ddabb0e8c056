#pragma once
#include "plan/program.h"

namespace fastjit::plan {

/// Sets LoopStep::team and `waits` of the loops whose rounds are too short to wake threads for each launch, and long
/// enough to share each one between threads that stay awake.
void share_rounds(Program& program, const PlanOptions& options);

}  // namespace fastjit::plan
