// The table of elementary functions.
#include "codegen/math/math.h"

#include <stdexcept>

#include "codegen/math/parts.h"

namespace fastjit::codegen {
namespace {

using math::V;

/// An f64 function for either type: a float's result is the double's, rounded.
template <typename F, typename... Args>
V through_f64(F function, V a, Args... rest) {
  if (a.f64()) return function(a, rest...);
  return function(a.widen(), rest.widen()...).narrow();
}

V dispatch(ir::Op op, V a, V b) {
  using math::Base;
  switch (op) {
    case ir::Op::Exp:
      return math::exp_scaled(a, 0);
    case ir::Op::Exp2:
      return math::exp2(a);
    case ir::Op::Expm1:
      return math::expm1(a);
    case ir::Op::Log:
      return a.f64() ? math::log_base(a, Base::E) : math::log(a);
    case ir::Op::Log2:
      return through_f64([](V x) { return math::log_base(x, Base::Two); }, a);
    case ir::Op::Log10:
      return through_f64([](V x) { return math::log_base(x, Base::Ten); }, a);
    case ir::Op::Log1p:
      return math::log1p(a);
    case ir::Op::Sin:
      return math::sin_cos(a, false);
    case ir::Op::Cos:
      return math::sin_cos(a, true);
    case ir::Op::Tan:
      return through_f64(math::tan, a);
    case ir::Op::Asin:
      return through_f64(math::asin, a);
    case ir::Op::Acos:
      return through_f64(math::acos, a);
    case ir::Op::Atan:
      return through_f64(math::atan, a);
    case ir::Op::Sinh:
      return through_f64(math::sinh, a);
    case ir::Op::Cosh:
      return through_f64(math::cosh, a);
    case ir::Op::Tanh:
      return math::tanh(a);
    case ir::Op::Asinh:
      return through_f64(math::asinh, a);
    case ir::Op::Acosh:
      return through_f64(math::acosh, a);
    case ir::Op::Atanh:
      return through_f64(math::atanh, a);
    case ir::Op::Erf:
      return math::erf(a);
    case ir::Op::Erfc:
      return through_f64(math::erfc, a);
    case ir::Op::Erfinv:
      return through_f64(math::erfinv, a);
    case ir::Op::Sigmoid:
      return math::sigmoid(a);
    case ir::Op::Pow:
      return through_f64(math::pow, a, b);
    case ir::Op::Atan2:
      return through_f64(math::atan2, a, b);
    case ir::Op::Hypot:
      return through_f64(math::hypot, a, b);
    default:
      throw std::logic_error("emit_math: " + std::string(ir::text(op)) + " is no elementary function");
  }
}

}  // namespace

bool math_has(ir::Op op) { return op >= ir::Op::Exp && op <= ir::Op::Hypot; }

llvm::Value* emit_math(MathContext& context, ir::Op op, llvm::Value* a, llvm::Value* b) {
  // Error terms such as a - (s - t) must survive, whatever flags the caller's own arithmetic carries.
  llvm::IRBuilder<>& builder = context.builder;
  llvm::IRBuilder<>::FastMathFlagGuard guard(builder);
  builder.clearFastMathFlags();
  const bool avx512 = context.isa == backend::Isa::Avx512;
  return dispatch(op, V{&builder, a, avx512}, V{&builder, b ? b : a, avx512}).v;
}

llvm::Value* emit_rough_exp(llvm::IRBuilder<>& builder, llvm::Value* a, backend::Isa isa) {
  llvm::IRBuilder<>::FastMathFlagGuard guard(builder);
  builder.clearFastMathFlags();
  const V x{&builder, a, isa == backend::Isa::Avx512};
  return (x.avx512 && !x.f64() ? math::exp_rough(x) : math::exp_scaled(x, 0)).v;
}

}  // namespace fastjit::codegen
