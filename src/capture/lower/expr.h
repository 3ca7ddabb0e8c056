#pragma once
// Formulas over IR nodes in C++ notation. An expression is always in a type that op.def computes in (never a half).
#include <cmath>

#include "ir/graph.h"

namespace fastjit::capture {

using ir::DType;
using ir::Op;

struct Expr {
  ir::Graph* graph;
  ir::NodeId id;

  DType type() const { return (*graph)[id].dtype; }
  std::span<const ir::Dim> sizes() const { return graph->sizes(id); }
  bool floating() const { return ir::is_float(type()); }
  bool boolean() const { return type() == DType::Bool; }
};

/// `value` in the type of `like`.
inline Expr number(Expr like, double value) {
  return {like.graph, like.floating() ? like.graph->constant(like.type(), value)
                                      : like.graph->constant_int(like.type(), static_cast<int64_t>(value))};
}
inline Expr apply(Op op, Expr a) { return {a.graph, a.graph->pointwise(op, {a.id})}; }
inline Expr apply(Op op, Expr a, Expr b) { return {a.graph, a.graph->pointwise(op, {a.id, b.id})}; }
inline Expr apply(Op op, Expr a, Expr b, Expr c) { return {a.graph, a.graph->pointwise(op, {a.id, b.id, c.id})}; }
inline Expr convert(Expr a, DType to) { return {a.graph, a.graph->convert(a.id, to)}; }

#define FASTJIT_INFIX(symbol, op)                                                 \
  inline Expr operator symbol(Expr a, Expr b) { return apply(Op::op, a, b); }     \
  inline Expr operator symbol(Expr a, double b) { return a symbol number(a, b); } \
  inline Expr operator symbol(double a, Expr b) { return number(b, a) symbol b; }
FASTJIT_INFIX(+, Add)
FASTJIT_INFIX(-, Sub)
FASTJIT_INFIX(*, Mul)
FASTJIT_INFIX(/, Div)
FASTJIT_INFIX(==, Eq)
FASTJIT_INFIX(!=, Ne)
FASTJIT_INFIX(<, Lt)
FASTJIT_INFIX(<=, Le)
FASTJIT_INFIX(>, Gt)
FASTJIT_INFIX(>=, Ge)
FASTJIT_INFIX(&, And)
FASTJIT_INFIX(|, Or)
FASTJIT_INFIX(^, Xor)
#undef FASTJIT_INFIX

inline Expr operator-(Expr a) { return apply(Op::Neg, a); }
inline Expr operator~(Expr a) { return apply(Op::Not, a); }

#define FASTJIT_UNARY(name, op) \
  inline Expr name(Expr a) { return apply(Op::op, a); }
FASTJIT_UNARY(abs, Abs)
FASTJIT_UNARY(sqrt, Sqrt)
FASTJIT_UNARY(rsqrt, Rsqrt)
FASTJIT_UNARY(floor, Floor)
FASTJIT_UNARY(ceil, Ceil)
FASTJIT_UNARY(trunc, Trunc)
FASTJIT_UNARY(round, Round)
FASTJIT_UNARY(exp, Exp)
FASTJIT_UNARY(exp2, Exp2)
FASTJIT_UNARY(expm1, Expm1)
FASTJIT_UNARY(log, Log)
FASTJIT_UNARY(log2, Log2)
FASTJIT_UNARY(log10, Log10)
FASTJIT_UNARY(log1p, Log1p)
FASTJIT_UNARY(sin, Sin)
FASTJIT_UNARY(cos, Cos)
FASTJIT_UNARY(tan, Tan)
FASTJIT_UNARY(asin, Asin)
FASTJIT_UNARY(acos, Acos)
FASTJIT_UNARY(atan, Atan)
FASTJIT_UNARY(sinh, Sinh)
FASTJIT_UNARY(cosh, Cosh)
FASTJIT_UNARY(tanh, Tanh)
FASTJIT_UNARY(asinh, Asinh)
FASTJIT_UNARY(acosh, Acosh)
FASTJIT_UNARY(atanh, Atanh)
FASTJIT_UNARY(erf, Erf)
FASTJIT_UNARY(erfc, Erfc)
FASTJIT_UNARY(erfinv, Erfinv)
FASTJIT_UNARY(sigmoid, Sigmoid)
FASTJIT_UNARY(signbit, SignBit)
#undef FASTJIT_UNARY

inline Expr min(Expr a, Expr b) { return apply(Op::Min, a, b); }
inline Expr max(Expr a, Expr b) { return apply(Op::Max, a, b); }
inline Expr min(Expr a, double b) { return min(a, number(a, b)); }
inline Expr max(Expr a, double b) { return max(a, number(a, b)); }
inline Expr pow(Expr a, Expr b) { return apply(Op::Pow, a, b); }
inline Expr copysign(Expr a, Expr b) { return apply(Op::Copysign, a, b); }
inline Expr where(Expr condition, Expr a, Expr b) { return apply(Op::Where, condition, a, b); }
inline Expr where(Expr condition, Expr a, double b) { return where(condition, a, number(a, b)); }
inline Expr where(Expr condition, double a, Expr b) { return where(condition, number(b, a), b); }
inline Expr fma(Expr a, Expr b, Expr c) { return apply(Op::Fma, a, b, c); }
inline Expr isnan(Expr a) { return a != a; }

}  // namespace fastjit::capture
