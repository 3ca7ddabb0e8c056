#pragma once
// The body of a loop as a plan of its own: launches that every round repeats, or steps of which some are calls of
// torch's.
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
  /// An alias that begins elsewhere in each round.
  struct Sliding {
    SlotId alias;
    std::vector<Dim> offsets;  // per round
  };
  std::shared_ptr<const ir::Graph> graph;  // what is planned
  Program program;
  bool has_calls = false;            // torch computes or guards ask for some of it: steps of any kind
  std::vector<KernelStep> launches;  // of a round, in order, at the recorded sizes
  std::vector<LaunchDims> dims;      // theirs
  std::vector<Moving> moving;
  std::vector<Sliding> sliding;
  std::vector<ir::Layout> slots;  // of the program
  std::vector<Dim> places;        // per slot, in bytes: where a temporary lies in the loop's scratch
  std::vector<Dim> spare;         // per carried value: where in the scratch it lies every other round; empty with calls
  std::vector<uint32_t> calls;    // per call of `graph`: its number in the graph around the loop
  uint32_t guards = 0;            // values that guards ask for in a round
  Dim scratch = 0;                // bytes: first what the program takes
};

/// Plans the body of a loop with so many rounds and carried values, in a graph with the symbols `around`. Nothing: it
/// is no list of launches that are alike in all rounds, or of steps where it has guards or `calls` says that torch may
/// compute some of it, or a placed value would be copied. ExternSteps name calls by their number in `body`.
std::optional<Body> plan_body(ir::Graph body, Dim trip, uint32_t carried, bool calls, const PlanOptions& options,
                              ir::Symbols& around);

/// Whether torch computes or guards ask for some of the loop's rounds.
bool calls_torch(const ir::LoopAttr& loop);
/// Whether the node is a Final of such a loop that is no memory of the program's: the last round has made its tensor.
bool is_handed(const ir::Graph& graph, ir::NodeId id);

/// As plan(), of a graph that is staged.
Program plan_staged(const ir::Graph& graph, const PlanOptions& options, const std::vector<Body>& bodies);

}  // namespace fastjit::plan
