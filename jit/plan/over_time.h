#pragma once
// A loop inside a kernel: what rounds hand on stays in registers.
#include <optional>

#include "plan/loop_step.h"

namespace fastjit::plan {

struct OverTime {
  KernelPlan plan;
  SizedLoop loop;  // inside; its launch has no kernel yet and is not cut
};

/// `loop` as one launch that runs all rounds, if its body is one pointwise kernel whose points do not need each other's
/// results, or one small kernel.
std::optional<OverTime> over_time(const LoopSlots& slots, const SizedLoop& loop);

/// Whether it would be, if all that the loop is given and gives lies apart.
bool fits_over_time(const ir::LoopAttr& attr, const Body& body);

}  // namespace fastjit::plan
