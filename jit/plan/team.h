#pragma once
#include "plan/program.h"

namespace fastjit::plan {

/// Sets LoopStep::team and `waits` of the loops whose rounds are too short to wake threads for each launch, and long
/// enough to share each one between threads that stay awake.
void share_rounds(Program& program, const PlanOptions& options);

/// Whether some launch is split between threads, or some loop is a team's.
bool takes_threads(const Program& program);

}  // namespace fastjit::plan
