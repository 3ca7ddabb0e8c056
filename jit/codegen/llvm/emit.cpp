// The function around the loops: arguments, decoding of units, and what a single instruction becomes.
#include "codegen/llvm/emit.h"

#include <llvm/IR/Dominators.h>
#include <llvm/Transforms/Utils/PromoteMemToReg.h>

#include <algorithm>
#include <bit>

#include "codegen/llvm/emitter.h"
#include "codegen/llvm/small.h"

namespace fastjit::codegen {

using ir::DType;
using ir::Op;
using llvm::Type;
using plan::Code;
using plan::DimKind;
using plan::Instr;
using plan::StrideClass;

KernelEmitter::KernelEmitter(llvm::Module& module, const plan::KernelPlan& plan, backend::Isa isa)
    : module_(module),
      context_(module.getContext()),
      plan_(plan),
      b_(context_),
      rules_{b_, plan.numerics, isa},
      avx512_(isa == backend::Isa::Avx512),
      lanes_(plan.lanes),
      kept_(plan.kept()),
      vec_kept_(plan.vec_is_kept()),
      row_dim_(plan.rows > 1 ? plan.row_dim() : -1) {
  set_numerics(b_, plan.numerics);
}

// Where each instruction is computed: the innermost loop whose index it depends on. Stores, Keeps, Recalls and
// reductions stay in their list.
void KernelEmitter::place() {
  const size_t count = plan_.code.size();
  deps_.assign(count, 0);
  level_.assign(count, 0);
  in_elem_.assign(count, false);
  wants_splat_.assign(count, false);
  held_.assign(count, {});
  const uint32_t all = (1u << rank()) - 1, kept = (1u << kept_) - 1;
  auto level_of = [&](uint32_t deps) {
    int level = 0;
    for (int d = 0; d < rank(); ++d)
      if (deps >> d & 1)
        level = std::max(level, d >= kept_ ? kReduced + d - kept_ : d == plan_.vec_dim ? kLanes : kUnit);
    return level;
  };
  auto visit = [&](uint32_t id, bool elem) {
    const Instr& in = plan_.code[id];
    in_elem_[id] = elem;
    uint32_t deps = 0;
    const int count = arity(in);
    for (int i = 0; i < count; ++i) deps |= deps_[in.args[i]];
    int level = 0;
    if (is_load(in))
      for (int d = 0; d < rank(); ++d) deps |= plan_.operands[in.imm].strides[d] != StrideClass::Zero ? 1u << d : 0u;
    if (in.code == Code::Load && is_loaded_from_round(static_cast<uint32_t>(in.imm))) deps |= 1u << (rank() - 1);
    if (in.code == Code::Index) deps |= 1u << in.imm;
    if (in.code == Code::Reduce) {
      deps = kept;
      level = row_level();
    } else if (in.code == Code::Store || in.code == Code::Keep || in.code == Code::Recall) {
      level = elem ? kReduced + rank() - kept_ - 1 : row_level();
      if (in.code == Code::Recall) deps = all;
    }
    for (int i = 0; i < count; ++i) level = std::max(level, in.code == Code::Reduce ? 0 : level_[in.args[i]]);
    deps_[id] = deps;
    level_[id] = std::max(level, level_of(deps));
    const bool vector = in.code == Code::Store    ? moves_with_lanes(static_cast<uint32_t>(in.imm))
                        : in.code == Code::Keep   ? true
                        : in.code == Code::Reduce ? plan_.vec_dim >= 0
                                                  : varies(id);
    for (int i = 0; vector && i < count; ++i) wants_splat_[in.args[i]] = true;
  };
  for (const plan::Phase& phase : plan_.phases) {
    for (uint32_t id : phase.elem) visit(id, true);
    for (uint32_t id : phase.row) visit(id, false);
  }
}

llvm::AllocaInst* KernelEmitter::variable(Type* type, const char* name) {
  llvm::IRBuilder<>::InsertPointGuard guard(b_);
  b_.SetInsertPoint(variables_end_);
  auto* made = b_.CreateAlloca(type, nullptr, name);
  made->setAlignment(llvm::Align(std::min<uint64_t>(made->getAlign().value(), 16)));
  return made;
}

llvm::Value* KernelEmitter::lane_numbers(Type* type) {
  llvm::SmallVector<llvm::Constant*, 64> numbers;
  for (int i = 0; i < lanes_; ++i) numbers.push_back(llvm::ConstantInt::get(type, static_cast<uint64_t>(i)));
  return lanes_ == 1 ? numbers[0] : llvm::ConstantVector::get(numbers);
}

// The order of these fields is backend::KernelArgs.
void KernelEmitter::arguments() {
  Type *ptr = b_.getPtrTy(), *word = b_.getInt64Ty();
  Value *ptrs = word_of(b_, fn_->getArg(0), 0, ptr), *sizes = word_of(b_, fn_->getArg(0), 1, ptr),
        *strides = word_of(b_, fn_->getArg(0), 2, ptr);
  scalars_ = plan_.scalars.empty() ? nullptr : word_of(b_, fn_->getArg(0), 3, ptr);
  if (!plan_.scratch.empty()) {
    scratch_ = word_of(b_, fn_->getArg(0), 4, ptr);
    scratch_stride_ = word_of(b_, fn_->getArg(0), 5, word);
  }
  if (vec_kept_) block_size_ = word_of(b_, fn_->getArg(0), 6, word);
  for (int d = 0; d < rank(); ++d) sizes_.push_back(word_of(b_, sizes, d, word));
  for (size_t i = 0; i < plan_.operands.size(); ++i) {
    const plan::Operand& operand = plan_.operands[i];
    base_.push_back(word_of(b_, ptrs, static_cast<int64_t>(i), ptr));
    strides_.emplace_back(rank(), nullptr);
    Value* const step = operand.gathered ? word_of(b_, strides, static_cast<int64_t>(plan_.step_of(i)), word) : nullptr;
    steps_.push_back(step ? b_.CreateMul(step, i64(ir::size_of(operand.dtype))) : nullptr);
    lane_offsets_.push_back(nullptr);
    for (int d = 0; d < rank(); ++d) {
      if (operand.strides[d] == StrideClass::Unit) strides_[i][d] = i64(ir::size_of(operand.dtype));
      if (operand.strides[d] == StrideClass::Two) strides_[i][d] = i64(2 * ir::size_of(operand.dtype));
      if (operand.strides[d] == StrideClass::Packed) strides_[i][d] = i64(plan_.rows * ir::size_of(operand.dtype));
      if (operand.strides[d] == StrideClass::Back) strides_[i][d] = i64(-ir::size_of(operand.dtype));
      if (operand.strides[d] == StrideClass::Any)
        strides_[i][d] = b_.CreateMul(word_of(b_, strides, static_cast<int64_t>(i) * rank() + d, word),
                                      i64(ir::size_of(operand.dtype)));
    }
    if (plan_.vec_dim >= 0 && lanes_ > 1 && operand.strides[plan_.vec_dim] == StrideClass::Any)
      lane_offsets_[i] = b_.CreateMul(lane_numbers(word),
                                      b_.CreateVectorSplat(static_cast<unsigned>(lanes_), strides_[i][plan_.vec_dim]));
  }
  pointers_ = base_;
  index_.assign(rank(), nullptr);
}

llvm::Function* kernel_function(llvm::Module& module, std::string_view entry) {
  llvm::LLVMContext& context = module.getContext();
  Type *ptr = llvm::PointerType::get(context, 0), *word = Type::getInt64Ty(context);
  auto* type = llvm::FunctionType::get(Type::getVoidTy(context), {ptr, word, word}, false);
  auto* fn = llvm::Function::Create(type, llvm::GlobalValue::ExternalLinkage, entry, module);
  fn->addFnAttr(llvm::Attribute::NoUnwind);
  fn->addFnAttr(llvm::Attribute::NoRedZone);
  fn->addFnAttr("prefer-vector-width", "512");
  fn->addFnAttr("min-legal-vector-width", "512");
  return fn;
}

void KernelEmitter::emit(std::string_view entry) {
  place();
  fn_ = kernel_function(module_, entry);
  begin_ = fn_->getArg(1);
  end_ = fn_->getArg(2);
  llvm::BasicBlock *top = block("entry"), *start = block("start"), *done = block("done");
  b_.SetInsertPoint(top);
  variables_end_ = b_.CreateCondBr(b_.CreateICmpSLT(begin_, end_), start, done);
  b_.SetInsertPoint(done);
  b_.CreateRetVoid();
  b_.SetInsertPoint(start);
  arguments();
  for (const plan::Phase& phase : plan_.phases) {
    emit_level(phase.elem, 0);
    emit_level(phase.row, 0);
  }
  units();
  b_.CreateBr(done);

  std::vector<llvm::AllocaInst*> promotable;
  for (llvm::Instruction& in : *top)
    if (auto* alloca = llvm::dyn_cast<llvm::AllocaInst>(&in); alloca && llvm::isAllocaPromotable(alloca))
      promotable.push_back(alloca);
  llvm::DominatorTree tree(*fn_);
  llvm::PromoteMemToReg(promotable, tree);
}

// begin -> digits of the unit's number, the order of which is told at backend::KernelArgs. The divisions happen once a
// call, units then count up.
void KernelEmitter::decode() {
  auto digit = [&](Value* limit) {
    digits_.push_back({variable(b_.getInt64Ty(), "index"), limit});
    return digits_.back().now;
  };
  auto blocks = [&](int dim) { return b_.CreateUDiv(b_.CreateAdd(sizes_[dim], i64(plan_.tile - 1)), i64(plan_.tile)); };
  const bool tiled = plan_.tile > 0;
  if (tiled) {
    block_ = digit(blocks(plan_.vec_dim));
    tile_block_ = digit(blocks(plan_.tile_dim));
  }
  decoded_.resize(tiled ? kept_ - 2 : vec_kept_ ? kept_ - 1 : kept_);
  for (size_t d = decoded_.size(); d-- > 0;) {
    const bool has_rows = static_cast<int>(d) == row_dim_;
    Value* of_rows = has_rows ? b_.CreateAdd(sizes_[d], i64(plan_.rows - 1)) : nullptr;
    decoded_[d] = digit(has_rows ? b_.CreateUDiv(of_rows, i64(plan_.rows)) : sizes_[d]);
  }
  if (vec_kept_ && !tiled) block_ = digit(nullptr);
  Value* rest = begin_;
  for (const Digit& each : digits_) {
    const bool last = &each == &digits_.back();
    b_.CreateStore(last ? rest : b_.CreateURem(rest, each.limit), each.now);
    if (!last) rest = b_.CreateUDiv(rest, each.limit);
  }
}

void KernelEmitter::advance() {
  Value* carry = b_.getTrue();
  for (const Digit& each : digits_) {
    Value* next = b_.CreateAdd(get(each.now), b_.CreateZExt(carry, b_.getInt64Ty()));
    if (&each != &digits_.back()) {
      carry = b_.CreateICmpEQ(next, each.limit);
      next = b_.CreateSelect(carry, i64(0), next);
    }
    b_.CreateStore(next, each.now);
  }
}

void KernelEmitter::unit_pointers() {
  pointers_ = base_;
  for (size_t d = 0; d < decoded_.size(); ++d) index_[d] = get(decoded_[d]);
  if (row_dim_ >= 0) index_[row_dim_] = b_.CreateMul(index_[row_dim_], i64(plan_.rows));
  for (size_t i = 0; i < base_.size(); ++i)
    for (size_t d = 0; d < decoded_.size(); ++d)
      if (strides_[i][d]) pointers_[i] = offset(pointers_[i], b_.CreateMul(index_[d], strides_[i][d]));
  if (row_dim_ >= 0) rows_of_unit();
}

// Rows beyond the end are the last one again.
void KernelEmitter::rows_of_unit() {
  Value *first = index_[row_dim_], *last = b_.CreateSub(sizes_[row_dim_], i64(1));
  row_index_ = {first};
  row_steps_.assign(base_.size(), {nullptr});
  for (int row = 1; row < plan_.rows; ++row) {
    row_index_.push_back(b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b_.CreateAdd(first, i64(row)), last));
    Value* further = b_.CreateSub(row_index_.back(), first);
    for (size_t i = 0; i < base_.size(); ++i) {
      Value* stride = strides_[i][row_dim_];
      row_steps_[i].push_back(stride ? b_.CreateMul(further, stride) : nullptr);
    }
  }
}

