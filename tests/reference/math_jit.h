#pragma once
// emit_math as a callable over arrays, and the functions it is compared with. Used by the test and by the exhaustive
// program.
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Target/TargetMachine.h>

#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>

#include "codegen/math/math.h"

namespace fastjit::reference {

template <typename T>
using ArrayFn = void (*)(const T* a, const T* b, T* out, int64_t vectors);

/// out[i] = op(a[i], b[i]) by vectors of `lanes` (0: scalars).
class MathJit {
 public:
  template <typename T>
  ArrayFn<T> make(ir::Op op, backend::Isa isa, int lanes) {
    using namespace llvm;
    auto context = std::make_unique<LLVMContext>();
    auto module = std::make_unique<Module>("math", *context);
    IRBuilder<> b(*context);
    Type* element = sizeof(T) == 4 ? b.getFloatTy() : b.getDoubleTy();
    Type* type = lanes ? FixedVectorType::get(element, lanes) : element;
    Type* pointer = b.getPtrTy();
    auto* function =
        Function::Create(FunctionType::get(b.getVoidTy(), {pointer, pointer, pointer, b.getInt64Ty()}, false),
                         Function::ExternalLinkage, "math", *module);
    const bool wide = isa == backend::Isa::Avx512;
    function->addFnAttr("target-cpu", wide ? "x86-64-v4" : "x86-64-v3");
    function->addFnAttr("target-features", "-prefer-256-bit");
    function->addFnAttr("prefer-vector-width", wide ? "512" : "256");
    auto* entry = BasicBlock::Create(*context, "entry", function);
    auto* loop = BasicBlock::Create(*context, "loop", function);
    auto* done = BasicBlock::Create(*context, "done", function);
    b.SetInsertPoint(entry);
    b.CreateBr(loop);
    b.SetInsertPoint(loop);
    PHINode* i = b.CreatePHI(b.getInt64Ty(), 2);
    i->addIncoming(b.getInt64(0), entry);
    auto at = [&](int n) { return b.CreateGEP(type, function->getArg(n), i); };
    Value* x = b.CreateAlignedLoad(type, at(0), Align(sizeof(T)));
    Value* y = b.CreateAlignedLoad(type, at(1), Align(sizeof(T)));
    codegen::MathContext math{b, plan::Numerics::Accurate, isa};
    Value* result = codegen::emit_math(math, op, x, y);
    b.CreateAlignedStore(result, at(2), Align(sizeof(T)));
    Value* next = b.CreateAdd(i, b.getInt64(1));
    i->addIncoming(next, b.GetInsertBlock());
    b.CreateCondBr(b.CreateICmpSLT(next, function->getArg(3)), loop, done);
    b.SetInsertPoint(done);
    b.CreateRetVoid();

    InitializeNativeTarget();
    InitializeNativeTargetAsmPrinter();
    orc::JITTargetMachineBuilder machine(Triple("x86_64-unknown-linux-gnu"));
    machine.setCPU(wide ? "x86-64-v4" : "x86-64-v3");
    // No process symbols: a call of libm would fail to link.
    jit_ = check(orc::LLJITBuilder()
                     .setJITTargetMachineBuilder(machine)
                     .setLinkProcessSymbolsByDefault(false)
                     .setPlatformSetUp(orc::setUpInactivePlatform)
                     .create());
    module->setDataLayout(jit_->getDataLayout());
    if (auto error = jit_->addIRModule(orc::ThreadSafeModule(std::move(module), std::move(context))))
      fail(std::move(error));
    return check(jit_->lookup("math")).template toPtr<ArrayFn<T>>();
  }

