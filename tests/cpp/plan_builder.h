#pragma once
// Kernel plans by hand, for tests: instructions are appended to the current list and named by their number.
#include <bit>
#include <string>
#include <vector>

#include "plan/kernel_plan.h"

namespace fastjit::test {

class PlanBuilder {
 public:
  /// `dims`: one letter a dim, k (kept), r (reduced) or t (time).
  PlanBuilder(std::string_view dims, int vec_dim, int lanes, int unroll = 1) {
    for (char c : dims)
      plan.dims.push_back(c == 'k' ? plan::DimKind::Kept : c == 'r' ? plan::DimKind::Reduced : plan::DimKind::Time);
    plan.vec_dim = static_cast<int8_t>(vec_dim);
    plan.lanes = static_cast<uint8_t>(lanes);
    plan.unroll = static_cast<uint8_t>(unroll);
    plan.phases.emplace_back();
  }

  /// `strides`: one letter a dim, 0 (does not move), 1 (unit), * (any).
  uint32_t operand(ir::DType type, std::string_view strides, bool output = false) {
    plan::Operand made{type, output, {}, false};
    for (char c : strides)
      made.strides.push_back(c == '0'   ? plan::StrideClass::Zero
                             : c == '1' ? plan::StrideClass::Unit
                                        : plan::StrideClass::Any);
    plan.operands.push_back(made);
    return static_cast<uint32_t>(plan.operands.size() - 1);
  }
  uint32_t in(ir::DType type, std::string_view strides) { return load(operand(type, strides)); }
  void out(uint32_t value, std::string_view strides) { store(operand(type_of(value), strides, true), value); }

  uint32_t load(uint32_t operand) {
    return add({.code = plan::Code::Load, .dtype = plan.operands[operand].dtype, .imm = operand});
  }
  uint32_t gather(ir::DType type, std::string_view strides, uint32_t index) {
    const uint32_t table = operand(type, strides);
    plan.operands[table].gathered = true;
    return add({.code = plan::Code::Gather, .dtype = type, .args = {index, 0, 0}, .imm = table});
  }
  void store(uint32_t operand, uint32_t value) {
    add({.code = plan::Code::Store, .dtype = plan.operands[operand].dtype, .args = {value, 0, 0}, .imm = operand});
  }
  uint32_t constant(ir::DType type, double value) {
    const uint64_t bits =
        ir::is_floating(type) ? std::bit_cast<uint64_t>(value) : static_cast<uint64_t>(static_cast<int64_t>(value));
    return add({.code = plan::Code::Const, .dtype = type, .imm = bits});
  }
  uint32_t scalar(ir::DType type) {
    plan.scalars.push_back(type);
    return add({.code = plan::Code::Scalar, .dtype = type, .imm = plan.scalars.size() - 1});
  }
  uint32_t index(int dim) {
    return add({.code = plan::Code::Index, .dtype = ir::DType::I64, .imm = static_cast<uint64_t>(dim)});
  }
  uint32_t op(ir::Op op, uint32_t a, uint32_t b = 0, uint32_t c = 0) {
    const auto rule = ir::info(op).rule;
    const ir::DType type = rule == ir::TypeRule::Compare ? ir::DType::Bool : type_of(op == ir::Op::Where ? b : a);
    return add({.code = plan::Code::Compute, .dtype = type, .op = op, .args = {a, b, c}});
  }
  uint32_t convert(uint32_t value, ir::DType to) {
    return add({.code = plan::Code::Compute, .dtype = to, .op = ir::Op::Convert, .args = {value, 0, 0}});
  }
  uint32_t reduce(ir::ReduceKind kind, uint32_t value, ir::DType result) {
    return add({.code = plan::Code::Reduce, .dtype = result, .kind = kind, .args = {value, 0, 0}});
  }
  uint32_t dot(uint32_t a, uint32_t b) {
    return add({.code = plan::Code::Reduce, .dtype = type_of(a), .kind = ir::ReduceKind::Dot, .args = {a, b, 0}});
  }
  uint32_t keep(uint32_t value) {
    plan.scratch.push_back(type_of(value));
    add({.code = plan::Code::Keep, .dtype = type_of(value), .args = {value, 0, 0}, .imm = plan.scratch.size() - 1});
    return static_cast<uint32_t>(plan.scratch.size() - 1);
  }
  uint32_t recall(uint32_t slot) { return add({.code = plan::Code::Recall, .dtype = plan.scratch[slot], .imm = slot}); }

  /// What follows goes into the elem (or row) list of the last phase; `phase` starts another one.
  PlanBuilder& elem() { return in_elem_ = true, *this; }
  PlanBuilder& row() { return in_elem_ = false, *this; }
  PlanBuilder& phase() { return plan.phases.emplace_back(), elem(); }

  ir::DType type_of(uint32_t value) const { return plan.code[value].dtype; }

  plan::KernelPlan plan;

 private:
  uint32_t add(plan::Instr in) {
    plan.code.push_back(in);
    const auto id = static_cast<uint32_t>(plan.code.size() - 1);
    (in_elem_ ? plan.phases.back().elem : plan.phases.back().row).push_back(id);
    return id;
  }
  bool in_elem_ = false;
};

}  // namespace fastjit::test