// Of the current row, at the current loops.
llvm::Value* KernelEmitter::pointer_of(uint32_t operand) {
  Value* step = row_ ? row_steps_[operand][row_] : nullptr;
  return step ? offset(pointers_[operand], step) : pointers_[operand];
}

void KernelEmitter::units() {
  decode();
  if (plan_.tile > 0) begin_tiles();
  count(begin_, end_, 1, [&](Value*) {
    unit_pointers();
    if (plan_.tile > 0) {
      tile();
    } else {
      if (row_level() != kUnit)
        for (const plan::Phase& phase : plan_.phases) {
          emit_level(phase.elem, kUnit);
          emit_level(phase.row, kUnit);
        }
      row();
    }
    advance();
  });
}

void KernelEmitter::row() {
  if (!vec_kept_) return phases();
  Value* from = b_.CreateMul(get(block_), block_size_);
  Value* to = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b_.CreateAdd(from, block_size_), sizes_[plan_.vec_dim]);
  lane_loops(from, to, [&] { phases(); });
}

void KernelEmitter::phases() {
  for (const plan::Phase& phase : plan_.phases) {
    emit_level(phase.elem, row_level());
    if (!phase.elem.empty()) {
      begin_accumulators(phase);
      begin_rounds();
      flat_ = i64(0);
      reduced_loops(phase, kept_);
      end_accumulators();
      end_rounds();
    }
    emit_level(phase.row, row_level());
  }
}

