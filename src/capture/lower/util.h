#pragma once
// What the rows of the lowering table share: access to arguments, torch's type promotion, rounding to a tensor's type.
#include <optional>
#include <string>
#include <vector>

#include "capture/lower/expr.h"
#include "capture/lower/lower.h"
#include "ir/constants.h"

namespace fastjit::capture {

using c10::ScalarType;
using Shape = std::vector<ir::Dim>;

/// Thrown inside a row: this call is an extern step.
struct NotLowered {};

/// torch's result type of tensors, 0-dim tensors and numbers (aten/src/ATen/native/TypeProperties.cpp).
class Promotion {
 public:
  void add(const TensorMeta& meta);
  void add_number(ScalarType type);
  ScalarType result() const;

 private:
  ScalarType dim_ = ScalarType::Undefined, zero_ = ScalarType::Undefined, wrapped_ = ScalarType::Undefined;
};

ScalarType default_dtype();
bool is_half(ScalarType type);
bool is_integral(ScalarType type);  // Bool included
double largest(ScalarType type);    // finite value
/// Whether `to` has every value of `from`, so that torch's Scalar::to() takes any element as it is and never raises.
bool holds_all_of(ScalarType to, ScalarType from);
/// The IR type that values of a torch type are computed in: F32 for halves. Throws NotLowered for types the IR lacks.
DType compute_type(ScalarType type);
ir::Dim numel(const TensorMeta& meta);
/// `dim` in [0, rank), as torch wraps it; rank 0 counts as 1.
int64_t wrap_dim(int64_t dim, int64_t rank);

/// One call with the checks and conversions that rows need. Every accessor throws NotLowered where it cannot answer.
class Call {
 public:
  explicit Call(LowerCall& call) : call_(call), graph(call.graph) {}

  // arguments as they are
  const Arg& arg(size_t i) const;
  bool has(size_t i) const;  // neither None nor missing
  const Value& tensor(size_t i) const;
  const TensorMeta& meta(size_t i) const { return tensor(i).meta; }
  int64_t rank(size_t i) const { return static_cast<int64_t>(meta(i).sizes.size()); }
  Shape sizes(size_t i) const { return meta(i).layout().sizes; }
  Expr node(size_t i) const;        // the tensor's value in its own IR type (halves stay halves)
  int64_t integer(size_t i) const;  // the program is for this one only, as it is with integers()
  ir::Dim size(size_t i) const;     // an int that may be another one in another call
  Shape shape(size_t i) const;      // a list of such
  bool flag(size_t i) const;
  std::string text(size_t i) const;
  size_t dim(size_t i) const { return static_cast<size_t>(wrap_dim(integer(i), rank(0))); }  // of argument 0
  std::vector<int64_t> integers(size_t i) const;                                             // an int is a list of one
  ScalarType dtype(size_t i) const;
  /// A float argument (schema type float or Scalar) that is a known number.
  double real(size_t i) const;
  std::optional<double> known(size_t i) const;  // nothing: symbolic or not a number

  /// See index_bound.h.
  std::optional<ir::Dim> index_bound(ir::NodeId node) const;

  // promotion and conversion
  ScalarType promoted(std::initializer_list<size_t> args) const;
  /// As `promoted`, and integers become the default float type.
  ScalarType promoted_float(std::initializer_list<size_t> args) const;
  /// Argument i (tensor or number) rounded to `type`, in compute_type(type).
  Expr as(size_t i, ScalarType type) const;
  Expr as(const Value& value, ScalarType type) const;
  /// As `as`, but an operand of one element keeps the precision that it came with when `type` is a half:
  /// TensorIterator::original_scalar_value in aten/src/ATen/native/cpu/BinaryOpsKernel.cpp.
  Expr as_scalar_operand(size_t i, ScalarType type) const;
  /// A number in the type that `type` is computed in: Scalar::to<opmath_t>.
  Expr opmath(size_t i, ScalarType type) const { return as(i, is_half(type) ? ScalarType::Float : type); }
  /// Argument i in the IR type of `type`, halves included: to be moved, not computed with.
  Expr moved(size_t i, ScalarType type) const;
  /// `value` rounded to the half `type` and back; itself for other types.
  Expr rounded(Expr value, ScalarType type) const;

  // results
  const TensorMeta& result(size_t k = 0) const;
  /// The sizes of the result where it has those of `x`, but for dims of size 1 that come or go.
  Shape sizes_like(Expr x, size_t k = 0) const;
  size_t result_count() const { return call_.results.size(); }
  /// Another call may have more results or fewer. Each round of a loop is given its own when it reads it, so that the
  /// row may give any for all.
  bool are_walked() const { return call_.walked; }
  /// Appends a result: converted and broadcast to what eager returned.
  void give(Expr value);
  /// Appends a result that is no tensor: the caller's mask says so.
  void give_none() { call_.out.push_back(ir::kNoNode); }
  void give_node(ir::NodeId id) { give(Expr{&graph, id}); }

  /// Zeros for all results where none has an element, whatever the operator is.
  bool give_empty();

  std::string_view name() const { return call_.name; }
  plan::Numerics numerics() const { return call_.numerics; }

 private:
  LowerCall& call_;

 public:
  ir::Graph& graph;
};

/// Conversion that folds constants, so that rows can look at them.
Expr cast(Expr value, DType to);
/// A number of elements in the type of `like`: a constant, or found out at each call.
Expr number(Expr like, ir::Dim count);
/// The number of a Const node.
std::optional<double> constant_of(Expr value);
/// An index map that keeps every dimension.
ir::IndexMap identity_map(size_t rank);

/// A row's function from one that works on Call: NotLowered and refused shapes become `false`. Results without elements
/// are given all the same, unless torch may refuse such a call for what it is given.
template <auto F, bool GivesEmpty = true>
bool row(LowerCall& call) {
  Call wrapped(call);
  try {
    F(wrapped);
    if (call.out.size() == call.results.size()) return true;
  } catch (const NotLowered&) {
  } catch (const std::invalid_argument&) {  // a graph maker refused the types or shapes
  }
  call.out.clear();
  return GivesEmpty && wrapped.give_empty();
}

inline constexpr LowerRow lowered(std::string_view op, LowerFn fn) { return {op, Level::Lowered, fn}; }

std::span<const LowerRow> unary_rows();
std::span<const LowerRow> binary_rows();
std::span<const LowerRow> activation_rows();
std::span<const LowerRow> compare_rows();
std::span<const LowerRow> reduce_rows();
std::span<const LowerRow> norm_rows();
std::span<const LowerRow> view_rows();
std::span<const LowerRow> join_rows();
std::span<const LowerRow> gather_rows();
std::span<const LowerRow> backward_activation_rows();
std::span<const LowerRow> backward_convolution_rows();
std::span<const LowerRow> backward_loss_rows();
std::span<const LowerRow> backward_norm_rows();
std::span<const LowerRow> backward_view_rows();

}  // namespace fastjit::capture
