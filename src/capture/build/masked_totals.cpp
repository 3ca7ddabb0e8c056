// Sums and means of compressed values (masks.cpp): the sum of x[m] is that of where(m, x, 0), the mean that over the
// number of masked elements, and a loss the sum or mean of what it is for each. On autograd's way back the formulas of
// a mean divide by that number.
#include <ATen/core/Reduction.h>

#include <algorithm>

#include "capture/build/build.h"
#include "capture/lower/reduce.h"
#include "capture/lower/util.h"

namespace fastjit::capture {

std::optional<size_t> reduction_at(const Event& event) {
  if (!event.op) return std::nullopt;
  const auto& arguments = event.op->schema().arguments();
  const auto at =
      static_cast<size_t>(std::ranges::find(arguments, "reduction", &c10::Argument::name) - arguments.begin());
  const bool reduces = at < event.args.size() && event.args[at].constant.isInt() &&
                       event.args[at].constant.toInt() != at::Reduction::None;
  return reduces ? std::optional(at) : std::nullopt;
}

bool is_total(const Event& event) {
  if (event.name == "aten::sum" || event.name == "aten::mean") return true;
  return event.results.size() == 1 && event.results[0].uses.size() == 1 &&
         event.results[0].uses[0].meta->sizes.empty() && reduction_at(event);
}

std::string_view formula_of_total(const Event& total) {
  if (total.name == "aten::sum") return "SumBackward0";
  if (total.name == "aten::mean") return "MeanBackward0";
  return total.name == "aten::binary_cross_entropy_with_logits" ? "BinaryCrossEntropyWithLogitsBackward0" : "";
}

ir::NodeId GraphBuilder::count_of(ir::NodeId mask) {
  const ir::NodeId ones = graph_.convert(mask, ir::DType::I64);
  return graph_.reduce(ir::ReduceKind::Sum, ones, all_dims(graph_[mask].rank), ir::DType::I64);
}

// What a slice or a comparison asks: whether there are no more masked elements, or rows, than this.
ir::NodeId GraphBuilder::is_at_most(const Event& asks, ir::NodeId mask) {
  const std::vector<int64_t>& sizes = asks.args[0].uses[0].meta->sizes;
  const int64_t dim = asks.args[1].constant.toInt(), row = c10::multiply_integers(sizes.begin() + 1, sizes.end());
  int64_t stop = 0;
  if (dim != 0 || row == 0 || __builtin_mul_overflow(asks.args[2].constant.toInt(), row, &stop))
    unsound("a size that depends on data is read at " + trace_.lines[asks.line]);
  return graph_.pointwise(ir::Op::Le, {count_of(mask), graph_.constant_int(ir::DType::I64, stop)});
}

// The sum or mean of compressed elements or of their losses, or kNoNode: what is not masked is 0 in it.
ir::NodeId GraphBuilder::total_of(const Action& step, ir::NodeId mask) {
  const Event& event = trace_.events[step.event];
  const auto reduction = reduction_at(event);
  const SharedMeta& result = event.results[0].uses[0].meta;
  const bool is_mean =
      reduction ? event.args[*reduction].constant.toInt() == at::Reduction::Mean : event.name == "aten::mean";
  const auto type = to_ir(is_mean && at::isReducedFloatingType(result->dtype) ? at::kFloat : result->dtype);
  const std::vector<ir::NodeId> elements =
      reduction ? lower_compressed(step, mask) : std::vector{value(event.args[0].uses[0], event).node};
  const ir::NodeId node = elements.empty() ? ir::kNoNode : elements[0];
  if (!step.row || !type || node == ir::kNoNode || (is_mean && !ir::is_floating(*type))) return ir::kNoNode;
  if (ir::is_floating(graph_[node].dtype) && !ir::is_floating(*type)) return ir::kNoNode;
  const ir::DType wide = ir::is_half(*type) ? ir::DType::F32 : *type;
  const ir::NodeId given = graph_.convert(graph_.convert(node, *type), wide);
  const ir::NodeId masked = graph_.pointwise(ir::Op::Where, {mask, given, zero(graph_, wide)});
  ir::NodeId total = graph_.reduce(ir::ReduceKind::Sum, masked, all_dims(graph_[masked].rank), wide);
  if (is_mean) total = graph_.pointwise(ir::Op::Div, {total, graph_.convert(count_of(mask), wide)});
  return graph_.convert(total, *to_ir(result->dtype));
}

// The number that a mean's formula divides by is that of the masked elements.
bool GraphBuilder::set_divisor(std::vector<Arg>& args, const Event& event, ir::NodeId mask) {
  if (args.size() < 2) return false;
  const auto count = static_cast<int64_t>(c10::multiply_integers(event.args[0].uses[0].meta->sizes));
  Arg& divisor = args[1];
  if (divisor.kind == Arg::Kind::Constant && divisor.constant.isScalar() && divisor.constant.toScalar().equal(count)) {
    divisor.scalar = count_of(mask);
    return true;
  }
  if (divisor.kind != Arg::Kind::Tensor) return false;
  const UsedNumber& number = event.args[1].uses[0].number;
  if (!number || !number->equal(count)) return false;
  divisor.tensor.node = count_of(mask);
  return true;
}

// The arguments of a loss or of its formula, for each element: a mean's gradient is one of so many for each of them.
void GraphBuilder::reduce_nothing(std::vector<Arg>& args, const Event& event, ir::NodeId mask) {
  const auto at = reduction_at(event);
  if (!at) return;
  const bool is_mean = args[*at].constant.toInt() == at::Reduction::Mean;
  args[*at].constant = static_cast<int64_t>(at::Reduction::None);
  ir::NodeId& gradient = args[0].tensor.node;
  if (!is_mean || is_total(event) || gradient == ir::kNoNode) return;
  const ir::DType type = graph_[gradient].dtype, wide = ir::is_half(type) ? ir::DType::F32 : type;
  const ir::NodeId count = graph_.convert(count_of(mask), wide);
  gradient = graph_.convert(graph_.pointwise(ir::Op::Div, {graph_.convert(gradient, wide), count}), type);
}

}  // namespace fastjit::capture
