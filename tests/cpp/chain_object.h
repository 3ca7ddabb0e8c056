#pragma once
// One kernel for the tests of objects and of linking: it has code, a constant, and a loop for 8-bit strided operands.
#include <array>
#include <string>

#include "kernel_harness.h"

namespace fastjit::test {

inline plan::KernelPlan chain(int constant = 1) {
  using ir::DType;
  using ir::Op;
  PlanBuilder p("k", 0, 8, 2);
  const auto x = p.in(DType::F32, "1"), y = p.in(DType::I8, "*");
  const auto sum = p.op(Op::Add, x, p.op(Op::Mul, p.convert(y, DType::F32), p.constant(DType::F32, constant)));
  p.out(p.op(Op::Fmod, sum, p.constant(DType::F32, 3.5)), "1");
  return p.plan;
}

/// Its bytes for AVX2, made once; constants below 5.
inline const std::string& object(int constant = 1) {
  static std::array<std::string, 5> objects;
  std::string& bytes = objects.at(static_cast<size_t>(constant));
  if (bytes.empty()) bytes = backend::compile_cpu(chain(constant), cpu(backend::Isa::Avx2)).object;
  return bytes;
}

}  // namespace fastjit::test
