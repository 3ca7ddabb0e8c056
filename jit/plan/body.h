#pragma once
// The body of a loop as a plan of its own: launches that every round repeats.
#include <memory>
#include <optional>
#include <vector>

#include "plan/program.h"

namespace fastjit::plan {

struct Body {
  /// An operand of a launch whose offset differs from round to round.
  struct Moving {
    LoopStep::Operand of;
    std::vector<int64_t> offsets;  // per round
  };
  std::shared_ptr<const ir::Graph> graph;  // what is planned
  Program program;
  std::vector<KernelStep> launches;  // of a round, in order
  std::vector<Moving> moving;
  std::vector<int64_t> spare;  // per carried value, in bytes: where in the loop's scratch it lies every other round
  int64_t scratch = 0;         // bytes: first what the program takes
};

/// Plans the body of a loop with so many rounds and carried values. Nothing: it is no list of launches that are alike
/// in all of them, or torch's library would have to compute a product, or a placed value would be copied.
std::optional<Body> plan_body(ir::Graph body, int64_t trip, uint32_t carried, const PlanOptions& options);

/// As plan(), of a graph that is staged.
Program plan_staged(const ir::Graph& graph, const PlanOptions& options, const std::vector<Body>& bodies);

}  // namespace fastjit::plan
