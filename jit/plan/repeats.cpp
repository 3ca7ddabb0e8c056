#include "plan/repeats.h"

#include <algorithm>
#include <numeric>

#include "plan/work.h"
#include "support/mix.h"

namespace fastjit::plan {

namespace {

// Every run of three periods holds an anchor, a multiple of its period, and the anchor's period behind it: from there
// it is extended to both sides.
class Finder {
 public:
  explicit Finder(std::span<const uint32_t> tokens)
      : tokens_(tokens), covers_(tokens.size()), bare_(tokens.size() + 1) {
    std::iota(bare_.begin(), bare_.end(), 0);
    hashes_.reserve(size() + 1);
    powers_.reserve(size() + 1);
    hashes_.push_back(0);
    powers_.push_back(1);
    for (const uint32_t token : tokens) {
      hashes_.push_back(hashes_.back() * kBase + support::mix(kBase, token));
      powers_.push_back(powers_.back() * kBase);
    }
  }

  std::vector<Repeat> run() {
    for (uint32_t period = 1; size_t{3} * period <= size(); ++period) {
      uint64_t anchors = 0;
      for (uint32_t anchor = 0; anchor + period < size(); anchor += period) {
        ++anchors;
        if (tokens_[anchor] != tokens_[anchor + period] || !goes_on(anchor, period)) continue;
        // The last anchor in what is known of this period, or of one that divides it.
        const Repeat& known = covers_[anchor];
        uint32_t end = known.period != 0 && period % known.period == 0 && known.end > anchor + period ? known.end : 0;
        if (end == 0) end = extend(anchor, period);
        if (end > anchor + 2 * period) anchor = (end - period - 1) / period * period;
      }
      work(anchors);
    }
    return std::move(found_);
  }

 private:
  static constexpr uint64_t kBase = 0x1F3D5B79A2C4E681u;

  size_t size() const { return tokens_.size(); }
  uint64_t hash(size_t begin, size_t end) const { return hashes_[end] - hashes_[begin] * powers_[end - begin]; }

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
    for (uint32_t i = bare(anchor - left); i < end; i = bare(i)) {
      work();
      covers_[i] = found_.back();
      bare_[i] = i + 1;
    }
    return end;
  }

  /// The first token from here on that no repeat holds: long ones with many periods are found once for each multiple
  /// of theirs that begins in a shorter one.
  uint32_t bare(uint32_t at) {
    for (; bare_[at] != at; at = bare_[at]) bare_[at] = bare_[bare_[at]];
    return at;
  }

  std::span<const uint32_t> tokens_;
  std::vector<uint64_t> hashes_, powers_;  // of the tokens before each place
  std::vector<Repeat> covers_;             // per token: the first repeat that holds it
  std::vector<uint32_t> bare_;             // per token: a later one up to which all are in repeats, or itself
  std::vector<Repeat> found_;
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
