#pragma once
// A loop as a step: where the operands of its body's launches lie in each round.
#include <functional>
#include <vector>

#include "plan/body.h"

namespace fastjit::plan {

/// A loop of the graph and where its operands and finals lie in the program.
struct LoopSlots {
  const ir::LoopAttr& attr;
  const Body& body;
  std::vector<Place> operands;
  std::vector<SlotId> finals;
  std::function<SlotId(const Slot& like, int64_t offset)> part;  // a slot at this byte of the loop's scratch
};

/// Kernels of its launches are the body's.
LoopStep loop_step(const LoopSlots& slots);

/// Among the walks or the jumps of `step`, unless it stays where it is: `places` has one for each round. The columns of
/// its jumps are added to `columns`.
void add_places(LoopStep& step, LoopStep::Operand of, std::vector<Place> places,
                std::vector<std::vector<Place>>& columns);
/// The table of the jumps.
void fill_table(LoopStep& step, const std::vector<std::vector<Place>>& columns);

}  // namespace fastjit::plan
