#include "codegen/llvm/small.h"

#include <llvm/IR/Module.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

namespace fastjit::codegen {
namespace {

using llvm::Type;
using llvm::Value;
using plan::Code;
using plan::Instr;

class SmallEmitter {
 public:
  SmallEmitter(llvm::Module& module, const plan::KernelPlan& plan, backend::Isa isa)
      : module_(module),
        plan_(plan),
        b_(module.getContext()),
        rules_{b_, plan.numerics, isa},
        kept_(static_cast<size_t>(plan.kept())),
        points_(plan.points()),
        lanes_(static_cast<int>(std::bit_ceil(static_cast<uint64_t>(points_)))),
        held_(plan.code.size()),
        states_(plan.code.size()) {
    set_numerics(b_, plan.numerics);
  }

  void emit(std::string_view entry) {
    fn_ = kernel_function(module_, entry);
    auto block = [&](const char* name) { return llvm::BasicBlock::Create(b_.getContext(), name, fn_); };
    llvm::BasicBlock *top = block("entry"), *all = block("all"), *done = block("done");
    b_.SetInsertPoint(top);
    b_.CreateCondBr(b_.CreateICmpSLT(fn_->getArg(1), fn_->getArg(2)), all, done);
    b_.SetInsertPoint(done);
    b_.CreateRetVoid();
    b_.SetInsertPoint(all);
    arguments();
    if (plan_.is_over_time())
      rounds();
    else
      once();
    b_.CreateBr(done);
  }

 private:
  void once() {
    load_operands([](size_t) { return true; });
    for (const plan::Phase& phase : plan_.phases) run(phase);
  }

  void run(const plan::Phase& phase) {
    for (const uint32_t id : phase.elem)
      if (const Instr& in = plan_.code[id]; in.code == Code::Reduce)
        states_[id].assign(is_dot(in) ? plan_.sums : 1,
                           reduce_identity(rules_, in.kind, plan_.code[in.args[0]].dtype, lanes_));
    for (int64_t at = 0; !phase.elem.empty() && at < reduced(); ++at) element(phase, at);
    for (const uint32_t id : phase.elem)
      if (const Instr& in = plan_.code[id]; in.code == Code::Reduce)
        held_[id] = reduce_result(rules_, in.kind, plan_.code[in.args[0]].dtype, total(id), in.dtype);
    for (const uint32_t id : phase.row) instruction(id, 0);
  }

  /// What moves is loaded in each round, what stays before the first one; what is carried goes through phis.
  void rounds() {
    const auto moves = [&](size_t operand) {
      const plan::Operand& about = plan_.operands[operand];
      return about.listed || about.strides.back() != plan::StrideClass::Zero;
    };
    const std::vector<Value*> begins = pointers_;
    load_operands([&](size_t operand) { return !moves(operand); });
    llvm::BasicBlock *before = b_.GetInsertBlock(), *round = llvm::BasicBlock::Create(b_.getContext(), "round", fn_),
                     *after = llvm::BasicBlock::Create(b_.getContext(), "after", fn_);
    Value* sizes = word_of(b_, fn_->getArg(0), 1, b_.getPtrTy());
    Value* trip = word_of(b_, sizes, static_cast<int64_t>(rank()) - 1, b_.getInt64Ty());
    b_.CreateBr(round);
    b_.SetInsertPoint(round);
    llvm::PHINode* number = b_.CreatePHI(b_.getInt64Ty(), 2, "round");
    number->addIncoming(b_.getInt64(0), before);
    std::vector<llvm::PHINode*> carried;
    for (const plan::Carry& carry : plan_.carries) {
      next_.emplace_back(carry.to, nullptr);
      carried.push_back(nullptr);
      if (carry.from == plan::Carry::kNone) continue;
      Value* first = contents_[carry.from];
      carried.back() = b_.CreatePHI(first->getType(), 2, "carried");
      carried.back()->addIncoming(first, before);
      contents_[carry.from] = carried.back();
    }
    for (size_t i = 0; i < begins.size(); ++i)
      if (moves(i)) pointers_[i] = pointer_in_round(i, begins[i], number);
    load_operands(moves);
    for (const plan::Phase& phase : plan_.phases) run(phase);
    Value* next = b_.CreateAdd(number, b_.getInt64(1));
    number->addIncoming(next, b_.GetInsertBlock());
    for (size_t i = 0; i < carried.size(); ++i)
      if (carried[i]) carried[i]->addIncoming(next_[i].second, b_.GetInsertBlock());
    b_.CreateCondBr(b_.CreateICmpSLT(next, trip), round, after);
    b_.SetInsertPoint(after);
    for (const auto& [operand, value] : next_) b_.CreateAlignedStore(value, pointers_[operand], align(operand));
  }

