#pragma once
// A loop as a step: where the operands of its body's launches lie in each round.
#include <functional>
#include <vector>

#include "plan/body.h"

namespace fastjit::plan {

/// As Place, of a program for any size.
struct SizedPlace {
  SlotId slot = kNoSlot;
  Dim offset = 0;
};

/// A loop of the graph and where its operands and finals lie in the program.
struct LoopSlots {
  const ir::LoopAttr& attr;
  const Body& body;
  std::vector<SizedPlace> operands;
  std::vector<SlotId> finals;
  /// A slot like this one of the body's, at this byte of the loop's scratch.
  std::function<SlotId(SlotId like, Dim offset)> part;
};

/// A loop, and what of it depends on sizes.
struct SizedLoop {
  LoopStep step;                    // at the recorded ones
  std::vector<LaunchDims> body;     // per launch
  std::vector<Dim> deltas, places;  // per walk; per place of the table its offset
};

/// Kernels of its launches are the body's.
SizedLoop loop_step(const LoopSlots& slots);

/// Where operands that jump lie in each round, one list for each.
using Columns = std::vector<std::vector<SizedPlace>>;
/// Among the walks or the jumps of `loop`, unless it stays where it is: `places` has one for each round. The columns of
/// its jumps are added to `columns`.
void add_places(SizedLoop& loop, LoopStep::Operand of, std::vector<SizedPlace> places, Columns& columns);
/// The table of the jumps.
void fill_table(SizedLoop& loop, const Columns& columns);

}  // namespace fastjit::plan
