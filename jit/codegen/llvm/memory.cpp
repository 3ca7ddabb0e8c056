// Loads and stores: whole vectors, masked vectors, gathers, and a lane at a time where the ISA has nothing better.
#include "codegen/llvm/emitter.h"

namespace fastjit::codegen {

using ir::DType;
using llvm::Type;
using plan::StrideClass;

// AVX2 masks 4- and 8-byte elements only; the compiler would turn the others into a branch a lane.
bool KernelEmitter::masked_memory(DType type) const { return avx512_ || ir::size_of(type) >= 4; }
bool KernelEmitter::gathers(DType type) const { return avx512_ && ir::size_of(type) >= 4; }

KernelEmitter::Place KernelEmitter::place_of(uint32_t operand, int slot) {
  const plan::Operand& about = plan_.operands[operand];
  Place place{pointer_of(operand), nullptr, about.dtype, -1, false};
  if (!moves_with_lanes(operand)) return place;
  if (plan_.is_transposed(operand)) {
    Value* lane = b_.CreateAdd(b_.CreateSub(now_.index, tile_.column), i64(static_cast<int64_t>(slot) * lanes_));
    place.pointer = offset(buffer_rows_[operand], b_.CreateMul(lane, i64(ir::size_of(about.dtype))));
    return place;
  }
  Value* stride = strides_[operand][plan_.vec_dim];
  place.pointer = offset(place.pointer, b_.CreateMul(now_.index, stride));
  if (slot) place.pointer = offset(place.pointer, b_.CreateMul(stride, i64(static_cast<int64_t>(slot) * lanes_)));
  const StrideClass lanes = about.strides[plan_.vec_dim];
  place.every_other = lanes == StrideClass::Two;
  if (lanes == StrideClass::Any || lanes == StrideClass::Packed || (place.every_other && !masked_memory(about.dtype))) {
    place.stride = stride;
    place.operand = static_cast<int>(operand);
  }
  return place;
}

llvm::Value* KernelEmitter::load(uint32_t operand, int slot, bool in_elem) {
  Value* raw = is_loaded_from_round(operand) ? from_round(operand, slot) : load_raw(operand, slot, in_elem);
  return from_memory(b_, raw, plan_.operands[operand].dtype);
}

llvm::Value* KernelEmitter::load_raw(uint32_t operand, int slot, bool in_elem) {
  const plan::Operand& about = plan_.operands[operand];
  Place place = place_of(operand, slot);
  if (moves_with_lanes(operand) && lanes_ > 1) return load_lanes(place);
  // A load that is hoisted out of reduced loops must not touch memory when those loops are empty.
  bool moves_in_reduced = false;
  for (int d = kept_; d < rank(); ++d) moves_in_reduced |= about.strides[d] != StrideClass::Zero;
  Type* type = memory_type(context_, about.dtype);
  if (in_elem && !moves_in_reduced) {
    Value* some = b_.getTrue();
    for (int d = kept_; d < rank(); ++d) some = b_.CreateAnd(some, b_.CreateICmpNE(sizes_[d], i64(0)));
    place.pointer = b_.CreateSelect(some, place.pointer, fn_->getArg(0));
  }
  return b_.CreateAlignedLoad(type, place.pointer, llvm::Align(static_cast<uint64_t>(ir::size_of(about.dtype))));
}

// Lanes that are neighbours are a vector further on; others lie anywhere.
llvm::Value* KernelEmitter::gather(uint32_t id, int slot) {
  const auto operand = static_cast<uint32_t>(plan_.code[id].imm);
  const DType type = plan_.operands[operand].dtype;
  const Held& index = held(plan_.code[id].args[0]);
  const bool is_apart = !index.slots.empty() && lanes_ > 1;
  Value* number = is_apart ? nullptr : arg(id, 0, slot, false);
  Value* some = b_.getTrue();  // see load_raw()
  for (int d = kept_; in_elem_[id] && level_[id] < kReduced + rank() - kept_ - 1 && d < rank(); ++d)
    some = b_.CreateAnd(some, b_.CreateICmpNE(sizes_[d], i64(0)));
  Place place = place_of(operand, slot);
  if (is_apart) {
    Value* further =
        b_.CreateMul(index.slots[slot], b_.CreateVectorSplat(static_cast<unsigned>(lanes_), steps_[operand]));
    if (moves_with_lanes(operand)) {
      Value* apart = b_.CreateVectorSplat(static_cast<unsigned>(lanes_), strides_[operand][plan_.vec_dim]);
      further = b_.CreateAdd(further, b_.CreateMul(lane_numbers(b_.getInt64Ty()), apart));
    }
    return from_memory(b_, gather_lanes(place, further), type);
  }
  number = b_.CreateSelect(some, number, i64(0));
  place.pointer = offset(place.pointer, b_.CreateMul(number, steps_[operand]));
  if (moves_with_lanes(operand) && lanes_ > 1) return from_memory(b_, load_lanes(place), type);
  place.pointer = b_.CreateSelect(some, place.pointer, fn_->getArg(0));
  const llvm::Align align(static_cast<uint64_t>(ir::size_of(type)));
  return from_memory(b_, b_.CreateAlignedLoad(memory_type(context_, type), place.pointer, align), type);
}

// The element of each lane, so many bytes from where the place begins.
llvm::Value* KernelEmitter::gather_lanes(const Place& place, Value* offsets) {
  const int bytes = ir::size_of(place.type);
  const llvm::Align align(static_cast<uint64_t>(bytes));
  Type *element = memory_type(context_, place.type), *type = lanes_of(element, lanes_);
  if (gathers(place.type)) {
    Value* mask = now_.mask ? now_.mask : llvm::Constant::getAllOnesValue(shaped(b_.getInt1Ty(), type));
    return b_.CreateMaskedGather(type, offset(place.pointer, offsets), align, mask, llvm::Constant::getNullValue(type));
  }
  if (!now_.mask) {
    Value* vector = llvm::PoisonValue::get(type);
    for (int lane = 0; lane < lanes_; ++lane) {
      Value* at = offset(place.pointer, b_.CreateExtractElement(offsets, static_cast<uint64_t>(lane)));
      vector = b_.CreateInsertElement(vector, b_.CreateAlignedLoad(element, at, align), static_cast<uint64_t>(lane));
    }
    return vector;
  }
  llvm::AllocaInst *buffer = variable(type, "lanes"), *places = variable(offsets->getType(), "offsets");
  b_.CreateAlignedStore(llvm::Constant::getNullValue(type), buffer, buffer->getAlign());
  b_.CreateAlignedStore(offsets, places, places->getAlign());
  count(i64(0), now_.remaining, 1, [&](Value* lane) {
    Value* further = b_.CreateAlignedLoad(b_.getInt64Ty(), offset(places, b_.CreateMul(lane, i64(8))), llvm::Align(8));
    Value* to = offset(buffer, b_.CreateMul(lane, i64(bytes)));
    b_.CreateAlignedStore(b_.CreateAlignedLoad(element, offset(place.pointer, further), align), to, align);
  });
  return b_.CreateAlignedLoad(type, buffer, buffer->getAlign());
}

void KernelEmitter::store(uint32_t operand, Value* value, int slot, bool vector) {
  value = to_memory(b_, value, plan_.operands[operand].dtype);
  if (!to_round(operand, value, slot)) store_raw(operand, value, slot, vector);
}

void KernelEmitter::store_raw(uint32_t operand, Value* value, int slot, bool vector) {
  const Place place = place_of(operand, slot);
  if (vector && lanes_ > 1) return store_lanes(place, value);
  const auto bytes = static_cast<uint64_t>(ir::size_of(plan_.operands[operand].dtype));
  b_.CreateAlignedStore(value, place.pointer, llvm::Align(bytes));
}

llvm::Value* KernelEmitter::load_lanes(const Place& place) {
  const llvm::Align align(static_cast<uint64_t>(ir::size_of(place.type)));
  Type* type = lanes_of(memory_type(context_, place.type), lanes_);
  Value* raw = nullptr;
  if (place.every_other && !place.stride) {
    raw = load_every_other(place, type);
  } else if (place.stride && gathers(place.type)) {
    Value* mask = now_.mask ? now_.mask : llvm::Constant::getAllOnesValue(shaped(b_.getInt1Ty(), type));
    raw = b_.CreateMaskedGather(type, offset(place.pointer, lane_offsets_[place.operand]), align, mask,
                                llvm::Constant::getNullValue(type));
  } else if (place.stride || (now_.mask && !masked_memory(place.type))) {
    raw = load_by_lane(place, type);
  } else if (now_.mask) {
    raw = b_.CreateMaskedLoad(type, place.pointer, align, now_.mask, llvm::Constant::getNullValue(type));
  } else {
    raw = b_.CreateAlignedLoad(type, place.pointer, align);
  }
  return raw;
}

void KernelEmitter::store_lanes(const Place& place, Value* value) {
  const llvm::Align align(static_cast<uint64_t>(ir::size_of(place.type)));
  if (place.stride && gathers(place.type)) {
    Value* mask = now_.mask ? now_.mask : llvm::Constant::getAllOnesValue(shaped(b_.getInt1Ty(), value->getType()));
    b_.CreateMaskedScatter(value, offset(place.pointer, lane_offsets_[place.operand]), align, mask);
  } else if (place.stride || (now_.mask && !masked_memory(place.type))) {
    store_by_lane(place, value);
  } else if (now_.mask) {
    b_.CreateMaskedStore(value, place.pointer, align, now_.mask);
  } else {
    b_.CreateAlignedStore(value, place.pointer, align);
  }
}

// Two vectors' worth of memory, of which the odd elements are never touched: the last one may lie outside the tensor.
llvm::Value* KernelEmitter::load_every_other(const Place& place, Type* type) {
  Type* wide = lanes_of(memory_type(context_, place.type), 2 * lanes_);
  llvm::SmallVector<int, 32> spread, even;
  for (int lane = 0; lane < lanes_; ++lane) {
    spread.append({lane, lanes_ + lane});
    even.push_back(2 * lane);
  }
  Type* bits = shaped(b_.getInt1Ty(), type);
  Value* mask = now_.mask ? now_.mask : llvm::Constant::getAllOnesValue(bits);
  mask = b_.CreateShuffleVector(mask, llvm::Constant::getNullValue(bits), spread);
  const llvm::Align align(static_cast<uint64_t>(ir::size_of(place.type)));
  Value* raw = b_.CreateMaskedLoad(wide, place.pointer, align, mask, llvm::Constant::getNullValue(wide));
  return b_.CreateShuffleVector(raw, even);
}

// Straight-line when every lane counts; else a loop over the lanes that do, through a buffer on the stack.
llvm::Value* KernelEmitter::load_by_lane(const Place& place, Type* type) {
  Type* element = type->getScalarType();
  const int bytes = ir::size_of(place.type);
  const llvm::Align align(static_cast<uint64_t>(bytes));
  Value* stride = place.stride ? place.stride : i64(bytes);
  if (!now_.mask) {
    Value* vector = llvm::PoisonValue::get(type);
    for (int lane = 0; lane < lanes_; ++lane) {
      Value* at = lane ? offset(place.pointer, b_.CreateMul(stride, i64(lane))) : place.pointer;
      vector = b_.CreateInsertElement(vector, b_.CreateAlignedLoad(element, at, align), static_cast<uint64_t>(lane));
    }
    return vector;
  }
  llvm::AllocaInst* buffer = variable(type, "lanes");
  b_.CreateAlignedStore(llvm::Constant::getNullValue(type), buffer, buffer->getAlign());
  count(i64(0), now_.remaining, 1, [&](Value* lane) {
    Value* at = offset(place.pointer, b_.CreateMul(lane, stride));
    b_.CreateAlignedStore(b_.CreateAlignedLoad(element, at, align), offset(buffer, b_.CreateMul(lane, i64(bytes))),
                          align);
  });
  return b_.CreateAlignedLoad(type, buffer, buffer->getAlign());
}

void KernelEmitter::store_by_lane(const Place& place, Value* value) {
  Type* element = value->getType()->getScalarType();
  const int bytes = ir::size_of(place.type);
  const llvm::Align align(static_cast<uint64_t>(bytes));
  Value* stride = place.stride ? place.stride : i64(bytes);
  if (!now_.mask) {
    for (int lane = 0; lane < lanes_; ++lane) {
      Value* at = lane ? offset(place.pointer, b_.CreateMul(stride, i64(lane))) : place.pointer;
      b_.CreateAlignedStore(b_.CreateExtractElement(value, static_cast<uint64_t>(lane)), at, align);
    }
    return;
  }
  llvm::AllocaInst* buffer = variable(value->getType(), "lanes");
  b_.CreateAlignedStore(value, buffer, buffer->getAlign());
  count(i64(0), now_.remaining, 1, [&](Value* lane) {
    Value* from = offset(buffer, b_.CreateMul(lane, i64(bytes)));
    b_.CreateAlignedStore(b_.CreateAlignedLoad(element, from, align), offset(place.pointer, b_.CreateMul(lane, stride)),
                          align);
  });
}

KernelEmitter::Place KernelEmitter::kept_place(uint64_t number, DType type, int slot) {
  Value* first = b_.CreateAdd(b_.CreateAdd(flat_, now_.index), i64(static_cast<int64_t>(slot) * lanes_));
  Value* start = b_.CreateMul(scratch_stride_, i64(static_cast<int64_t>(number)));
  return {offset(scratch_, b_.CreateAdd(start, b_.CreateMul(first, i64(ir::size_of(type))))), nullptr, type, -1, false};
}

llvm::Value* KernelEmitter::recall(uint64_t number, DType type, int slot) {
  const Place place = kept_place(number, type, slot);
  Value* raw = lanes_ > 1 ? load_lanes(place) : b_.CreateLoad(memory_type(context_, type), place.pointer);
  return from_memory(b_, raw, type);
}

void KernelEmitter::keep(uint64_t number, DType type, Value* value, int slot) {
  const Place place = kept_place(number, type, slot);
  value = to_memory(b_, value, type);
  if (lanes_ > 1) return store_lanes(place, value);
  b_.CreateStore(value, place.pointer);
}

}  // namespace fastjit::codegen
