#include "ir/strides.h"

namespace fastjit::ir {

template <class Number>
static Number extent_of(std::span<const Number> sizes, std::span<const Number> strides) {
  Number extent = 1;
  for (size_t d = 0; d < sizes.size(); ++d) extent += (sizes[d] - 1) * strides[d];
  return extent;
}

int64_t extent(std::span<const int64_t> sizes, std::span<const int64_t> strides) { return extent_of(sizes, strides); }
Dim extent(std::span<const Dim> sizes, std::span<const Dim> strides) { return extent_of(sizes, strides); }

std::optional<std::vector<Dim>> reshape_strides(std::span<const Dim> sizes, std::span<const Dim> strides,
                                                std::span<const Dim> to) {
  std::vector<Dim> result(to.size(), 1);
  if (Layout{{to.begin(), to.end()}, {}}.numel() == 0) return row_major(to);
  auto next = static_cast<std::ptrdiff_t>(to.size()) - 1;  // dims of `to` still without a stride, from the inner side
  auto d = static_cast<std::ptrdiff_t>(sizes.size()) - 1;
  while (d >= 0) {
    if (sizes[static_cast<size_t>(d)] == 1) {
      --d;
      continue;
    }
    // One run of dims that lie behind each other in memory.
    Dim base = strides[static_cast<size_t>(d)], run = sizes[static_cast<size_t>(d)];
    for (--d; d >= 0; --d) {
      const Dim size = sizes[static_cast<size_t>(d)];
      if (size != 1 && strides[static_cast<size_t>(d)] != base * run) break;
      run *= size;
    }
    Dim taken = 1;
    while (next >= 0 && (taken < run || to[static_cast<size_t>(next)] == 1)) {
      result[static_cast<size_t>(next)] = base * taken;
      taken *= to[static_cast<size_t>(next)];
      --next;
    }
    if (taken != run) return std::nullopt;
  }
  return result;
}

ViewStrides view_strides(const IndexMap& map, size_t rank, std::span<const Dim> strides_of_base) {
  ViewStrides view{0, std::vector<Dim>(rank, 0)};
  for (size_t r = 0; r < map.dims.size(); ++r) {
    view.offset += strides_of_base[r] * map.dims[r].offset;
    for (const auto& [dim, coefficient] : map.dims[r].terms) view.strides[dim] += strides_of_base[r] * coefficient;
  }
  return view;
}

}  // namespace fastjit::ir