 private:
  [[noreturn]] static void fail(llvm::Error error) { throw std::runtime_error(llvm::toString(std::move(error))); }
  template <typename R>
  static R check(llvm::Expected<R> value) {
    if (!value) fail(value.takeError());
    return std::move(*value);
  }
  std::unique_ptr<llvm::orc::LLJIT> jit_;
};

/// The function in a wider type: R is double for floats, long double for doubles.
template <typename R>
R exact(ir::Op op, R a, R b) {
  using ir::Op;
  switch (op) {
    case Op::Exp:
      return std::exp(a);
    case Op::Exp2:
      return std::exp2(a);
    case Op::Expm1:
      return std::expm1(a);
    case Op::Log:
      return std::log(a);
    case Op::Log2:
      return std::log2(a);
    case Op::Log10:
      return std::log10(a);
    case Op::Log1p:
      return std::log1p(a);
    case Op::Sin:
      return std::sin(a);
    case Op::Cos:
      return std::cos(a);
    case Op::Tan:
      return std::tan(a);
    case Op::Asin:
      return std::asin(a);
    case Op::Acos:
      return std::acos(a);
    case Op::Atan:
      return std::atan(a);
    case Op::Sinh:
      return std::sinh(a);
    case Op::Cosh:
      return std::cosh(a);
    case Op::Tanh:
      return std::tanh(a);
    case Op::Asinh:
      return std::asinh(a);
    case Op::Acosh:
      return std::acosh(a);
    case Op::Atanh:
      return std::atanh(a);
    case Op::Erf:
      return std::erf(a);
    case Op::Erfc:
      return std::erfc(a);
    case Op::Sigmoid:
      return a < 0 ? std::exp(a) / (1 + std::exp(a)) : 1 / (1 + std::exp(-a));
    case Op::Pow:
      return std::pow(a, b);
    case Op::Atan2:
      return std::atan2(a, b);
    case Op::Hypot:
      return std::hypot(a, b);
    case Op::Erfinv: {  // Newton's iteration on log erfc, or on erf near 0
      const R x = std::fabs(a);
      if (!(x < 1)) return x == 1 ? std::copysign(R(INFINITY), a) : R(NAN);
      const R root_pi = std::sqrt(std::acos(R(-1)));
      if (x < R(1e-9)) return a * root_pi / 2;
      R y = x < R(0.7) ? x : std::sqrt(-std::log(1 - x));
      for (int i = 0; i < 60; ++i) {
        const R c = std::erfc(y), slope = root_pi / 2 * std::exp(y * y);
        const R step = x < R(0.5) ? (x - std::erf(y)) * slope : (std::log(c) - std::log(1 - x)) * c * slope;
        y += step;
        if (std::fabs(step) <= 4 * std::numeric_limits<R>::epsilon() * y) break;
      }
      return std::copysign(y, a);
    }
    default:
      throw std::logic_error("no reference");
  }
}

/// |got - want| in units of the last place of T at `want`; 0 where both are NaN or the same infinity.
template <typename T, typename R>
double ulp_error(ir::Op op, T got, R want) {
  constexpr R least = std::numeric_limits<T>::min();
  // sigmoid promises an absolute error of `least` there, counted as its bound of 2
  if (op == ir::Op::Sigmoid && want < least)
    return static_cast<double>(2 * std::fabs(static_cast<R>(got) - want) / least);
  if (std::isnan(want)) return std::isnan(got) ? 0 : INFINITY;
  const R rounded = static_cast<R>(static_cast<T>(want));
  if (std::isinf(rounded) || std::isinf(got)) {
    if (static_cast<R>(got) == rounded) return 0;
    // One of the two overflowed: the error against the largest number counts.
    const R top = std::ldexp(R(1), std::numeric_limits<T>::max_exponent);
    if (std::fabs(want) < top / 2 || std::isnan(got)) return INFINITY;
    const R g = std::isinf(got) ? std::copysign(top, static_cast<R>(got)) : static_cast<R>(got);
    const R w = std::isinf(want) || std::fabs(want) > top ? std::copysign(top, want) : want;
    return static_cast<double>(std::fabs(g - w) /
                               std::ldexp(R(1), std::numeric_limits<T>::max_exponent - std::numeric_limits<T>::digits));
  }
  if (static_cast<R>(got) == want) return std::signbit(got) == std::signbit(want) || want != 0 ? 0 : INFINITY;
  const R size = std::max(std::fabs(want), least);
  const R ulp = std::ldexp(R(1), std::ilogb(size) - std::numeric_limits<T>::digits + 1);
  return static_cast<double>(std::fabs(static_cast<R>(got) - want) / ulp);
}

/// One row a function: the promised bounds.
struct Bound {
  ir::Op op;
  double f32, f64;
};
inline constexpr Bound kBounds[] = {
    {ir::Op::Exp, 1.0, 1.0},   {ir::Op::Exp2, 1.0, 1.0},   {ir::Op::Expm1, 1.0, 1.5},   {ir::Op::Log, 1.0, 1.0},
    {ir::Op::Log2, 1.0, 1.0},  {ir::Op::Log10, 1.0, 1.0},  {ir::Op::Log1p, 1.0, 1.5},   {ir::Op::Sin, 1.5, 1.5},
    {ir::Op::Cos, 1.5, 1.5},   {ir::Op::Tan, 2.0, 2.0},    {ir::Op::Asin, 2.0, 2.0},    {ir::Op::Acos, 2.0, 2.0},
    {ir::Op::Atan, 2.0, 2.0},  {ir::Op::Sinh, 2.0, 2.0},   {ir::Op::Cosh, 2.0, 2.0},    {ir::Op::Tanh, 1.0, 1.5},
    {ir::Op::Asinh, 2.0, 3.0}, {ir::Op::Acosh, 2.0, 3.0},  {ir::Op::Atanh, 2.0, 3.0},   {ir::Op::Erf, 1.0, 1.5},
    {ir::Op::Erfc, 2.0, 3.0},  {ir::Op::Erfinv, 3.0, 3.0}, {ir::Op::Sigmoid, 2.0, 2.0}, {ir::Op::Pow, 1.5, 2.0},
    {ir::Op::Atan2, 2.0, 2.0}, {ir::Op::Hypot, 2.0, 2.0},
};

}  // namespace fastjit::reference
