#pragma once
// From a draft to a finished kernel plan: dims ordered and merged, the vector dim chosen, work cut into units.
#include "plan/draft.h"
#include "plan/program.h"

namespace fastjit::plan {

/// What of a launch depends on sizes.
struct LaunchDims {
  std::vector<Dim> sizes, strides, offsets;
  Dim block = 0, scratch_stride = 0;
};

/// A kernel and its launch; `buffers` stands for the launch's operands until slots are numbered.
struct Shaped {
  KernelPlan plan;
  KernelStep step;  // at the recorded sizes
  LaunchDims dims;
  std::vector<BufferId> buffers;
  bool kept_lanes = false;  // lanes run along a kept dim
};

/// Keeps the outermost dim on its own, so that a matrix product and its epilogue can run over a few rows at a time.
enum class Rows : uint8_t { Merge, Separate };

Shaped shape(const World& world, const Space& frame, std::span<const Root> roots, const Draft& draft,
             const PlanOptions& options, Rows rows);

}  // namespace fastjit::plan
