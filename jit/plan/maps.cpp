// Index maps: composition through views and reshapes, and the splits of iteration dims that reshapes ask for.
#include "plan/maps.h"

#include <algorithm>
#include <numeric>

namespace fastjit::plan {

Dim count(std::span<const Dim> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), Dim(1), std::multiplies<>());
}

Space make_frame(std::span<const Dim> sizes, std::span<const uint8_t> dims) {
  Space frame;
  const std::vector<Dim> full = ir::row_major(sizes);
  for (const bool reduced : {false, true}) {
    const int first = frame.rank();
    for (size_t d = 0; d < sizes.size(); ++d) {
      const bool is_reduced = std::find(dims.begin(), dims.end(), d) != dims.end();
      if (is_reduced != reduced || sizes[d] == 1) continue;
      frame.sizes.push_back(sizes[d]);
      frame.full.push_back(full[d]);
      frame.kinds.push_back(reduced ? DimKind::Reduced : DimKind::Kept);
    }
    Dim weight = 1;
    frame.part.resize(frame.sizes.size());
    for (int d = frame.rank() - 1; d >= first; --d) {
      frame.part[static_cast<size_t>(d)] = weight;
      weight *= frame.sizes[static_cast<size_t>(d)];
    }
    (reduced ? frame.reduced : frame.kept) = weight;
  }
  return frame;
}

void Range::add(Dim coefficient, Dim size) {
  is_known = is_known && !coefficient.is_symbolic() && !size.is_symbolic();
  const int64_t most = coefficient.hint() * (size.hint() - 1);
  (most < 0 ? low : high) += most;
}

Range range_of(const Linear& address, const Space& frame) {
  Range range(address.back());
  for (size_t d = 0; d < frame.sizes.size(); ++d) range.add(address[d], frame.sizes[d]);
  return range;
}

/// One begins between the steps that both go by, as the odd columns do between the even ones.
static bool are_interleaved(const Linear& a, const Linear& b) {
  int64_t step = 0;
  for (const Linear* address : {&a, &b})
    for (size_t d = 0; d + 1 < address->size(); ++d) {
      if ((*address)[d].is_symbolic()) return false;
      step = std::gcd(step, (*address)[d].hint());
    }
  const Dim between = a.back() - b.back();
  return step > 1 && !between.is_symbolic() && between.hint() % step != 0;
}

bool are_apart(Linear a, Linear b, const Space& frame) {
  if (are_interleaved(a, b)) return true;
  a.back() -= b.back();  // both may lie as far on as the round of a loop says
  b.back() = 0;
  return range_of(a, frame).is_apart_from(range_of(b, frame));
}

void split(Space& frame, const Split& how) {
  const auto d = static_cast<std::ptrdiff_t>(how.dim);
  const auto at = static_cast<size_t>(how.dim);
  frame.sizes.insert(frame.sizes.begin() + d, frame.sizes[at] / how.inner);
  frame.sizes[at + 1] = how.inner;
  frame.full.insert(frame.full.begin() + d, frame.full[at] * how.inner);
  frame.part.insert(frame.part.begin() + d, frame.part[at] * how.inner);
  frame.kinds.insert(frame.kinds.begin() + d, frame.kinds[at]);
}

namespace {

/// a / b where nothing is left over, whatever the symbols are.
std::optional<Dim> exact_quotient(Dim a, Dim b) {
  const Dim times = a / b;
  return identical(times * b, a) ? std::optional(times) : std::nullopt;
}

enum class Division : uint8_t { Affine, AfterSplit, None };

/// position = quotient * divisor + remainder with 0 <= remainder < divisor everywhere in the frame, or after `how`. The
/// quotient, zeros before, is filled; the remainder takes the position's place.
Division divide(Linear& position, Dim divisor, const Space& frame, std::span<Dim> quotient, std::optional<Split>& how) {
  const size_t rank = frame.sizes.size();
  Dim low = 0, high = 0;
  for (size_t d = 0; d < rank; ++d) {
    const Dim c = position[d], size = frame.sizes[d];
    const bool is_negative = c < 0;
    const Dim magnitude = is_negative ? -c : c;
    if (const auto times = exact_quotient(magnitude, divisor)) {
      quotient[d] = is_negative ? -*times : *times;
      position[d] = 0;
      continue;
    }
    const auto inner = exact_quotient(divisor, magnitude);
    if (inner && exact_quotient(size, *inner) && magnitude < divisor && magnitude * size > divisor) {
      how = Split{static_cast<int>(d), *inner};
      return Division::AfterSplit;
    }
    (is_negative ? low : high) += c * (size - 1);
  }
  const Dim offset = position[rank] + low;
  const Dim whole = offset >= 0 ? offset / divisor : -((divisor - 1 - offset) / divisor);
  quotient[rank] = whole;
  position[rank] -= whole * divisor;
  return position[rank] + high < divisor ? Division::Affine : Division::None;
}

}  // namespace