void KernelEmitter::emit_level(const std::vector<uint32_t>& list, int level) {
  for (uint32_t id : list)
    if (level_[id] == level && plan_.code[id].code != Code::Reduce)
      instruction(id);
    else if (plan_.code[id].code == Code::Reduce && level == kReduced + rank() - kept_ - 1)
      accumulate(id);
}

llvm::Value* KernelEmitter::arg(uint32_t id, int i, int slot, bool vector) {
  const Held& value = held(plan_.code[id].args[i]);
  if (!value.slots.empty()) return value.slots[slot];
  return vector && lanes_ > 1 ? value.splat : value.number;
}

llvm::Value* KernelEmitter::index_value(int dim, int slot) {
  if (dim == row_dim_) return row_index_[row_];
  if (dim != plan_.vec_dim) return index_[dim];
  Value* first = b_.CreateAdd(now_.index, i64(static_cast<int64_t>(slot) * lanes_));
  if (lanes_ == 1) return first;
  return b_.CreateAdd(b_.CreateVectorSplat(static_cast<unsigned>(lanes_), first), lane_numbers(b_.getInt64Ty()));
}

// Row-major index over the reduced dims, of the lanes of `slot`.
llvm::Value* KernelEmitter::flat_index(int slot) {
  if (plan_.vec_dim < 0) return flat_;
  if (vec_kept_) return lanes_ == 1 ? flat_ : b_.CreateVectorSplat(static_cast<unsigned>(lanes_), flat_);
  Value* lane = index_value(plan_.vec_dim, slot);
  return b_.CreateAdd(lane, lanes_ == 1 ? flat_ : b_.CreateVectorSplat(static_cast<unsigned>(lanes_), flat_));
}

