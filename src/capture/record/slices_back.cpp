#include "capture/record/slices_back.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string_view>

namespace fastjit::capture {
namespace {

/// One evaluation of CopySlices for a copy into a part.
struct Formula {
  uint32_t begin, end;   // events: what it does but for sums with other gradients
  uint32_t made;         // the event that gives the part
  uint32_t given, left;  // tensors: the gradient of the whole, and what is left of it
  std::vector<int64_t> sizes, strides, part_sizes, part_strides;
  int64_t offset;
};

const Use& use_of(const Event& event, size_t arg) { return event.args[arg].uses[0]; }
const Use& result_of(const Event& event) { return flat_results(event)[0]; }

/// In the round that wrote first nobody asks for what is left, and it is not made.
std::optional<Formula> formula_at(const Trace& trace, uint32_t at) {
  constexpr std::array<std::string_view, 4> kFirst{"aten::new_empty_strided", "aten::copy_", "aten::as_strided",
                                                   "aten::clone"};
  const Event& formula = trace.events[at];
  if (!formula.name.ends_with("CopySlices")) return std::nullopt;
  std::vector<uint32_t> steps;
  for (uint32_t i = at + 1; i < formula.end; i = std::max(trace.events[i].end, i + 1)) steps.push_back(i);
  const auto is = [&](size_t which, std::string_view name) {
    return which < steps.size() && trace.events[steps[which]].name == name;
  };
  for (size_t which = 0; which < kFirst.size(); ++which)
    if (!is(which, kFirst[which])) return std::nullopt;
  const auto step = [&](size_t which) -> const Event& { return trace.events[steps[which]]; };
  const uint32_t given = use_of(step(0), 0).tensor, left = result_of(step(0)).tensor;
  const uint32_t part = result_of(step(2)).tensor, made = result_of(step(3)).tensor;
  if (use_of(step(1), 0).tensor != left || use_of(step(1), 1).tensor != given || use_of(step(2), 0).tensor != left ||
      use_of(step(3), 0).tensor != part || !step(2).args[3].constant.isInt())
    return std::nullopt;
  size_t next = kFirst.size();
  const bool is_cleared = is(next, "aten::zeros_like");
  next += is_cleared;
  if (is(next, "aten::to.dtype_layout") && result_of(step(next)).tensor == made) ++next;
  if (is_cleared && !(is(next, "aten::copy_") && use_of(step(next), 0).tensor == part &&
                      use_of(step(next), 1).tensor == result_of(step(kFirst.size())).tensor))
    return std::nullopt;
  next += is_cleared;
  return Formula{steps[0],
                 next < steps.size() ? steps[next] : formula.end,
                 steps[3],
                 given,
                 left,
                 step(0).args[1].constant.toIntVector(),
                 step(0).args[2].constant.toIntVector(),
                 step(2).args[1].constant.toIntVector(),
                 step(2).args[2].constant.toIntVector(),
                 step(2).args[3].constant.toInt()};
}

std::vector<int64_t> without(std::vector<int64_t> items, size_t which) {
  items.erase(items.begin() + static_cast<std::ptrdiff_t>(which));
  return items;
}

/// The row along the dim that the part is; nothing: it is none.
std::optional<int64_t> row_along(const Formula& formula, size_t dim) {
  const int64_t stride = formula.strides[dim];
  if (without(formula.sizes, dim) != formula.part_sizes || without(formula.strides, dim) != formula.part_strides ||
      stride <= 0 || formula.offset % stride != 0 || formula.offset / stride >= formula.sizes[dim])
    return std::nullopt;
  return formula.offset / stride;
}

/// Whether an operator of these events is given the tensor.
bool is_given(const Trace& trace, uint32_t tensor, size_t begin, size_t end) {
  const std::span events(trace.events);
  return std::ranges::any_of(events.subspan(begin, end - begin),
                             [&](const Event& event) { return is_argument(event, tensor); });
}

/// Nothing: rounds do not write one row each, one after the other, or somebody else reads what is left of the gradient,
/// or adds to it.
std::optional<Slices> slices_of(const Trace& trace, const std::vector<Formula>& rounds) {
  for (size_t round = 0; round < rounds.size(); ++round) {
    const bool is_last = round + 1 == rounds.size();
    if (!is_last && rounds[round + 1].given != rounds[round].left) return std::nullopt;
    const size_t next = is_last ? trace.events.size() : rounds[round + 1].begin;
    if (is_given(trace, rounds[round].left, rounds[round].end, next)) return std::nullopt;
  }
  for (size_t dim = 0; dim < rounds[0].sizes.size(); ++dim) {
    std::vector<int64_t> rows;
    for (const Formula& one : rounds)
      if (const std::optional<int64_t> row = row_along(one, dim)) rows.push_back(*row);
    if (rows.size() != rounds.size()) continue;
    const bool falls = rows[0] > rows[1];
    const auto is_next = [&](int64_t row, int64_t next) { return next == row + (falls ? -1 : 1); };
    if (std::ranges::adjacent_find(rows, std::not_fn(is_next)) != rows.end()) continue;
    Slices out{.dim = dim, .before = static_cast<uint32_t>(std::ranges::min(rows)), .falls = falls};
    for (const Formula& one : rounds) {
      out.begins.push_back(one.begin);
      out.ends.push_back(one.end);
      out.made.push_back(one.made);
    }
    return out;
  }
  return std::nullopt;
}

}  // namespace

std::vector<Slices> slices_in(const Trace& trace, const PythonLoop& back) {
  std::vector<std::vector<Formula>> all;  // the first of each round, the second and so on
  for (uint32_t round = 0; round < back.rounds(); ++round) {
    size_t which = 0;
    for (uint32_t i = back.begins[round].event; i < back.begins[round + 1].event; ++i) {
      const std::optional<Formula> formula = formula_at(trace, i);
      if (!formula) continue;
      if (round == 0) all.emplace_back();
      if (which == all.size()) return {};
      all[which++].push_back(*formula);
    }
    if (which != all.size()) return {};
  }
  std::vector<Slices> out;
  for (const std::vector<Formula>& rounds : all)
    if (std::optional<Slices> slices = slices_of(trace, rounds)) out.push_back(std::move(*slices));
  return out;
}

}  // namespace fastjit::capture
