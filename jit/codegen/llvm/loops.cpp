// Loops over counts, lanes and reduced dims, and the accumulators that live across them.
#include <algorithm>

#include "codegen/llvm/emitter.h"

namespace fastjit::codegen {

using plan::Code;
using plan::Instr;

// for (i = from; i < to; i += step) body(i)
void KernelEmitter::count(Value* from, Value* to, int64_t step, const std::function<void(Value*)>& body) {
  llvm::BasicBlock *before = b_.GetInsertBlock(), *inside = block("loop"), *after = block("after");
  b_.CreateCondBr(b_.CreateICmpSLT(from, to), inside, after);
  b_.SetInsertPoint(inside);
  llvm::PHINode* i = b_.CreatePHI(b_.getInt64Ty(), 2, "i");
  i->addIncoming(from, before);
  body(i);
  Value* next = b_.CreateAdd(i, i64(step), "", true, true);
  i->addIncoming(next, b_.GetInsertBlock());
  b_.CreateCondBr(b_.CreateICmpSLT(next, to), inside, after);
  b_.SetInsertPoint(after);
}

// Whole vectors first, then what is left under a mask.
void KernelEmitter::lane_loops(Value* from, Value* to, const std::function<void()>& body) {
  const Lanes outside = now_;
  const int slots = plan_.unroll, step = slots * lanes_;
  auto run = [&](int count_slots, Value* start, Value* stop, bool masked) {
    count(start, stop, static_cast<int64_t>(count_slots) * lanes_, [&](Value* i) {
      now_ = Lanes{count_slots, i, nullptr, nullptr};
      if (masked) {
        llvm::Type* narrow = b_.getInt32Ty();
        now_.remaining = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b_.CreateSub(to, i), i64(lanes_));
        Value* limit = b_.CreateVectorSplat(static_cast<unsigned>(lanes_), b_.CreateTrunc(now_.remaining, narrow));
        now_.mask = b_.CreateICmpULT(lane_numbers(narrow), limit);
      }
      body();
    });
  };
  if (step > 1) {
    Value* length = b_.CreateSub(to, from);
    const bool power = (step & (step - 1)) == 0;
    Value* rest = power ? b_.CreateAnd(length, i64(step - 1)) : b_.CreateURem(length, i64(step));
    Value* whole = b_.CreateSub(to, rest);
    run(slots, from, whole, false);
    run(1, whole, to, lanes_ > 1);
  } else {
    run(1, from, to, false);
  }
  now_ = outside;
}

void KernelEmitter::reduced_loops(const plan::Phase& phase, int dim) {
  const int level = kReduced + dim - kept_;
  if (dim == plan_.vec_dim) {
    Value* const outer = flat_;
    flat_ = b_.CreateMul(flat_, sizes_[dim]);
    lane_loops(i64(0), sizes_[dim], [&] { emit_level(phase.elem, level); });
    flat_ = outer;
    return;
  }
  // Pointers walk: a multiplication in each round would cost more than what many of these loops do.
  std::vector<llvm::AllocaInst*> walks(pointers_.size(), nullptr);
  for (size_t op = 0; op < pointers_.size(); ++op) {
    if (!strides_[op][dim]) continue;
    walks[op] = variable(b_.getPtrTy(), "walk");
    b_.CreateStore(pointers_[op], walks[op]);
  }
  const auto round = [&](Value* i) {
    const std::vector<Value*> outside = pointers_;
    Value* const outer = flat_;
    index_[dim] = i;
    flat_ = b_.CreateAdd(b_.CreateMul(flat_, sizes_[dim]), i);
    for (size_t op = 0; op < pointers_.size(); ++op)
      if (walks[op]) pointers_[op] = get(walks[op]);
    const std::vector<Value*> here = pointers_;
    begin_round();
    emit_level(phase.elem, level);
    if (dim + 1 < rank()) reduced_loops(phase, dim + 1);
    for (size_t op = 0; op < pointers_.size(); ++op)
      if (walks[op]) b_.CreateStore(offset(here[op], strides_[op][dim]), walks[op]);
    pointers_ = outside;
    flat_ = outer;
  };
  const bool has_runs =
      dim + 1 == rank() && std::ranges::any_of(accumulators_, [](const auto& a) { return !a.runs.empty(); });
  if (!has_runs) return count(i64(0), sizes_[dim], 1, round);
  count(i64(0), sizes_[dim], kDotRun, [&](Value* from) {
    Value* const to =
        b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b_.CreateAdd(from, i64(kDotRun), "", true, true), sizes_[dim]);
    count(from, to, 1, round);
    end_run(b_.CreateSub(to, from));
  });
}

// A running sum has so many products more. Where the innermost loop is short, it goes on into the next round of those
// around it, as long as there is room for as many again.
void KernelEmitter::end_run(Value* products) {
  if (!run_length_) return end_runs();
  Value* const length = b_.CreateAdd(get(run_length_), products);
  b_.CreateStore(length, run_length_);
  llvm::BasicBlock *full = block("full"), *after = block("after");
  b_.CreateCondBr(b_.CreateICmpSGT(b_.CreateAdd(length, products), i64(kDotRun)), full, after);
  b_.SetInsertPoint(full);
  end_runs();
  b_.CreateStore(i64(0), run_length_);
  b_.CreateBr(after);
  b_.SetInsertPoint(after);
}

