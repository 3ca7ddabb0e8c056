#pragma once
// Where a list repeats itself: Main and Lorentz's maximal runs.
#include <cstdint>
#include <span>
#include <vector>

namespace fastjit::plan {

/// tokens[i] == tokens[i + period] for i in [begin, end - period), and neither before nor behind.
struct Repeat {
  uint32_t begin = 0, end = 0, period = 0;
  bool operator==(const Repeat&) const = default;
};

/// All that hold three periods or more, each with the least period it has, in O(n log n) steps. Stretches are compared
/// by hashes only: whoever relies on a repeat compares its tokens.
std::vector<Repeat> repeats(std::span<const uint32_t> tokens);

}  // namespace fastjit::plan