  Value* pointer_in_round(size_t operand, Value* begin, Value* round) {
    if (plan_.operands[operand].listed) return b_.CreateLoad(b_.getPtrTy(), b_.CreateGEP(b_.getPtrTy(), begin, round));
    Value* strides = word_of(b_, fn_->getArg(0), 2, b_.getPtrTy());
    Value* stride = word_of(b_, strides, static_cast<int64_t>(operand * rank() + rank() - 1), b_.getInt64Ty());
    Value* bytes = b_.CreateMul(stride, b_.getInt64(static_cast<uint64_t>(ir::size_of(plan_.operands[operand].dtype))));
    return b_.CreateGEP(b_.getInt8Ty(), begin, b_.CreateMul(bytes, round));
  }

  size_t rank() const { return plan_.sizes.size(); }
  int64_t reduced() const {
    int64_t count = 1;
    for (size_t d = kept_; d < rank(); ++d) count *= plan_.sizes[d];
    return count;
  }

  /// The index along each dim of a kept point and a reduced element, both row-major.
  std::vector<int64_t> index_of(int64_t point, int64_t at) const {
    std::vector<int64_t> index(rank());
    for (size_t d = rank(); d-- > kept_; at /= plan_.sizes[d]) index[d] = at % plan_.sizes[d];
    for (size_t d = kept_; d-- > 0; point /= plan_.sizes[d]) index[d] = point % plan_.sizes[d];
    return index;
  }

  /// Per lane the element of the operand: lanes behind the last point have that one's again.
  llvm::SmallVector<int, 64> elements(size_t operand, int64_t at) const {
    llvm::SmallVector<int, 64> elements;
    for (int64_t lane = 0; lane < lanes_; ++lane) {
      const std::vector<int64_t> index = index_of(std::min(lane, points_ - 1), at);
      int64_t sum = 0;
      for (size_t d = 0; d < rank(); ++d) sum += plan_.strides[operand * rank() + d] * index[d];
      elements.push_back(static_cast<int>(sum));
    }
    return elements;
  }

  llvm::Align align(size_t operand) const {
    return llvm::Align(static_cast<uint64_t>(ir::size_of(plan_.operands[operand].dtype)));
  }

  void arguments() {
    Value* list = word_of(b_, fn_->getArg(0), 0, b_.getPtrTy());
    scalars_ = plan_.scalars.empty() ? nullptr : word_of(b_, fn_->getArg(0), 3, b_.getPtrTy());
    contents_.resize(plan_.operands.size());
    for (size_t i = 0; i < plan_.operands.size(); ++i)
      pointers_.push_back(word_of(b_, list, static_cast<int64_t>(i), b_.getPtrTy()));
  }

  /// Of these all that is loaded, before anything is stored.
  void load_operands(const std::function<bool(size_t)>& of) {
    std::vector<bool> is_loaded(plan_.operands.size(), false);
    for (const Instr& in : plan_.code)
      if (in.code == Code::Load) is_loaded[in.imm] = true;
    for (size_t i = 0; i < plan_.operands.size(); ++i) {
      if (!is_loaded[i] || !of(i)) continue;
      Type* type = lanes_of(memory_type(b_.getContext(), plan_.operands[i].dtype), static_cast<int>(plan_.extent(i)));
      contents_[i] = b_.CreateAlignedLoad(type, pointers_[i], align(i));
    }
  }

  void element(const plan::Phase& phase, int64_t at) {
    for (const uint32_t id : phase.elem) {
      const Instr& in = plan_.code[id];
      if (in.code != Code::Reduce) {
        instruction(id, at);
        continue;
      }
      const ir::DType type = plan_.code[in.args[0]].dtype;
      if (in.kind == ir::ReduceKind::Dot) {
        ReduceState& state = states_[id][static_cast<size_t>(at) % plan_.sums];
        state = reduce_product(rules_, type, state, held_[in.args[0]], held_[in.args[1]]);
        continue;
      }
      Value* number = splat(b_.getInt64(static_cast<uint64_t>(at)));
      states_[id][0] = reduce_combine(rules_, in.kind, type, states_[id][0],
                                      reduce_element(rules_, in.kind, type, held_[in.args[0]], number));
    }
  }

  /// Running sums in pairs, as lanes of a vector are (reduce_lanes); those that no product went to are left out.
  ReduceState total(uint32_t id) {
    std::vector<ReduceState>& sums = states_[id];
    const Instr& in = plan_.code[id];
    sums.resize(std::min(sums.size(), static_cast<size_t>(std::max<int64_t>(reduced(), 1))));
    for (size_t half = std::bit_ceil(sums.size()) / 2; half >= 1; half /= 2)
      for (size_t i = 0; i < half; ++i)
        if (i + half < sums.size())
          sums[i] = reduce_combine(rules_, in.kind, plan_.code[in.args[0]].dtype, sums[i], sums[i + half]);
    return sums[0];
  }

