#include "plan/repeats.h"

#include <algorithm>

#include "plan/work.h"
#include "support/mix.h"

namespace fastjit::plan {

namespace {

// Every run of three periods holds an anchor, a multiple of its period, and the anchor's period behind it: from there
// it is extended to both sides.
class Finder {
 public:
  explicit Finder(std::span<const uint32_t> tokens) : tokens_(tokens), ends_(tokens.size()) {
    hashes_.resize(size() + 1);
    powers_.resize(size() + 1);
    powers_[0] = 1;
    for (size_t i = 0; i < size(); ++i) {
      hashes_[i + 1] = hashes_[i] * kBase + support::mix(kBase, tokens[i]);
      powers_[i + 1] = powers_[i] * kBase;
    }
  }

  std::vector<Repeat> run() {
    for (uint32_t period = 1; size_t{3} * period <= size(); ++period) {
      if (has_no_other(period)) continue;
      for (uint32_t anchor = next_alike(0, period); anchor + period < size();) {
        if (is_known(anchor, period)) {
          anchor = last_before(ends_[anchor] - 2 * period, period);
        } else if (goes_on(anchor, period)) {
          const uint32_t end = extend(anchor, period);
          if (end > anchor + 2 * period) anchor = last_before(end - period, period);
        }
        anchor = next_alike(anchor + period, period);
      }
    }
    return std::move(found_);
  }

 private:
  static constexpr uint64_t kBase = 0x1F3D5B79A2C4E681u;

  size_t size() const { return tokens_.size(); }
  uint64_t hash(size_t begin, size_t end) const { return hashes_[end] - hashes_[begin] * powers_[end - begin]; }

  /// The first anchor from this one on whose token is that of the next anchor, or one that is_known().
  uint32_t next_alike(uint32_t anchor, uint32_t period) const {
    const uint32_t *tokens = tokens_.data(), *ends = ends_.data();
    const uint32_t first = anchor, last = static_cast<uint32_t>(size()) - period;
    while (anchor < last && tokens[anchor] != tokens[anchor + period] && ends[anchor] <= anchor + 2 * period)
      anchor += period;
    work((anchor - first) / period + 1);
    return anchor;
  }

  /// The greatest length in [0, most] for which `is_equal` holds, which holds for all that are less.
  template <class IsEqual>
  static uint32_t longest(uint32_t most, IsEqual is_equal) {
    uint32_t low = 0, step = 1;
    while (step <= most - low && is_equal(low + step)) {
      low += step;
      step *= 2;
    }
    uint32_t high = step <= most - low ? low + step - 1 : most;
    for (; low < high; work()) {
      const uint32_t middle = (low + high + 1) / 2;
      if (is_equal(middle))
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }

  static uint32_t last_before(uint32_t place, uint32_t period) { return (place - 1) / period * period; }

  /// Whether the two periods from the anchor on, and the token behind, are in a repeat that was found. By Fine and
  /// Wilf's theorem they then are of no other period, but of multiples of that one's.
  bool is_known(uint32_t anchor, uint32_t period) const { return ends_[anchor] > anchor + 2 * period; }

  /// By the same theorem: whether no room is left beside the longest repeat, which is not in another one of so much.
  bool has_no_other(uint32_t period) const {
    const uint32_t beside = std::max(longest_.begin, static_cast<uint32_t>(size()) - longest_.end);
    const uint32_t length = longest_.end - longest_.begin;
    return period > longest_.period && length >= period + longest_.period && 2 * period >= beside + longest_.period;
  }

  /// Whether it does beyond the anchor's period, as it must for three of them.
  bool goes_on(uint32_t anchor, uint32_t period) const {
    const size_t next = size_t{anchor} + period, length = size_t{period} + 1;
    if (next + length > size() || tokens_[anchor + 1] != tokens_[next + 1]) return false;
    return hash(anchor, anchor + length) == hash(next, next + length);
  }

  /// Where the repeat around the anchor ends.
  uint32_t extend(uint32_t anchor, uint32_t period) {
    const uint32_t next = anchor + period;
    const uint32_t right = longest(static_cast<uint32_t>(size()) - next, [&](uint32_t length) {
      return hash(anchor, anchor + length) == hash(next, next + length);
    });
    const uint32_t left = longest(std::min(anchor, period - 1), [&](uint32_t length) {
      return hash(anchor - length, anchor) == hash(next - length, next);
    });
    const uint32_t end = next + right;
    if (left + right < 2 * period) return end;
    found_.push_back({anchor - left, end, period});
    if (end - found_.back().begin > longest_.end - longest_.begin) longest_ = found_.back();
    work(end - (anchor - left));
    for (uint32_t i = anchor - left; i < end; ++i) ends_[i] = std::max(ends_[i], end);
    return end;
  }

  std::span<const uint32_t> tokens_;
  std::vector<uint64_t> hashes_, powers_;  // of the tokens before each place
  std::vector<uint32_t> ends_;             // per token: where the repeat that holds it and ends last does so
  std::vector<Repeat> found_;
  Repeat longest_;
};

}  // namespace

std::vector<Repeat> repeats(std::span<const uint32_t> tokens) { return Finder(tokens).run(); }

std::vector<Stretch> stretches(std::span<const uint32_t> tokens, int64_t fewest_saved,
                               const std::function<bool(uint32_t, uint32_t)>& accept) {
  constexpr int64_t kFewestRounds = 3;
  std::vector<Repeat> found = repeats(tokens);
  std::ranges::stable_sort(found, [](const Repeat& a, const Repeat& b) {
    const uint32_t saved_a = a.end - a.begin - a.period, saved_b = b.end - b.begin - b.period;
    return saved_a != saved_b ? saved_a > saved_b : a.period < b.period;
  });
  std::vector<Stretch> chosen;
  std::vector<bool> taken(tokens.size(), false);
  const auto take = [&](uint32_t begin, uint32_t end, uint32_t period) {
    const Stretch made{begin, period, (end - begin) / period};
    if (made.trip < kFewestRounds || (made.trip - 1) * period < fewest_saved) return;
    const auto first = tokens.begin() + begin;
    if (!std::equal(first, tokens.begin() + (made.end() - period), first + period)) return;
    if (!accept(begin, begin + period)) return;
    chosen.push_back(made);
    std::fill(taken.begin() + begin, taken.begin() + made.end(), true);
  };
  for (const Repeat& repeat : found) {
    work(repeat.end - repeat.begin);
    for (uint32_t begin = repeat.begin, end = begin; begin < repeat.end; begin = end + 1) {
      for (end = begin; end < repeat.end && !taken[end];) ++end;
      take(begin, end, repeat.period);
    }
  }
  std::ranges::sort(chosen, {}, &Stretch::begin);
  return chosen;
}

}  // namespace fastjit::plan
