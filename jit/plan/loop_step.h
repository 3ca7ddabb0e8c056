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
  LoopStep step;  // at the recorded ones
  Dim trip = step.trip;
  std::vector<LaunchDims> body;     // per launch
  std::vector<Dim> deltas, places;  // per walk; per place of the table, or of the turns, its offset
};

/// Kernels of its launches are the body's. Throws std::runtime_error where takes_turns() says no.
SizedLoop loop_step(const LoopSlots& slots);

/// As if all that the loop is given and gives lay apart.
LoopSlots slots_apart(const ir::LoopAttr& attr, const Body& body);
/// Whether, of a loop of any number of rounds, what jumps does so by turns.
bool takes_turns(const ir::LoopAttr& attr, const Body& body);

/// Where operands that jump lie in each round, one list for each.
using Columns = std::vector<std::vector<SizedPlace>>;
/// Among the walks or the jumps of `loop`, unless it stays where it is: `places` has one for each round. The columns of
/// its jumps are added to `columns`. False: of a loop of any number of rounds, it does not jump by turns.
bool add_places(SizedLoop& loop, LoopStep::Operand of, std::vector<SizedPlace> places, Columns& columns);
/// The table of the jumps.
void fill_table(SizedLoop& loop, const Columns& columns);

}  // namespace fastjit::plan
