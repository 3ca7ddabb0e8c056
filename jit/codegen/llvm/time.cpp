// Rounds of a plan over time: what one hands to the next is in registers, as it would lie in memory.
#include <algorithm>

#include "codegen/llvm/emitter.h"

namespace fastjit::codegen {

bool KernelEmitter::is_loaded_from_round(uint32_t operand) const {
  return std::ranges::find(plan_.carries, operand, &plan::Carry::from) != plan_.carries.end();
}

void KernelEmitter::begin_rounds() {
  for (const plan::Carry& carry : plan_.carries) {
    const ir::DType dtype = plan_.operands[carry.to].dtype;
    const bool moves = moves_with_lanes(carry.to);
    llvm::Type* type = lanes_of(memory_type(context_, dtype), moves ? lanes_ : 1);
    Carried made{carry, moves ? now_.slots : 1, {}, {}};
    for (row_ = 0; row_ < (row_dim_ >= 0 ? plan_.rows : 1); ++row_)
      for (int slot = 0; slot < made.slots; ++slot) {
        made.now.push_back(variable(type, "carried"));
        if (carry.from != plan::Carry::kNone) b_.CreateStore(load_raw(carry.from, slot, false), made.now.back());
      }
    row_ = 0;
    carried_.push_back(std::move(made));
  }
}

/// Stores of the round must not be seen by its loads.
void KernelEmitter::begin_round() {
  for (Carried& each : carried_) {
    each.in_round.clear();
    if (each.of.from == plan::Carry::kNone) continue;
    for (llvm::AllocaInst* now : each.now) each.in_round.push_back(get(now));
  }
}

llvm::Value* KernelEmitter::from_round(uint32_t operand, int slot) {
  const auto found = std::ranges::find_if(carried_, [&](const Carried& each) { return each.of.from == operand; });
  return found->in_round[static_cast<size_t>(row_ * found->slots + slot)];
}

bool KernelEmitter::to_round(uint32_t operand, Value* value, int slot) {
  const auto found = std::ranges::find_if(carried_, [&](const Carried& each) { return each.of.to == operand; });
  if (found == carried_.end()) return false;
  b_.CreateStore(value, found->now[static_cast<size_t>(row_ * found->slots + slot)]);
  return true;
}

void KernelEmitter::end_rounds() {
  for (const Carried& each : carried_) {
    const int rows = static_cast<int>(each.now.size()) / each.slots;
    for (row_ = 0; row_ < rows; ++row_)
      for (int slot = 0; slot < each.slots; ++slot)
        store_raw(each.of.to, get(each.now[static_cast<size_t>(row_ * each.slots + slot)]), slot,
                  moves_with_lanes(each.of.to));
  }
  row_ = 0;
  carried_.clear();
}

}  // namespace fastjit::codegen
