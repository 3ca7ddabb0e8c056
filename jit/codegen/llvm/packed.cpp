// Packed operands: `rows` whole vectors of memory hold one vector of each row, element by element in turn.
#include <algorithm>

#include "codegen/llvm/emitter.h"

namespace fastjit::codegen {

using llvm::Value;
using plan::StrideClass;

namespace {

using Vectors = llvm::SmallVector<Value*, 8>;
using Picks = llvm::SmallVector<int, 64>;  // per lane: its place among the lanes of all vectors

int lanes_in(const Vectors& vectors) {
  return static_cast<int>(llvm::cast<llvm::FixedVectorType>(vectors[0]->getType())->getNumElements());
}

// Lane i of the result is lane i of one of the vectors, or any of them.
Value* picked(llvm::IRBuilder<>& b, const Vectors& vectors, const Picks& picks) {
  const int lanes = lanes_in(vectors);
  Value* result = vectors[0];
  for (int which = 1; which < static_cast<int>(vectors.size()); ++which) {
    Picks mask;
    for (int lane = 0; lane < lanes; ++lane) {
      const int pick = picks[static_cast<size_t>(lane)], from = pick / lanes;
      mask.push_back(from == which ? lanes + pick % lanes : which == 1 && from == 0 ? pick : lane);
    }
    result = b.CreateShuffleVector(result, vectors[static_cast<size_t>(which)], mask);
  }
  return result;
}

// Of vectors in memory: every rows-th element from `row` on. With an odd number of rows these stand in lanes of their
// own, so that blends and one permutation do.
Value* row_of(llvm::IRBuilder<>& b, const Vectors& memory, int row) {
  const int lanes = lanes_in(memory), rows = static_cast<int>(memory.size());
  Picks picks;
  for (int lane = 0; lane < lanes; ++lane) picks.push_back(rows * lane + row);
  if (rows % 2 == 0) return picked(b, memory, picks);
  Picks blended(static_cast<size_t>(lanes), 0), order;
  for (const int pick : picks) {
    blended[static_cast<size_t>(pick % lanes)] = pick;
    order.push_back(pick % lanes);
  }
  return b.CreateShuffleVector(picked(b, memory, blended), order);
}

// The inverse of row_of: the vectors of memory from those of the rows.
Vectors in_memory(llvm::IRBuilder<>& b, Vectors values) {
  const int lanes = lanes_in(values), rows = static_cast<int>(values.size());
  const bool is_odd = rows % 2 != 0;
  for (int row = 0; is_odd && row < rows; ++row) {
    Picks order(static_cast<size_t>(lanes), 0);
    for (int lane = 0; lane < lanes; ++lane) order[static_cast<size_t>((rows * lane + row) % lanes)] = lane;
    values[static_cast<size_t>(row)] = b.CreateShuffleVector(values[static_cast<size_t>(row)], order);
  }
  Vectors memory;
  for (int which = 0; which < rows; ++which) {
    Picks picks;
    for (int lane = 0; lane < lanes; ++lane) {
      const int element = which * lanes + lane;
      picks.push_back(element % rows * lanes + (is_odd ? lane : element / rows));
    }
    memory.push_back(picked(b, values, picks));
  }
  return memory;
}

}  // namespace

bool KernelEmitter::is_packed(uint32_t operand) const {
  if (plan_.vec_dim < 0 || lanes_ == 1) return false;
  const plan::Operand& about = plan_.operands[operand];
  return about.strides[static_cast<size_t>(plan_.vec_dim)] == StrideClass::Packed &&
         (!now_.mask || masked_memory(about.dtype));
}

// The row whose element comes first.
int KernelEmitter::first_packed(uint32_t operand) const {
  const bool is_back = plan_.operands[operand].strides[static_cast<size_t>(row_dim_)] == StrideClass::Back;
  return is_back ? plan_.rows - 1 : 0;
}

Value* KernelEmitter::packed_pointer(uint32_t operand, int slot, int which) {
  row_ = first_packed(operand);
  const Place place = place_of(operand, slot);
  row_ = 0;
  return offset(place.pointer, i64(static_cast<int64_t>(which) * lanes_ * ir::size_of(place.type)));
}

// Null: all lanes of this vector of memory count.
Value* KernelEmitter::packed_mask(int which) {
  if (!now_.mask) return nullptr;
  const auto splat = [&](Value* number) { return b_.CreateVectorSplat(static_cast<unsigned>(lanes_), number); };
  llvm::Type* narrow = b_.getInt32Ty();
  Value* lane = b_.CreateAdd(lane_numbers(narrow), splat(b_.getInt32(static_cast<uint32_t>(which * lanes_))));
  Value* limit = b_.CreateMul(b_.CreateTrunc(now_.remaining, narrow), b_.getInt32(plan_.rows));
  return b_.CreateICmpULT(lane, splat(limit));
}

void KernelEmitter::load_packed(uint32_t id) {
  const auto operand = static_cast<uint32_t>(plan_.code[id].imm);
  const ir::DType dtype = plan_.operands[operand].dtype;
  const llvm::Align align(static_cast<uint64_t>(ir::size_of(dtype)));
  llvm::Type* type = lanes_of(memory_type(context_, dtype), lanes_);
  const int first = first_packed(operand);
  for (int slot = 0; slot < now_.slots; ++slot) {
    Vectors memory;
    for (int which = 0; which < plan_.rows; ++which) {
      Value *at = packed_pointer(operand, slot, which), *mask = packed_mask(which);
      memory.push_back(
          mask ? static_cast<Value*>(b_.CreateMaskedLoad(type, at, align, mask, llvm::Constant::getNullValue(type)))
               : b_.CreateAlignedLoad(type, at, align));
    }
    for (int row = 0; row < plan_.rows; ++row)
      held_[id][static_cast<size_t>(row)].slots.push_back(
          from_memory(b_, row_of(b_, memory, std::abs(first - row)), dtype));
  }
}

void KernelEmitter::store_packed(uint32_t id) {
  const auto operand = static_cast<uint32_t>(plan_.code[id].imm);
  const ir::DType dtype = plan_.operands[operand].dtype;
  const llvm::Align align(static_cast<uint64_t>(ir::size_of(dtype)));
  const int first = first_packed(operand);
  for (int slot = 0; slot < now_.slots; ++slot) {
    Vectors values(plan_.rows, nullptr);
    for (row_ = 0; row_ < plan_.rows; ++row_)
      values[static_cast<size_t>(std::abs(first - row_))] = to_memory(b_, arg(id, 0, slot, true), dtype);
    row_ = 0;
    const Vectors memory = in_memory(b_, std::move(values));
    for (int which = 0; which < plan_.rows; ++which) {
      Value *at = packed_pointer(operand, slot, which), *mask = packed_mask(which);
      Value* value = memory[static_cast<size_t>(which)];
      if (mask)
        b_.CreateMaskedStore(value, at, align, mask);
      else
        b_.CreateAlignedStore(value, at, align);
    }
  }
}

}  // namespace fastjit::codegen
