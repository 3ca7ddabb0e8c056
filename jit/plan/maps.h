#pragma once
// Affine index maps from the iteration space of a kernel to the indices of a value, as small dense matrices.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "plan/kernel_plan.h"

namespace fastjit::plan {

/// An affine function of the iteration dims: one coefficient per dim, the constant last.
using Linear = std::vector<int64_t>;

/// One Linear per dimension of a value, stored row after row.
struct Map {
  int rows = 0, cols = 0;
  std::vector<int64_t> cells;

  Map() = default;
  Map(int rows, int cols) : rows(rows), cols(cols), cells(static_cast<size_t>(rows) * static_cast<size_t>(cols), 0) {}
  int64_t& at(int row, int col) { return cells[static_cast<size_t>(row * cols + col)]; }
  int64_t at(int row, int col) const { return cells[static_cast<size_t>(row * cols + col)]; }
  bool operator==(const Map&) const = default;
};

/// The iteration space while a kernel is put together: kept dims first, no dim of size 1. `full` and `part` give each
/// dim's weight in the row-major index of the whole space and of its own (kept or reduced) half.
struct Space {
  std::vector<int64_t> sizes, full, part;
  std::vector<DimKind> kinds;
  int64_t kept = 1, reduced = 1;  // numbers of points

  int rank() const { return static_cast<int>(sizes.size()); }
  bool has_reduced() const { return reduced > 1; }
};

/// The space of a value of these sizes, or of a reduction over `dims` of them.
Space make_frame(std::span<const int64_t> sizes, std::span<const uint8_t> dims);

/// Iteration dim `dim` becomes two, the inner one of size `inner`.
struct Split {
  int dim;
  int64_t inner;
};
void split(Space& frame, const Split& how);

/// What unravel() found: the map; or how the frame must be split before there is one; or that there is none.
struct Unraveled {
  std::optional<Map> map;
  std::optional<Split> split{};
};
/// The indices into `sizes` of the element whose row-major position is `position`. There are none where the position
/// does not fall apart into affine functions.
Unraveled unravel(Linear position, std::span<const int64_t> sizes, const Space& frame);

/// sum(weights[row] * map.row): a row-major position or an address.
Linear dot(std::span<const int64_t> weights, const Map& map);

/// The operand's map below a View node whose own map is `map`.
Map below(const ir::IndexMap& view, const Map& map);

/// The map of an operand of `sizes` broadcast to the rank of `map` (sizes of 1 stay at index 0).
Map broadcast_map(const Map& map, std::span<const int64_t> sizes);

/// Strides of the same elements under other sizes, if strides can express that.
std::optional<std::vector<int64_t>> reshape_strides(std::span<const int64_t> sizes, std::span<const int64_t> strides,
                                                    std::span<const int64_t> to);

/// If the view only permutes dims: for each operand dim its place in the result.
std::optional<std::vector<uint8_t>> permutation(const ir::IndexMap& view, size_t rank);

/// No two indices share an element, and no gaps.
bool is_dense(std::span<const int64_t> sizes, std::span<const int64_t> strides);
/// Some elements surely share memory: a dim does not move.
bool overlaps(std::span<const int64_t> sizes, std::span<const int64_t> strides);
int64_t count(std::span<const int64_t> sizes);
/// Equal strides where they matter: dims of size 1 do not.
bool same_strides(std::span<const int64_t> sizes, std::span<const int64_t> a, std::span<const int64_t> b);

}  // namespace fastjit::plan