  Value* splat(Value* number) {
    return lanes_ == 1 ? number : b_.CreateVectorSplat(static_cast<unsigned>(lanes_), number);
  }

  Value* load(size_t operand, int64_t at) {
    const llvm::SmallVector<int, 64> from = elements(operand, at);
    Value* value = contents_[operand];
    if (!value->getType()->isVectorTy())
      value = splat(value);
    else if (lanes_ == 1)
      value = b_.CreateExtractElement(value, static_cast<uint64_t>(from[0]));
    else
      value = b_.CreateShuffleVector(value, from);
    return from_memory(b_, value, plan_.operands[operand].dtype);
  }

  /// As one vector where the points lie side by side in their order, else one by one.
  void store(size_t operand, Value* value) {
    value = to_memory(b_, value, plan_.operands[operand].dtype);
    const llvm::SmallVector<int, 64> to = elements(operand, 0);
    llvm::SmallVector<int, 64> from(static_cast<size_t>(plan_.extent(operand)), -1);
    for (int point = 0; point < points_; ++point) from[static_cast<size_t>(to[static_cast<size_t>(point)])] = point;
    if (lanes_ == 1 || std::ranges::count(from, -1) == 0) {
      Value* whole = lanes_ == 1 ? value : b_.CreateShuffleVector(value, from);
      const auto carried = std::ranges::find(next_, operand, &std::pair<size_t, Value*>::first);
      if (carried != next_.end())
        carried->second = whole;
      else
        b_.CreateAlignedStore(whole, pointers_[operand], align(operand));
      return;
    }
    for (size_t point = 0; point < static_cast<size_t>(points_); ++point) {
      const auto bytes = static_cast<uint64_t>(to[point] * ir::size_of(plan_.operands[operand].dtype));
      b_.CreateAlignedStore(b_.CreateExtractElement(value, point),
                            b_.CreateConstGEP1_64(b_.getInt8Ty(), pointers_[operand], bytes), align(operand));
    }
  }

  Value* index(size_t dim, int64_t at) {
    if (lanes_ == 1) return b_.getInt64(static_cast<uint64_t>(index_of(0, at)[dim]));
    llvm::SmallVector<llvm::Constant*, 64> numbers;
    for (int64_t lane = 0; lane < lanes_; ++lane)
      numbers.push_back(b_.getInt64(static_cast<uint64_t>(index_of(std::min(lane, points_ - 1), at)[dim])));
    return llvm::ConstantVector::get(numbers);
  }

  Value* compute(const Instr& in) {
    llvm::SmallVector<Value*, 3> args;
    for (int i = 0; i < ir::info(in.op).arity; ++i) args.push_back(held_[in.args[i]]);
    return emit_compute(rules_, plan_, in, args);
  }

  /// Not a Reduce, a Keep or a Recall.
  void instruction(uint32_t id, int64_t at) {
    const Instr& in = plan_.code[id];
    switch (in.code) {
      case Code::Load:
        held_[id] = load(in.imm, at);
        return;
      case Code::Store:
        return store(in.imm, held_[in.args[0]]);
      case Code::Scalar:
        held_[id] =
            splat(word_of(b_, scalars_, static_cast<int64_t>(in.imm), register_type(b_.getContext(), in.dtype)));
        return;
      case Code::Const:
        held_[id] = splat(constant_of(b_.getContext(), in));
        return;
      case Code::Index:
        held_[id] = index(in.imm, at);
        return;
      default:
        held_[id] = compute(in);
    }
  }

  llvm::Module& module_;
  const plan::KernelPlan& plan_;
  llvm::IRBuilder<> b_;
  Rules rules_;
  const size_t kept_;
  const int64_t points_;
  const int lanes_;  // of every value
  llvm::Function* fn_ = nullptr;
  Value* scalars_ = nullptr;
  std::vector<Value*> pointers_, contents_;       // per operand; contents: null where nothing is loaded
  std::vector<std::pair<size_t, Value*>> next_;   // per carry: its `to`, and what this round stores there
  std::vector<Value*> held_;                      // per instruction
  std::vector<std::vector<ReduceState>> states_;  // per instruction
};

}  // namespace

void emit_small(llvm::Module& module, const plan::KernelPlan& plan, backend::Isa isa, std::string_view entry) {
  SmallEmitter(module, plan, isa).emit(entry);
}

}  // namespace fastjit::codegen