llvm::Value* KernelEmitter::compute(uint32_t id, int slot) {
  const Instr& in = plan_.code[id];
  const bool vector = varies(id);
  switch (in.code) {
    case Code::Load:
      return load(static_cast<uint32_t>(in.imm), slot, in_elem_[id]);
    case Code::Gather:
      return gather(id, slot);
    case Code::Recall:
      return recall(in.imm, in.dtype, slot);
    case Code::Index:
      return index_value(static_cast<int>(in.imm), slot);
    case Code::Scalar:
      return word_of(b_, scalars_, static_cast<int64_t>(in.imm), register_type(context_, in.dtype));
    case Code::Const:
      return constant_of(context_, in);
    default:
      break;
  }
  llvm::SmallVector<Value*, 3> args;
  for (int i = 0; i < ir::info(in.op).arity; ++i) args.push_back(arg(id, i, slot, vector));
  return emit_compute(rules_, plan_, in, args);
}

// Two vectors a call: alone, one would leave the units idle that wait for its long chain of operations.
void KernelEmitter::call_in_pairs(uint32_t id, Held& held) {
  const Instr& in = plan_.code[id];
  const DType type = plan_.code[in.args[0]].dtype;
  llvm::SmallVector<int, 64> both;
  for (int i = 0; i < 2 * lanes_; ++i) both.push_back(i);
  auto part = [&](Value* pair, int first) {
    return b_.CreateShuffleVector(pair,
                                  llvm::ArrayRef(both).slice(static_cast<size_t>(first), static_cast<size_t>(lanes_)));
  };
  for (int slot = 0; slot < now_.slots; slot += 2) {
    llvm::SmallVector<Value*, 3> args;
    for (int i = 0; i < ir::info(in.op).arity; ++i) {
      Value *low = arg(id, i, slot, true), *high = arg(id, i, slot + 1, true);
      args.push_back(b_.CreateShuffleVector(low, high, both));
    }
    Value* pair = emit_shared(rules_, in.op, type, args);
    held.slots.push_back(part(pair, 0));
    held.slots.push_back(part(pair, lanes_));
  }
}

