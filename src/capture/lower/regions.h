#pragma once
// Which elements of a tensor a view names: for rows that read them, and for those that write there.
#include "capture/lower/util.h"

namespace fastjit::capture {

/// The elements at map(i), for i within `sizes`.
struct Region {
  ir::IndexMap map;
  Shape sizes;
};

/// Of a tensor of sizes `from`; `first` is the argument behind the tensor, or behind its sizes.
Region selected(const Call& c, const Shape& from, size_t first);     // (dim, index)
Region sliced(const Call& c, const Shape& from, size_t first);       // (dim, start, end, step), clamped as Python's
Region on_diagonal(const Call& c, const Shape& from, size_t first);  // (offset, dim1, dim2): it becomes the last dim
Region windows(const Call& c, const Shape& from,
               size_t first);  // (dim, size, step): their elements become the last dim

/// `size` elements along `dim`, from `start` on.
Region part_of(const Shape& from, size_t dim, ir::Dim start, ir::Dim size, int64_t step = 1);

/// All elements, where dim k is dim order[k] of the tensor.
Region permutation(const Shape& from, const std::vector<int64_t>& order);

Expr at(Expr x, Region region);
/// Zeros of sizes `whole`, but `value` in the region, which has no element twice.
Expr among_zeros(Expr value, const Shape& whole, Region region);

inline Shape sizes_of(Expr x) { return {x.sizes().begin(), x.sizes().end()}; }

}  // namespace fastjit::capture
