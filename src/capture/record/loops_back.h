#pragma once
// Autograd's way back through loops.
#include <vector>

#include "capture/record/trace.h"

namespace fastjit::capture {

/// Adds to Trace::loops the ways back through those that there are. Autograd evaluates the nodes of its graph in the
/// order in which they were made, the last one first. So it goes back round by round, does in each what follows from
/// what the round did and from which gradients come to it, and where the rounds did the same and the gradients of one
/// come from the round before, it does the same in any number of them.
/// Recurrent layers, whose C++ code loops over the steps in time, have such loops where autograd goes back through
/// them.
void find_ways_back(Trace& trace);

/// Whether autograd goes back through no round of the loop, as where they run under no_grad. All but the first and the
/// last run the same operators.
bool is_left_out(const Trace& trace, const PythonLoop& loop);

/// The rounds of such a loop from this one to the one before the last do the same, operator by operator.
inline constexpr uint32_t kSameBack = 2;  // the first adds to no gradient, and the second not in place

/// Of an event in a round of a loop: the same one in another round, where all rounds have as many.
inline uint32_t in_round(const PythonLoop& loop, uint32_t event, uint32_t from, uint32_t to) {
  return event - loop.begins[from].event + loop.begins[to].event;
}

/// What an operator has made in each round of a loop, of which rounds of another one are given some.
struct RoundsGiven {
  std::vector<Use> made;  // by round
  bool falls;             // later rounds are given what earlier ones have made
};
/// Of what rounds of `from`, which all ran the same operators or are a way back through such ones, have made: where
/// all rounds ran the operator, and later rounds are given what later ones have made, or all the other way round.
std::vector<RoundsGiven> given_to_rounds(const Trace& trace, const PythonLoop& to, const PythonLoop& from);

}  // namespace fastjit::capture
