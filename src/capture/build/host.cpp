// What of a call on a CUDA device is done on the host: tensors that are there, numbers that Python reads, and what it
// computes of them.
#include <algorithm>
#include <utility>

#include "capture/build/build.h"

namespace fastjit::capture {

// Takes or gives a tensor that no kernel reaches.
bool GraphBuilder::is_on_host(const Action& step) const {
  if (trace_.host.empty()) return false;
  const auto is_host = [&](uint32_t tensor) { return trace_.host.contains(analysis_.storage[tensor]); };
  return std::ranges::any_of(step.reads, is_host) || std::ranges::any_of(step.results, is_host);
}

// What torch.tensor() gave, in memory of each call's own: it may be written.
ir::NodeId GraphBuilder::lifted_on_host(const Use& made, const Event& event) {
  const TensorMeta& meta = flat_results(event)[0].meta;
  if (!made.number) return run("aten::clone", "", {{real(made.tensor)}}, meta);
  const at::Tensor number = at::scalar_tensor(*made.number, at::TensorOptions().dtype(made.meta->dtype));
  return run("aten::clone", "", {{ir::kNoNode, {}, number}}, meta);
}

// What Python reads of a tensor: a copy, once what the device has queued is done.
ir::NodeId GraphBuilder::on_host(ir::NodeId node, c10::ScalarType dtype) {
  const std::vector<int64_t> sizes = ir::hints(graph_.sizes(node));
  const Extra type{ir::kNoNode, {}, static_cast<int64_t>(dtype)};
  const Extra host{ir::kNoNode, {}, c10::Device(c10::kCPU)}, any{};
  return run("aten::_to_copy", "", {{node}, type, any, host}, TensorMeta{dtype, sizes, ir::row_major(sizes)});
}

// A number that Python computes, as kernels take it: where it is on the CPU, a copy of it on a device.
ir::NodeId GraphBuilder::on_device(ir::NodeId number) {
  if (trace_.device.is_cpu()) return number;
  const auto [it, fresh] = on_device_.try_emplace(number, ir::kNoNode);
  const Extra any{};
  if (fresh)
    it->second = run("aten::_to_copy", "", {{number}, any, any, {ir::kNoNode, {}, trace_.device}},
                     TensorMeta{at::kDouble, {}, {}});
  return it->second;
}

// The answer to what Python asks of numbers of which the program computes one; kNoNode: it computes none.
ir::NodeId GraphBuilder::compared_on_host(const NumberTest& test) {
  using support::Test;
  std::vector<Extra> x;
  for (const NumberTest::Operand& operand : test.operands) {
    Extra& extra = x.emplace_back();
    const auto scalar = static_cast<uint32_t>(operand.scalar);
    if (operand.scalar >= 0) extra.node = number_node(scalar);
    if (operand.scalar >= 0 && extra.node == ir::kNoNode && is_given(scalar)) extra.given = scalar;
    if (extra.node == ir::kNoNode && !extra.given) extra.constant = operand.value;
  }
  const TensorMeta answer{at::kBool, {}, {}};
  if (test.kind == Test::IsNan || test.kind == Test::IsInf || test.kind == Test::IsFinite) {
    if (x[0].node == ir::kNoNode) return ir::kNoNode;
    return run(test.kind == Test::IsNan   ? "aten::isnan"
               : test.kind == Test::IsInf ? "aten::isinf"
                                          : "aten::isfinite",
               "", x, answer);
  }
  constexpr const char* kComparisons[] = {"aten::lt", "aten::le", "aten::eq", "aten::ne", "aten::gt", "aten::ge"};
  constexpr size_t kTurned[] = {4, 5, 2, 3, 0, 1};  // Test's order: a < b is b > a
  auto which = static_cast<size_t>(test.kind);
  if (x[0].node == ir::kNoNode) {
    std::swap(x[0], x[1]);
    which = kTurned[which];
  }
  if (x[0].node == ir::kNoNode) return ir::kNoNode;
  return run(kComparisons[which], x[1].node == ir::kNoNode ? "Scalar" : "Tensor", x, answer);
}

}  // namespace fastjit::capture
