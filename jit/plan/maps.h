#pragma once
// Affine index maps from the iteration space of a kernel to the indices of a value, as small dense matrices.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ir/strides.h"
#include "plan/kernel_plan.h"

namespace fastjit::plan {

using ir::Dim;
using ir::reshape_strides;

/// An affine function of the iteration dims: one coefficient per dim, the constant last.
using Linear = std::vector<Dim>;

/// One Linear per dimension of a value, stored row after row.
struct Map {
  int rows = 0, cols = 0;
  std::vector<Dim> cells;

  Map() = default;
  Map(int rows, int cols) : rows(rows), cols(cols), cells(static_cast<size_t>(rows) * static_cast<size_t>(cols), 0) {}
  Dim& at(int row, int col) { return cells[static_cast<size_t>(row * cols + col)]; }
  Dim at(int row, int col) const { return cells[static_cast<size_t>(row * cols + col)]; }
  bool operator==(const Map& o) const { return rows == o.rows && cols == o.cols && identical(cells, o.cells); }
};

/// The iteration space while a kernel is put together: kept dims first, no dim of size 1. `full` and `part` give each
/// dim's weight in the row-major index of the whole space and of its own (kept or reduced) half.
struct Space {
  std::vector<Dim> sizes, full, part;
  std::vector<DimKind> kinds;
  Dim kept = 1, reduced = 1;  // numbers of points

  int rank() const { return static_cast<int>(sizes.size()); }
  bool has_reduced() const { return reduced > 1; }
};

/// The space of a value of these sizes, or of a reduction over `dims` of them.
Space make_frame(std::span<const Dim> sizes, std::span<const uint8_t> dims);

/// From the lowest to the highest value of an offset and what is added to it for each of some indices.
struct Range {
  explicit Range(Dim offset) : low(offset.hint()), high(offset.hint()), is_known(!offset.is_symbolic()) {}
  /// Of an index that goes below `size`.
  void add(Dim coefficient, Dim size);
  /// False where that depends on sizes.
  bool is_apart_from(const Range& other) const {
    return is_known && other.is_known && (high < other.low || other.high < low);
  }
  int64_t low, high;
  bool is_known;
};
Range range_of(const Linear& address, const Space& frame);
/// Whether two addresses in one memory never meet for sure. False where that depends on sizes.
bool are_apart(Linear a, Linear b, const Space& frame);

/// Iteration dim `dim` becomes two, the inner one of size `inner`.
struct Split {
  int dim;
  Dim inner;
};
void split(Space& frame, const Split& how);

/// What unravel() found: the map; or how the frame must be split before there is one; or that there is none.
struct Unraveled {
  std::optional<Map> map;
  std::optional<Split> split{};
};
/// The indices into `sizes` of the element whose row-major position is `position`. There are none where the position
/// does not fall apart into affine functions.
Unraveled unravel(Linear position, std::span<const Dim> sizes, const Space& frame);

/// sum(weights[row] * map.row): a row-major position or an address.
Linear dot(std::span<const Dim> weights, const Map& map);

/// The operand's map below a View node whose own map is `map`.
Map below(const ir::IndexMap& view, const Map& map);

/// The map of an operand of `sizes` broadcast to the rank of `map` (sizes of 1 stay at index 0).
Map broadcast_map(const Map& map, std::span<const Dim> sizes);

/// If the view only permutes the dims of an operand of `sizes`, and leaves out or adds some, of size 1 where it has as
/// many elements: for each operand dim its place in the result, which has this rank.
inline constexpr uint8_t kNoPlace = 0xFF;
std::optional<std::vector<uint8_t>> permutation(const ir::IndexMap& view, std::span<const Dim> sizes, size_t rank);

/// No two indices share an element, and no gaps.
bool is_dense(std::span<const Dim> sizes, std::span<const Dim> strides);
/// Some elements surely share memory: a dim does not move.
bool overlaps(std::span<const Dim> sizes, std::span<const Dim> strides);
Dim count(std::span<const Dim> sizes);
/// Equal strides where they matter: dims of size 1 do not.
bool same_strides(std::span<const Dim> sizes, std::span<const Dim> a, std::span<const Dim> b);

}  // namespace fastjit::plan
