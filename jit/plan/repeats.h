#pragma once
// Where a list repeats itself: Main and Lorentz's maximal runs.
#include <cstdint>
#include <functional>
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

/// Rounds that follow each other, of `period` tokens each.
struct Stretch {
  uint32_t begin = 0, period = 0;
  int64_t trip = 0;
  uint32_t end() const { return begin + static_cast<uint32_t>(trip) * period; }
};

/// Stretches of three equal rounds or more that lie apart, in order: those first chosen that leave most tokens out, at
/// least so many. `accept` is asked of the first round, from a token to another.
std::vector<Stretch> stretches(std::span<const uint32_t> tokens, int64_t fewest_saved,
                               const std::function<bool(uint32_t, uint32_t)>& accept);

}  // namespace fastjit::plan
