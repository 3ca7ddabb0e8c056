#pragma once
#include "plan/program.h"

namespace fastjit::plan {

/// Slots for tensors that live one after the other, and for places that are the same, are one.
void share_slots(Program& program);
/// Leaves out the slots that no step and no result names.
void drop_unused_slots(Program& program);
/// Numbers the tensors that a run makes or is given by torch: Slot::index, Program::tensors.
void number_tensors(Program& program);

}  // namespace fastjit::plan