Unraveled unravel(Linear position, std::span<const Dim> sizes, const Space& frame) {
  const int rank = static_cast<int>(sizes.size()), cols = frame.rank() + 1;
  Map map(rank, cols);
  Dim inner = count(sizes);
  int last = rank - 1;
  while (last >= 0 && sizes[static_cast<size_t>(last)] == 1) --last;
  std::optional<Split> how;
  for (int r = 0; r <= last; ++r) {
    const Dim size = sizes[static_cast<size_t>(r)];
    if (size == 1) continue;
    inner /= size;
    const auto row = std::span(map.cells).subspan(static_cast<size_t>(r * cols), static_cast<size_t>(cols));
    if (r == last)
      std::ranges::copy(position, row.begin());
    else if (divide(position, inner, frame, row, how) != Division::Affine)
      return {std::nullopt, how};
  }
  return {std::move(map)};
}

Linear dot(std::span<const Dim> weights, const Map& map) {
  Linear sum(static_cast<size_t>(map.cols), 0);
  for (int r = 0; r < map.rows; ++r)
    for (int c = 0; c < map.cols; ++c) sum[static_cast<size_t>(c)] += weights[static_cast<size_t>(r)] * map.at(r, c);
  return sum;
}

Map below(const ir::IndexMap& view, const Map& map) {
  Map result(static_cast<int>(view.dims.size()), map.cols);
  for (int r = 0; r < result.rows; ++r) {
    const ir::Affine& affine = view.dims[static_cast<size_t>(r)];
    result.at(r, map.cols - 1) = affine.offset;
    for (const auto& [dim, coefficient] : affine.terms)
      for (int c = 0; c < map.cols; ++c) result.at(r, c) += coefficient * map.at(dim, c);
  }
  return result;
}

Map broadcast_map(const Map& map, std::span<const Dim> sizes) {
  const int rank = static_cast<int>(sizes.size()), skip = map.rows - rank;
  Map result(rank, map.cols);
  for (int r = 0; r < rank; ++r) {
    if (sizes[static_cast<size_t>(r)] == 1) continue;
    for (int c = 0; c < map.cols; ++c) result.at(r, c) = map.at(r + skip, c);
  }
  return result;
}

std::optional<std::vector<uint8_t>> permutation(const ir::IndexMap& view, std::span<const Dim> sizes, size_t rank) {
  std::vector<uint8_t> places;
  std::vector<bool> used(rank, false);
  for (size_t d = 0; d < view.dims.size(); ++d) {
    const auto& [offset, terms] = view.dims[d];
    if (!identical(offset, 0)) return std::nullopt;
    if (terms.empty() && identical(sizes[d], 1)) {
      places.push_back(kNoPlace);
      continue;
    }
    if (terms.size() != 1 || terms[0].second != 1 || used[terms[0].first]) return std::nullopt;
    used[terms[0].first] = true;
    places.push_back(terms[0].first);
  }
  return places;
}

bool is_dense(std::span<const Dim> sizes, std::span<const Dim> strides) {
  std::vector<size_t> order;
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] != 1) order.push_back(d);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return strides[a].hint() < strides[b].hint(); });
  Dim expected = 1;
  for (const size_t d : order) {
    if (strides[d] != expected) return false;
    expected *= sizes[d];
  }
  return true;
}

bool overlaps(std::span<const Dim> sizes, std::span<const Dim> strides) {
  if (count(sizes) == 0) return false;
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] > 1 && strides[d] == 0) return true;
  return false;
}

bool same_strides(std::span<const Dim> sizes, std::span<const Dim> a, std::span<const Dim> b) {
  if (count(sizes) == 0) return true;
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] != 1 && a[d] != b[d]) return false;
  return true;
}

}  // namespace fastjit::plan
