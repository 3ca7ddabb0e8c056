// Tiled plans: squares of points, and the buffers through which transposed operands are loaded and stored. A row of a
// tile is a row of every buffer; in memory it is a column.
#include <algorithm>

#include "codegen/llvm/emitter.h"

namespace fastjit::codegen {

using llvm::Type;

namespace {

using Rows = llvm::SmallVector<llvm::Value*, 64>;

// The transpose of `rows`, as many vectors as each has lanes. First squares of 128 bits by interleaving neighbours
// inside them (vunpck), then the squares among each other by parting even from odd blocks (vperm2f128, vshuff32x4).
Rows transpose(llvm::IRBuilder<>& b, Rows rows, int bytes) {
  const int count = static_cast<int>(rows.size()), chunk = std::min(count, 16 / bytes), chunks = count / chunk;
  Rows next(rows.size());
  for (int stage = 1; stage < chunk; stage *= 2) {
    llvm::SmallVector<int, 64> low, high;
    for (int at = 0; at < count; ++at) {
      const int from = at / chunk * chunk + at % chunk / 2 + (at % 2 ? count : 0);
      low.push_back(from);
      high.push_back(from + chunk / 2);
    }
    for (int first = 0; first < count; first += chunk)
      for (int i = 0; i < chunk / 2; ++i) {
        llvm::Value *x = rows[first + i], *y = rows[first + i + chunk / 2];
        next[first + 2 * i] = b.CreateShuffleVector(x, y, low);
        next[first + 2 * i + 1] = b.CreateShuffleVector(x, y, high);
      }
    std::swap(rows, next);
  }
  for (int stage = 1; stage < chunks; stage *= 2) {
    llvm::SmallVector<int, 64> even, odd;
    for (int at = 0; at < count; ++at) {
      even.push_back(at / chunk * 2 * chunk + at % chunk);
      odd.push_back(even.back() + chunk);
    }
    for (int i = 0; i < chunks / 2; ++i)
      for (int k = 0; k < chunk; ++k) {
        llvm::Value *x = rows[2 * i * chunk + k], *y = rows[(2 * i + 1) * chunk + k];
        next[i * chunk + k] = b.CreateShuffleVector(x, y, even);
        next[(i + chunks / 2) * chunk + k] = b.CreateShuffleVector(x, y, odd);
      }
    std::swap(rows, next);
  }
  return rows;
}

}  // namespace

// Lanes of one register: squares of this side are transposed at once.
int KernelEmitter::square(ir::DType type) const {
  return std::min<int>(plan_.tile, (avx512_ ? 64 : 32) / std::max(ir::size_of(type), avx512_ ? 4 : 2));
}

void KernelEmitter::begin_tiles() {
  buffers_.assign(plan_.operands.size(), nullptr);
  buffer_rows_.assign(plan_.operands.size(), nullptr);
  for (uint32_t i = 0; i < plan_.operands.size(); ++i) {
    if (!plan_.is_transposed(i)) continue;
    Type* element = memory_type(context_, plan_.operands[i].dtype);
    buffers_[i] = variable(llvm::ArrayType::get(element, static_cast<uint64_t>(plan_.tile) * plan_.tile), "tile");
    buffers_[i]->setAlignment(llvm::Align(64));
  }
}

llvm::Value* KernelEmitter::tile_row(uint32_t operand, Value* row) {
  return offset(buffers_[operand],
                b_.CreateMul(row, i64(static_cast<int64_t>(plan_.tile) * ir::size_of(plan_.operands[operand].dtype))));
}

void KernelEmitter::tile() {
  auto clip = [&](llvm::AllocaInst* number, int dim, Value*& first, Value*& length) {
    first = b_.CreateMul(get(number), i64(plan_.tile));
    length = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b_.CreateSub(sizes_[dim], first), i64(plan_.tile));
  };
  clip(tile_block_, plan_.tile_dim, tile_.row, tile_.rows);
  clip(block_, plan_.vec_dim, tile_.column, tile_.columns);
  const std::vector<uint32_t>& code = plan_.phases[0].row;
  std::vector<bool> in(plan_.operands.size(), false);
  for (uint32_t id : code)
    if (plan_.code[id].code == plan::Code::Load) in[plan_.code[id].imm] = true;
  for (uint32_t i = 0; i < plan_.operands.size(); ++i)
    if (buffers_[i] && in[i]) move_tile(i, false);
  count(i64(0), tile_.rows, 1, [&](Value* row) {
    const std::vector<Value*> outside = pointers_;
    Value* index = b_.CreateAdd(tile_.row, row);
    index_[plan_.tile_dim] = index;
    for (uint32_t i = 0; i < plan_.operands.size(); ++i) {
      if (buffers_[i]) buffer_rows_[i] = tile_row(i, row);
      if (Value* stride = strides_[i][plan_.tile_dim]) pointers_[i] = offset(pointers_[i], b_.CreateMul(index, stride));
    }
    emit_level(code, kUnit);
    lane_loops(tile_.column, b_.CreateAdd(tile_.column, tile_.columns), [&] { emit_level(code, kLanes); });
    pointers_ = outside;
  });
  for (uint32_t i = 0; i < plan_.operands.size(); ++i)
    if (buffers_[i] && plan_.operands[i].output) move_tile(i, true);
}