// The running sums go to the totals, and begin anew.
void KernelEmitter::end_runs() {
  for (const Accumulator& acc : accumulators_)
    for (size_t slot = 0; slot < acc.runs.size(); ++slot) {
      llvm::AllocaInst *run = acc.runs[slot], *total = acc.slots[slot][0];
      b_.CreateStore(b_.CreateFAdd(get(total), get(run)), total);
      b_.CreateStore(llvm::Constant::getNullValue(run->getAllocatedType()), run);
    }
}

void KernelEmitter::begin_accumulators(const plan::Phase& phase) {
  accumulators_.clear();
  run_length_ = nullptr;
  const int slots = plan_.rows * (vec_kept_ ? now_.slots : plan_.unroll);
  for (uint32_t id : phase.elem) {
    const Instr& in = plan_.code[id];
    if (in.code != Code::Reduce) continue;
    const ir::DType type = plan_.code[in.args[0]].dtype;
    Accumulator made{id, {}, {}};
    for (int slot = 0; slot < slots; ++slot) {
      made.slots.emplace_back();
      const ReduceState start = reduce_identity(rules_, in.kind, type, lanes_);
      for (Value* part : start.parts) {
        made.slots.back().push_back(variable(part->getType(), "acc"));
        b_.CreateStore(part, made.slots.back().back());
      }
      if (in.kind != ir::ReduceKind::Dot || !vec_kept_) continue;
      made.runs.push_back(variable(start.parts[0]->getType(), "run"));
      b_.CreateStore(start.parts[0], made.runs.back());
    }
    if (!made.runs.empty() && !run_length_ && rank() - kept_ > 1) {
      run_length_ = variable(b_.getInt64Ty(), "run_length");
      b_.CreateStore(i64(0), run_length_);
    }
    accumulators_.push_back(std::move(made));
  }
}

// Of the current row: the old state with this element more.
ReduceState KernelEmitter::accumulated(uint32_t id, const ReduceState& old, int slot) {
  const Instr& in = plan_.code[id];
  const ir::DType type = plan_.code[in.args[0]].dtype;
  Value* value = arg(id, 0, slot, true);
  if (in.kind == ir::ReduceKind::Dot) return reduce_product(rules_, type, old, value, arg(id, 1, slot, true));
  const bool with_index = ir::gives_position(in.kind);
  const ReduceState element = reduce_element(rules_, in.kind, type, value, with_index ? flat_index(slot) : nullptr);
  return reduce_combine(rules_, in.kind, type, old, element);
}

void KernelEmitter::accumulate(uint32_t id) {
  const auto found =
      std::ranges::find_if(accumulators_, [&](const Accumulator& accumulator) { return accumulator.id == id; });
  const int of_row = static_cast<int>(found->slots.size()) / plan_.rows;
  for (row_ = 0; row_ < plan_.rows; ++row_)
    for (int slot = 0; slot < now_.slots; ++slot) {
      const size_t place = static_cast<size_t>(row_ * of_row + slot);
      llvm::ArrayRef<llvm::AllocaInst*> state = found->slots[place];
      if (!found->runs.empty()) state = found->runs[place];
      ReduceState old;
      for (auto* part : state) old.parts.push_back(get(part));
      const ReduceState next = accumulated(id, old, slot);
      for (size_t p = 0; p < next.parts.size(); ++p) {
        Value* result = next.parts[p];
        if (now_.mask && !vec_kept_) result = b_.CreateSelect(now_.mask, result, old.parts[p]);
        b_.CreateStore(result, state[p]);
      }
    }
  row_ = 0;
}

KernelEmitter::Held KernelEmitter::total(uint32_t id, llvm::MutableArrayRef<ReduceState> states) {
  const Instr& in = plan_.code[id];
  const ir::DType type = plan_.code[in.args[0]].dtype;
  Held held;
  if (vec_kept_) {
    for (const ReduceState& state : states) held.slots.push_back(reduce_result(rules_, in.kind, type, state, in.dtype));
    return held;
  }
  for (; states.size() > 1; states = states.drop_back())
    states[states.size() - 2] = reduce_combine(rules_, in.kind, type, states[states.size() - 2], states.back());
  const ReduceState one = reduce_lanes(rules_, in.kind, type, states[0]);
  held.number = reduce_result(rules_, in.kind, type, one, in.dtype);
  if (wants_splat_[id] && lanes_ > 1) held.splat = b_.CreateVectorSplat(static_cast<unsigned>(lanes_), held.number);
  return held;
}

void KernelEmitter::end_accumulators() {
  if (run_length_) end_runs();
  for (const Accumulator& acc : accumulators_) {
    llvm::SmallVector<ReduceState, 4> states;
    for (const auto& slot : acc.slots) {
      states.emplace_back();
      for (auto* part : slot) states.back().parts.push_back(get(part));
    }
    const size_t of_row = states.size() / plan_.rows;
    held_[acc.id].clear();
    for (size_t row = 0; row < plan_.rows; ++row)
      held_[acc.id].push_back(total(acc.id, llvm::MutableArrayRef(states).slice(row * of_row, of_row)));
  }
  accumulators_.clear();
}

}  // namespace fastjit::codegen
