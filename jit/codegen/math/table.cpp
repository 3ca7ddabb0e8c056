// Single instructions of the vector units, and functions by a table of
// polynomials, whose rows are vector registers.
#include <llvm/Analysis/VectorUtils.h>
#include <llvm/IR/Constants.h>
#include <llvm/IR/IntrinsicsX86.h>

#include <functional>
#include <numeric>

#include "codegen/math/parts.h"

namespace fastjit::codegen::math {
namespace {

using llvm::Value;
constexpr int kCurrentRounding = 4;

/// `make` on pieces of `width` lanes; lanes that are missing hold anything.
V by_registers(V a, V b, int width, const std::function<Value*(Value*, Value*)>& make) {
  llvm::IRBuilder<>& builder = *a.b;
  auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(a.type());
  const int lanes = vector ? static_cast<int>(vector->getNumElements()) : 1;
  if (vector && lanes == width) return a.of(make(a.v, b.v));
  auto piece = [&](V x, int from) -> Value* {
    llvm::Value* whole = x.v;
    if (!vector)
      whole = builder.CreateInsertElement(llvm::PoisonValue::get(llvm::FixedVectorType::get(x.type(), 1)), whole,
                                          uint64_t{0});
    llvm::SmallVector<int, 16> mask;
    for (int i = 0; i < width; ++i) mask.push_back(from + i < lanes ? from + i : llvm::PoisonMaskElem);
    return builder.CreateShuffleVector(whole, mask);
  };
  llvm::SmallVector<Value*, 4> made;
  for (int from = 0; from < lanes; from += width) made.push_back(make(piece(a, from), piece(b, from)));
  if (!vector) return a.of(builder.CreateExtractElement(made[0], uint64_t{0}));
  Value* all = llvm::concatenateVectors(builder, made);
  llvm::SmallVector<int, 32> mask(static_cast<size_t>(lanes));
  std::iota(mask.begin(), mask.end(), 0);
  return a.of(builder.CreateShuffleVector(all, mask));
}

}  // namespace

V scale_by_power(V a, V k) {
  const bool wide = a.f64();
  return by_registers(a, k, wide ? 8 : 16, [&](Value* x, Value* y) -> Value* {
    const auto id =
        wide ? llvm::Intrinsic::x86_avx512_mask_scalef_pd_512 : llvm::Intrinsic::x86_avx512_mask_scalef_ps_512;
    Value* mask = wide ? a.b->getInt8(0xff) : a.b->getInt16(0xffff);
    return a.b->CreateIntrinsic(id, {x, y, x, mask, a.b->getInt32(kCurrentRounding)});
  });
}

V above_whole(V a) {
  return by_registers(a, a, 16, [&](Value* x, Value*) -> Value* {
    constexpr int kDown = 1;
    return a.b->CreateIntrinsic(llvm::Intrinsic::x86_avx512_mask_reduce_ps_512,
                                {x, a.b->getInt32(kDown), x, a.b->getInt16(0xffff), a.b->getInt32(kCurrentRounding)});
  });
}

V exponent(V a) {
  return by_registers(a, a, 16, [&](Value* x, Value*) -> Value* {
    return a.b->CreateIntrinsic(llvm::Intrinsic::x86_avx512_mask_getexp_ps_512,
                                {x, x, a.b->getInt16(0xffff), a.b->getInt32(kCurrentRounding)});
  });
}

V mantissa_from_3_4(V a) {
  return by_registers(a, a, 16, [&](Value* x, Value*) -> Value* {
    return a.b->CreateIntrinsic(llvm::Intrinsic::x86_avx512_mask_getmant_ps_512,
                                {x, a.b->getInt32(15), x, a.b->getInt16(0xffff), a.b->getInt32(kCurrentRounding)});
  });
}

V permuted(std::span<const double> table, V index) {
  llvm::IRBuilder<>& b = *index.b;
  llvm::SmallVector<float, 16> row;
  for (double entry : table) row.push_back(static_cast<float>(entry));
  Value* entries = llvm::ConstantDataVector::get(b.getContext(), row);
  return by_registers(index.real(), index.real(), static_cast<int>(table.size()), [&](Value* x, Value*) -> Value* {
    Value* i = b.CreateBitCast(x, llvm::FixedVectorType::get(b.getInt32Ty(), static_cast<unsigned>(table.size())));
    return b.CreateIntrinsic(
        table.size() == 16 ? llvm::Intrinsic::x86_avx512_permvar_sf_512 : llvm::Intrinsic::x86_avx2_permps,
        {entries, i});
  });
}

V odd_by_table(V x, const Table& table) {
  V y = at_most(abs(x), table.end);
  const double magic = 0x1.8p23;
  V number = fma(y, 1 / table.step, magic);  // the nearest column's, in the low bits
  auto row = [&](size_t r) { return permuted(table.rows.subspan(r * table.columns, table.columns), number.bits()); };
  V t = y - row(0);
  const size_t rows = table.rows.size() / table.columns;
  V q = row(rows - 1);
  for (size_t r = rows - 1; r-- > 2;) q = fma(q, t, row(r));
  V near = number < magic + table.near;
  return copysign(fma(select(near, y, t), q, select(near, y, row(1))), x);
}

}  // namespace fastjit::codegen::math
