#pragma once
// Reductions over dims, for rows that need more than one.
#include "capture/lower/util.h"

namespace fastjit::capture {

using Dims = std::vector<uint8_t>;

/// The dims that argument `i` names, ascending; every dim where it is None or empty.
Dims reduced_dims(const Call& c, size_t i, int64_t rank);
Dims all_dims(int64_t rank);
Dims beside_channels(int64_t rank);  // all but dim 1
ir::Dim count_of(Expr x, const Dims& dims);
/// Halves are reduced as f32, integers summed in 64 bits.
DType sum_type(ScalarType type);
Expr reduce(ir::ReduceKind kind, Expr x, const Dims& dims);
/// A reduced value with the reduced dims kept as 1, to meet the operand again.
Expr keep(Expr reduced, Expr operand, const Dims& dims);
Expr shaped(Expr x, const Shape& sizes);
struct Moments {
  Expr mean, squares;  // the sum of squared differences; both without the reduced dims
  Expr centred;        // x - mean
};
/// Two passes, as accurate as eager's Welford for data that is not huge against its spread.
Moments moments(Expr x, const Dims& dims);

}  // namespace fastjit::capture
