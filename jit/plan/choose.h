#pragma once
// Which values get memory and which are computed where they are read: one verdict a value, made before any kernel is
// formed, from what lies between the value and the nearest values in memory on either side. What precedes those has no
// say, so equal blocks are cut alike wherever they stand.
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "plan/cost.h"

namespace fastjit::plan {

/// Why a value is in memory or not.
enum class Why : uint8_t {
  Free,    // one kernel reads it and computes it
  Again,   // several kernels read it and each computes it: that reads no more than the value itself, and costs less
  Needed,  // the caller, a call or a reduction needs it there
  Join,    // several kernels want it, and computing it again would read more than its own size
  Dear,    // several kernels want it, and computing it again costs more than storing and reading it
  Spread,  // one kernel wants it in several places, each broadcast to many points, and that costs more
  Long,    // what it is computed from is as much as one kernel holds
};
std::string_view text(Why why);
constexpr bool is_stored(Why why) { return why > Why::Again; }

struct Choice {
  std::vector<Why> why;             // per node
  std::vector<uint64_t> structure;  // per node: hash of how it is made of values in memory, without their sizes
};

/// `needed`: nodes that must be in memory. Linear in the number of nodes.
Choice choose(const ir::Graph& graph, const std::vector<bool>& live, const std::vector<bool>& needed,
              const Costs& costs);

}  // namespace fastjit::plan
