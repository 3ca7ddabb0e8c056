// Numbers that Python computes of the index of a round, as in `y + i * dt`: a tensor has those of all rounds, and each
// round is given its element.
#include <algorithm>

#include "capture/build/build.h"

namespace fastjit::capture {
namespace {

using ir::Dim;
using ir::DType;
using support::Arithmetic;
using support::IntArithmetic;

// Nothing: kernels do not compute it as Python does.
std::optional<ir::Op> op_of(IntArithmetic how) {
  switch (how) {
    case IntArithmetic::Add:
      return ir::Op::Add;
    case IntArithmetic::Sub:
      return ir::Op::Sub;
    case IntArithmetic::Mul:
      return ir::Op::Mul;
    case IntArithmetic::Neg:
      return ir::Op::Neg;
    case IntArithmetic::FloorDiv:
    case IntArithmetic::Mod:
      return std::nullopt;
  }
  return std::nullopt;
}

std::optional<ir::Op> op_of(Arithmetic how) {
  switch (how) {
    case Arithmetic::Add:
      return ir::Op::Add;
    case Arithmetic::Sub:
      return ir::Op::Sub;
    case Arithmetic::Mul:
      return ir::Op::Mul;
    case Arithmetic::Div:
      return ir::Op::Div;
    case Arithmetic::Neg:
      return ir::Op::Neg;
    case Arithmetic::Pow:
    case Arithmetic::Sqrt:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

// Which of the call's numbers the argument is, if it is one alone.
std::optional<uint32_t> GraphBuilder::scalar_at(uint32_t event, uint32_t arg) const {
  if (const ScalarBindings::Place* place = scalars_.find(event, arg)) return place->scalar;
  const auto sizes = size_places_.find({event, arg});
  const CallValue& item = trace_.events[event].args[arg];
  const bool is_one = item.kind == CallValue::Kind::Tensor || item.constant.isInt();
  if (sizes == size_places_.end() || !is_one || sizes->second.numbers.size() != 1) return std::nullopt;
  return sizes->second.numbers[0].second;
}

// False: the argument is no number that hangs on the round, or it is not known how.
bool GraphBuilder::give_round_number(const Event& event, uint32_t i, Arg& arg) {
  if (round_.loop == kNone || traced_[round_.loop] == ir::TracedRound::kNone) return false;
  const auto index = static_cast<uint32_t>(&event - trace_.events.data());
  const CallValue& item = event.args[i];
  const bool is_tensor = item.kind == CallValue::Kind::Tensor;
  const bool is_number = event.op && event.op->schema().arguments()[i].type()->kind() == c10::TypeKind::NumberType;
  const auto scalar = is_tensor || is_number ? scalar_at(index, i) : std::nullopt;
  if (!scalar || !(made_in(*scalar) == round_)) return false;
  const bool may_give = takes_any_size(event, item, PyFloat_Check(inputs_.scalars[*scalar].first));
  const ir::NodeId node = may_give ? number_of_round(*scalar) : ir::kNoNode;
  if (node == ir::kNoNode) return false;
  (is_tensor ? arg.tensor.node : arg.scalar) = node;
  of_rounds_.insert({index, i});
  take_place(index, i);
  return true;
}

// Before the first round is made: what all rounds find is not one's.
void GraphBuilder::make_numbers_of(uint32_t which) {
  const PythonLoop& loop = trace_.loops[which];
  const LoopRound usual{which, static_cast<uint32_t>(loop.alike_from)};
  const auto make = [&](uint32_t number) {
    if (!(made_in(number) == usual)) return;
    const ir::NodeId all = in_all_rounds(number, which);
    if (all != ir::kNoNode && graph_[all].rank > 0) numbers_of_rounds_.emplace(all, graph_.convert(all, DType::F64));
  };
  for (const auto& [at, place] : scalars_.places) make(place.scalar);
  for (const auto& [at, place] : size_places_)
    for (const auto& [element, number] : place.numbers) make(number);
}

// The number of the round at hand; kNoNode: it is the same in all, or it is not known how it follows from the index.
ir::NodeId GraphBuilder::number_of_round(uint32_t number) {
  make_in({});  // what is made before is found
  const auto all = numbers_of_rounds_.find(in_all_rounds(number, round_.loop));
  make_in(round_);
  if (all == numbers_of_rounds_.end()) return ir::kNoNode;
  const bool is_last = round_.round + 1 == trace_.loops[round_.loop].rounds();
  ir::IndexMap map;
  map.dims.push_back({is_last ? graph_.sizes(all->second)[0] - 1 : Dim(round_.round), {}});
  return graph_.convert(graph_.view(all->second, std::move(map), {}), graph_[all->first].dtype);
}

// What a number is that a round computes: an element for each round, or one alone where it is the same in all.
ir::NodeId GraphBuilder::in_all_rounds(uint32_t number, uint32_t which) {
  if (made_in(number).loop == kNone) return of_any_round(number);
  if (!scalars_.bound[number]) return ir::kNoNode;
  if (const auto size = trace_.size_numbers.find(number); size != trace_.size_numbers.end()) {
    const SizeNumber& how = size->second;
    if (how.loop == which) return index_in_all_rounds(which);
    return how.loop == kNone ? ints_in_all_rounds(how, which) : ir::kNoNode;
  }
  const auto computed = trace_.computed.find(number);
  return computed == trace_.computed.end() ? ir::kNoNode : floats_in_all_rounds(computed->second, which);
}

// Whether it is a size of a tensor that is there before the first round.
bool GraphBuilder::is_size_by_now(uint32_t number) const {
  const auto size = trace_.size_numbers.find(number);
  return size != trace_.size_numbers.end() && made_in(number).loop == kNone &&
         (size->second.tensor == kNone || layout_of(size->second.tensor));
}

// A number that was there before the loop.
ir::NodeId GraphBuilder::of_any_round(uint32_t number) {
  if (trace_.size_numbers.contains(number)) return is_size_by_now(number) ? graph_.size(size_of(number)) : ir::kNoNode;
  if (const ir::NodeId node = number_node(number); node != ir::kNoNode) return node;
  if (is_given(number)) return given_node(number);
  PyObject* value = inputs_.scalars[number].first;  // a guard says that it has this value
  if (PyFloat_CheckExact(value)) return graph_.constant(DType::F64, PyFloat_AS_DOUBLE(value));
  return graph_.constant_int(DType::I64, PyLong_AsLongLong(value));
}

ir::NodeId GraphBuilder::index_in_all_rounds(uint32_t which) {
  const auto& [low, high, shift, falls] = trace_.loops[which].range;
  const ir::NodeId rounds = graph_.iota({{graph_.traced[traced_[which]].trip}, {}}, 0);
  if (falls) return in_each_round(ir::Op::Sub, {graph_.size(size_of(high) + (shift - 1)), rounds});
  const Dim first = size_of(low) + shift;
  return ir::identical(first, 0) ? rounds : in_each_round(ir::Op::Add, {rounds, graph_.size(first)});
}

ir::NodeId GraphBuilder::ints_in_all_rounds(const SizeNumber& how, uint32_t which) {
  std::vector<ir::NodeId> operands;
  for (const support::SizeOperand& one : how.operands) {
    if (!one.is_size() && one.value == support::kNoInt) return ir::kNoNode;
    operands.push_back(one.is_size() ? in_all_rounds(static_cast<uint32_t>(one.number), which)
                                     : graph_.constant_int(DType::I64, one.value));
    if (operands.back() == ir::kNoNode || graph_[operands.back()].dtype != DType::I64) return ir::kNoNode;
  }
  return in_each_round(op_of(how.op), operands);
}

// As Python computes floats, which raises where something is divided by nothing.
ir::NodeId GraphBuilder::floats_in_all_rounds(const Trace::Computed& how, uint32_t which) {
  using From = NumberOp::Operand::From;
  std::vector<ir::NodeId> operands;
  for (size_t i = 0; i < how.op.operands.size(); ++i) {
    const NumberOp::Operand& one = how.op.operands[i];
    const auto number = static_cast<uint32_t>(how.operands[i]);
    if (how.op.kind == Arithmetic::Div && i == 1) {
      const bool is_more =
          one.from == From::Constant ? one.value != 0 : is_size_by_now(number) && Dim(0) < size_of(number);
      if (!is_more) return ir::kNoNode;
    }
    const ir::NodeId node =
        one.from == From::Constant ? graph_.constant(DType::F64, one.value) : in_all_rounds(number, which);
    if (node == ir::kNoNode) return node;
    operands.push_back(graph_.convert(node, DType::F64));
  }
  return in_each_round(op_of(how.op.kind), operands);
}

ir::NodeId GraphBuilder::in_each_round(std::optional<ir::Op> op, const std::vector<ir::NodeId>& operands) {
  if (!op) return ir::kNoNode;
  if (operands.size() == 1) return graph_.pointwise(*op, {operands[0]});
  const std::span<const Dim> sizes = graph_.sizes(operands[graph_[operands[0]].rank > 0 ? 0 : 1]);
  const std::vector<Dim> shape(sizes.begin(), sizes.end());
  const ir::NodeId left = graph_.expand(operands[0], shape), right = graph_.expand(operands[1], shape);
  return graph_.pointwise(*op, {left, right});
}

}  // namespace fastjit::capture