// Between memory and buffer: whole squares in registers, what is left at the ends one element at a time.
void KernelEmitter::move_tile(uint32_t operand, bool out) {
  const int side = square(plan_.operands[operand].dtype), bytes = ir::size_of(plan_.operands[operand].dtype);
  Value* stride = strides_[operand][plan_.vec_dim];
  Value* memory = offset(pointers_[operand], b_.CreateMul(tile_.row, i64(bytes)));
  memory = offset(memory, b_.CreateMul(tile_.column, stride));
  auto whole = [&](Value* length) { return b_.CreateAnd(length, i64(-side)); };
  count(i64(0), whole(tile_.columns), side, [&](Value* column) {
    Value* line = offset(memory, b_.CreateMul(column, stride));
    Value* place = offset(buffers_[operand], b_.CreateMul(column, i64(bytes)));
    count(i64(0), whole(tile_.rows), side, [&](Value* row) {
      Value* to = offset(place, b_.CreateMul(row, i64(static_cast<int64_t>(plan_.tile) * bytes)));
      move_square(operand, offset(line, b_.CreateMul(row, i64(bytes))), to, out);
    });
  });
  move_rest(operand, memory, out);
}

void KernelEmitter::move_square(uint32_t operand, Value* memory, Value* buffer, bool out) {
  const ir::DType type = plan_.operands[operand].dtype;
  const int side = square(type), bytes = ir::size_of(type);
  Type* vector = lanes_of(memory_type(context_, type), side);
  const llvm::Align loose(static_cast<uint64_t>(bytes)), whole(static_cast<uint64_t>(side * bytes));
  Value* stride = strides_[operand][plan_.vec_dim];
  auto in_buffer = [&](int row) { return offset(buffer, i64(static_cast<int64_t>(row) * plan_.tile * bytes)); };
  Rows rows;
  Value* line = memory;
  for (int i = 0; i < side; ++i) {
    rows.push_back(b_.CreateAlignedLoad(vector, out ? in_buffer(i) : line, out ? whole : loose));
    line = offset(line, stride);
  }
  rows = transpose(b_, std::move(rows), bytes);
  line = memory;
  for (int i = 0; i < side; ++i) {
    b_.CreateAlignedStore(rows[i], out ? line : in_buffer(i), out ? loose : whole);
    line = offset(line, stride);
  }
}

void KernelEmitter::move_rest(uint32_t operand, Value* memory, bool out) {
  const ir::DType type = plan_.operands[operand].dtype;
  const int side = square(type), bytes = ir::size_of(type);
  const llvm::Align align(static_cast<uint64_t>(bytes));
  Type* element = memory_type(context_, type);
  Value *whole_rows = b_.CreateAnd(tile_.rows, i64(-side)), *whole_columns = b_.CreateAnd(tile_.columns, i64(-side));
  count(i64(0), tile_.columns, 1, [&](Value* column) {
    Value* line = offset(memory, b_.CreateMul(column, strides_[operand][plan_.vec_dim]));
    Value* place = offset(buffers_[operand], b_.CreateMul(column, i64(bytes)));
    Value* done = b_.CreateSelect(b_.CreateICmpSLT(column, whole_columns), whole_rows, i64(0));
    count(done, tile_.rows, 1, [&](Value* row) {
      Value* far = offset(line, b_.CreateMul(row, i64(bytes)));
      Value* near = offset(place, b_.CreateMul(row, i64(static_cast<int64_t>(plan_.tile) * bytes)));
      b_.CreateAlignedStore(b_.CreateAlignedLoad(element, out ? near : far, align), out ? far : near, align);
    });
  });
}

}  // namespace fastjit::codegen
