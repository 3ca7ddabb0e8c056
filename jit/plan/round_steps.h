#pragma once
// A loop whose rounds call torch as a step: its body's steps, with what each round hands on to the next.
#include <functional>
#include <vector>

#include "plan/body.h"

namespace fastjit::plan {

/// Such a loop of the graph and where its operands and finals lie in the program.
struct RoundSlots {
  const ir::LoopAttr& attr;
  const Body& body;
  std::vector<SlotId> operands;  // per operand of the loop: a tensor as the body's input is
  std::vector<SlotId> finals;
  /// A new slot of the program, of the layout that this one of the body's has. Of an Alias: on `base`, so many elements
  /// further.
  std::function<SlotId(SlotId like, SlotId base, Dim offset)> make;
  /// The same of a temporary, at this byte of the loop's scratch.
  std::function<SlotId(SlotId like, Dim offset)> part;
};

/// A loop, what it is handed before and hands on behind it, and what of it depends on sizes.
struct SizedRepeat {
  std::vector<HandStep> before, after;
  RepeatStep step;  // at the recorded ones
  Dim trip = step.trip;
  std::vector<LaunchDims> launches;  // per launch of its body
  std::vector<Dim> deltas, places;   // per column: elements a round, and those of the first round
};

/// Kernels of its launches are the body's.
SizedRepeat repeat_step(const RoundSlots& slots);

/// Whether, of a loop of any number of rounds, all that moves does so by equal distances.
bool moves_evenly(const ir::LoopAttr& attr, const Body& body);

}  // namespace fastjit::plan
