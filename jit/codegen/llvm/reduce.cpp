// Running reductions. A state is combined in a fixed order, so that a shape always gives the same bits.
//   Dot: as many running sums as there are lanes and vectors in flight, one rounding a product. Where each lane is a
//   result, a running sum ends after KernelEmitter::kDotRun products, and goes to the total.
//   Sum, Prod of F32: an F64 a lane, rounded once at the end. Sum of F64: an error-free transformation (a running
//   compensation a lane). Prod of F64 and I64: plain. Max, Min: NaN wins. ArgMax, ArgMin: first NaN, else first hit.
#include <limits>
#include <stdexcept>

#include "codegen/llvm/rules.h"

namespace fastjit::codegen {
namespace {

using ir::DType;
using ir::Op;
using ir::ReduceKind;
using llvm::Type;
using llvm::Value;

bool is_low(ReduceKind kind) { return kind == ReduceKind::Min || kind == ReduceKind::ArgMin; }
bool is_compensated(ReduceKind kind, DType type) { return kind == ReduceKind::Sum && type == DType::F64; }
bool is_accumulation(ReduceKind kind) { return kind == ReduceKind::Sum || kind == ReduceKind::Prod; }

DType state_dtype(ReduceKind kind, DType type) {
  return is_accumulation(kind) && type == DType::F32 ? DType::F64 : type;
}

// The worst value of a type: what Max (or Min) starts from.
llvm::Constant* worst(Type* type, DType dtype, bool low) {
  if (ir::is_float(dtype)) return llvm::ConstantFP::getInfinity(type, !low);
  if (dtype == DType::Bool || !ir::is_signed(dtype))
    return low ? llvm::Constant::getAllOnesValue(type) : llvm::Constant::getNullValue(type);
  const unsigned bits = type->getScalarType()->getIntegerBitWidth();
  return llvm::ConstantInt::get(type,
                                low ? llvm::APInt::getSignedMaxValue(bits) : llvm::APInt::getSignedMinValue(bits));
}

// Knuth's two-sum: a + b exactly, as a rounded sum and its error. An infinite sum makes the error NaN; see
// reduce_result.
ReduceState two_sum(Rules& r, const ReduceState& x, const ReduceState& y) {
  auto& b = r.b;
  Value* sum = b.CreateFAdd(x.parts[0], y.parts[0]);
  Value* part = b.CreateFSub(sum, x.parts[0]);
  Value* error = b.CreateFAdd(b.CreateFSub(x.parts[0], b.CreateFSub(sum, part)), b.CreateFSub(y.parts[0], part));
  return {{sum, b.CreateFAdd(b.CreateFAdd(x.parts[1], y.parts[1]), error)}};
}

// Whether y beats x, ties and NaNs included: a total order, so that the order of combination does not matter.
ReduceState best_index(Rules& r, DType type, bool low, const ReduceState& x, const ReduceState& y) {
  auto& b = r.b;
  Value *xv = x.parts[0], *yv = y.parts[0];
  Value* better = emit_op(r, low ? Op::Lt : Op::Gt, type, {yv, xv});
  Value* equal = emit_op(r, Op::Eq, type, {yv, xv});
  if (ir::is_float(type)) {
    Value *x_nan = b.CreateFCmpUNO(xv, xv), *y_nan = b.CreateFCmpUNO(yv, yv);
    better = b.CreateOr(better, b.CreateAnd(y_nan, b.CreateNot(x_nan)));
    equal = b.CreateOr(equal, b.CreateAnd(y_nan, x_nan));
  }
  Value* earlier = b.CreateICmpSLT(y.parts[1], x.parts[1]);
  Value* take = b.CreateOr(better, b.CreateAnd(equal, earlier));
  return {{b.CreateSelect(take, yv, xv), b.CreateSelect(take, y.parts[1], x.parts[1])}};
}

}  // namespace

llvm::SmallVector<Type*, 2> reduce_types(llvm::LLVMContext& context, ReduceKind kind, DType type, int lanes) {
  Type* value = lanes_of(register_type(context, state_dtype(kind, type)), lanes);
  if (ir::gives_position(kind)) return {value, lanes_of(Type::getInt64Ty(context), lanes)};
  if (is_compensated(kind, type)) return {value, value};
  return {value};
}

ReduceState reduce_identity(Rules& r, ReduceKind kind, DType type, int lanes) {
  auto types = reduce_types(r.b.getContext(), kind, type, lanes);
  const bool real = ir::is_float(type);
  switch (kind) {
    case ReduceKind::Sum:
      if (is_compensated(kind, type))
        return {{llvm::Constant::getNullValue(types[0]), llvm::Constant::getNullValue(types[0])}};
      return {{llvm::Constant::getNullValue(types[0])}};
    case ReduceKind::Prod:
      return {{real ? llvm::ConstantFP::get(types[0], 1.0) : llvm::ConstantInt::get(types[0], 1)}};
    case ReduceKind::Any:
    case ReduceKind::Dot:
      return {{llvm::Constant::getNullValue(types[0])}};
    case ReduceKind::All:
      return {{llvm::Constant::getAllOnesValue(types[0])}};
    case ReduceKind::Max:
    case ReduceKind::Min:
      return {{worst(types[0], type, is_low(kind))}};
    case ReduceKind::ArgMax:
    case ReduceKind::ArgMin:
      return {
          {worst(types[0], type, is_low(kind)), llvm::ConstantInt::get(types[1], static_cast<uint64_t>(INT64_MAX))}};
  }
  throw std::runtime_error("codegen: unknown reduction");
}

ReduceState reduce_product(Rules& r, DType type, const ReduceState& state, Value* x, Value* y) {
  return {{emit_op(r, Op::Fma, type, {x, y, state.parts[0]})}};
}

ReduceState reduce_element(Rules& r, ReduceKind kind, DType type, Value* value, Value* index) {
  if (ir::gives_position(kind)) return {{value, index}};
  if (is_compensated(kind, type)) return {{value, llvm::Constant::getNullValue(value->getType())}};
  return {{emit_convert(r, value, type, state_dtype(kind, type))}};
}

ReduceState reduce_combine(Rules& r, ReduceKind kind, DType type, const ReduceState& x, const ReduceState& y) {
  const DType state = state_dtype(kind, type);
  auto op = [&](Op which) { return ReduceState{{emit_op(r, which, state, {x.parts[0], y.parts[0]})}}; };
  switch (kind) {
    case ReduceKind::Sum:
      return is_compensated(kind, type) ? two_sum(r, x, y) : op(Op::Add);
    case ReduceKind::Dot:
      return op(Op::Add);
    case ReduceKind::Prod:
      return op(Op::Mul);
    case ReduceKind::Max:
      return op(Op::Max);
    case ReduceKind::Min:
      return op(Op::Min);
    case ReduceKind::ArgMax:
    case ReduceKind::ArgMin:
      return best_index(r, type, is_low(kind), x, y);
    case ReduceKind::Any:
      return op(Op::Or);
    case ReduceKind::All:
      return op(Op::And);
  }
  throw std::runtime_error("codegen: unknown reduction");
}

ReduceState reduce_lanes(Rules& r, ReduceKind kind, DType type, ReduceState state) {
  auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(state.parts[0]->getType());
  if (!vector) return state;
  for (unsigned half = vector->getNumElements() / 2; half >= 1; half /= 2) {
    llvm::SmallVector<int, 64> low, high;
    for (unsigned i = 0; i < half; ++i) {
      low.push_back(static_cast<int>(i));
      high.push_back(static_cast<int>(i + half));
    }
    ReduceState a, b;
    for (Value* part : state.parts) {
      a.parts.push_back(r.b.CreateShuffleVector(part, low));
      b.parts.push_back(r.b.CreateShuffleVector(part, high));
    }
    state = reduce_combine(r, kind, type, a, b);
  }
  for (Value*& part : state.parts) part = r.b.CreateExtractElement(part, uint64_t{0});
  return state;
}

Value* reduce_result(Rules& r, ReduceKind kind, DType type, const ReduceState& state, DType result) {
  auto& b = r.b;
  if (ir::gives_position(kind)) return state.parts[1];
  Value* value = state.parts[0];
  if (is_compensated(kind, type)) {
    // A compensation that is not a number came from an infinite sum, which stands as it is.
    Value* sum = b.CreateFAdd(value, state.parts[1]);
    value = b.CreateSelect(b.CreateFCmpORD(state.parts[1], state.parts[1]), sum, value);
  }
  return emit_convert(r, value, state_dtype(kind, type), result);
}

}  // namespace fastjit::codegen