// Each row of the unit has a place of its own in what is stored.
int KernelEmitter::rows_of(uint32_t id) const {
  const bool moves = row_dim_ >= 0 && (plan_.code[id].code == Code::Store || (deps_[id] >> row_dim_ & 1));
  return moves ? plan_.rows : 1;
}

void KernelEmitter::instruction(uint32_t id) {
  held_[id].assign(static_cast<size_t>(rows_of(id)), {});
  const Instr& in = plan_.code[id];
  const auto operand = static_cast<uint32_t>(in.imm);
  if (in.code == Code::Load && is_packed(operand)) return load_packed(id);
  if (in.code == Code::Store && is_packed(operand)) return store_packed(id);
  for (row_ = 0; row_ < rows_of(id); ++row_) instruction_of_row(id);
  row_ = 0;
}

void KernelEmitter::instruction_of_row(uint32_t id) {
  const Instr& in = plan_.code[id];
  if (in.code == Code::Store || in.code == Code::Keep) {
    const bool vector = in.code == Code::Keep || moves_with_lanes(static_cast<uint32_t>(in.imm));
    for (int slot = 0; slot < (vector ? now_.slots : 1); ++slot) {
      Value* value = arg(id, 0, slot, vector);
      if (in.code == Code::Keep)
        keep(in.imm, in.dtype, value, slot);
      else
        store(static_cast<uint32_t>(in.imm), value, slot, vector);
    }
    return;
  }
  Held held;
  if (varies(id) && in.shared && lanes_ > 1 && now_.slots % 2 == 0) {
    call_in_pairs(id, held);
  } else if (varies(id)) {
    for (int slot = 0; slot < now_.slots; ++slot) held.slots.push_back(compute(id, slot));
  } else {
    held.number = compute(id, 0);
    if (wants_splat_[id] && lanes_ > 1) held.splat = b_.CreateVectorSplat(static_cast<unsigned>(lanes_), held.number);
  }
  held_[id][static_cast<size_t>(row_)] = std::move(held);
}

void emit_kernel(llvm::Module& module, const plan::KernelPlan& plan, backend::Isa isa, std::string_view entry) {
  if (plan.is_small())
    emit_small(module, plan, isa, entry);
  else
    KernelEmitter(module, plan, isa).emit(entry);
}

}  // namespace fastjit::codegen
