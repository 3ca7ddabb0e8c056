#pragma once
// The body of a loop as a plan of its own: launches that every round repeats.
#include <memory>
#include <optional>
#include <vector>

#include "plan/program.h"
#include "plan/shape.h"

namespace fastjit::plan {

/// Sizes and places are in expressions of the symbols around the loop.
struct Body {
  /// An operand of a launch whose offset differs from round to round.
  struct Moving {
    LoopStep::Operand of;
    std::vector<Dim> offsets;  // per round
  };
  std::shared_ptr<const ir::Graph> graph;  // what is planned
  Program program;
  std::vector<KernelStep> launches;  // of a round, in order, at the recorded sizes
  std::vector<LaunchDims> dims;      // theirs
  std::vector<Moving> moving;
  std::vector<ir::Layout> slots;  // of the program
  std::vector<Dim> places;        // per slot, in bytes: where a temporary lies in the loop's scratch
  std::vector<Dim> spare;         // per carried value: where in the scratch it lies every other round
  Dim scratch = 0;                // bytes: first what the program takes
};

/// Plans the body of a loop with so many rounds and carried values, in a graph with the symbols `around`. Nothing: it
/// is no list of launches that are alike in all rounds, or torch's library would have to compute a product, or a placed
/// value would be copied.
std::optional<Body> plan_body(ir::Graph body, Dim trip, uint32_t carried, const PlanOptions& options,
                              ir::Symbols& around);

/// As plan(), of a graph that is staged.
Program plan_staged(const ir::Graph& graph, const PlanOptions& options, const std::vector<Body>& bodies);

}  // namespace fastjit::plan
