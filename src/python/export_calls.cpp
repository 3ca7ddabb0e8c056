#include "python/export_calls.h"

#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <bit>

namespace py = pybind11;

namespace fastjit::dispatch {

using capture::CallTemplate;
using plan::kNoSlot;
using plan::SlotId;
using plan::SlotKind;

/// What the steps of torch have in common: an operator, and the slots that it takes and fills.
struct ExportedCalls::Call {
  const CallTemplate& tmpl;
  std::string name;  // with its line
  const std::vector<SlotId>& operands;
  std::vector<SlotId> results;
  bool is_new = true;  // eager's results shared no memory with its arguments
};

namespace {

[[noreturn]] void refuse_call(const std::string& name, const std::string& why) {
  throw py::value_error(name + " " + why + "; leave it to the caller, or write it with operators that kernels compute");
}

/// Arguments as the C interface takes them: tuples of a kind and what it holds.
class Arguments {
 public:
  Arguments(const CallTemplate& tmpl, const std::string& name, const std::vector<SlotId>& operands,
            const plan::Program& program)
      : tmpl_(tmpl), name_(name), operands_(operands), program_(program) {}

  py::list rows() const {
    py::list out;
    const auto& arguments = tmpl_.op.schema().arguments();
    for (uint32_t i = 0; i < arguments.size(); ++i) out.append(row(*arguments[i].real_type(), tmpl_.args[i], {i, -1}));
    return out;
  }

 private:
  using Place = CallTemplate::Hole;

  // Which operand goes there; -1: none does.
  int operand_at(Place place) const {
    for (size_t i = 0; i < tmpl_.holes.size(); ++i)
      if (tmpl_.holes[i].arg == place.arg && tmpl_.holes[i].item == place.item && operands_[i] != kNoSlot)
        return static_cast<int>(i);
    return -1;
  }

  py::tuple row(const c10::Type& type, const c10::IValue& value, Place place) const {
    if (const auto* optional = type.castRaw<c10::OptionalType>()) {
      const bool is_none = value.isNone() || (value.isTensor() && !value.toTensor().defined());
      if (is_none && operand_at(place) < 0) return py::make_tuple("none");
      return py::make_tuple("some", row(*optional->getElementType(), value, place));
    }
    if (const auto* list = type.castRaw<c10::ListType>(); list && value.isList())
      return items(*list->getElementType(), value, place);
    for (const CallTemplate::NumberHole& hole : tmpl_.numbers)
      if (hole.arg == place.arg && hole.element == place.item) return number(type, hole);
    switch (type.kind()) {
      case c10::TypeKind::TensorType:
        return tensor(value, place);
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        if (value.isInt()) return bits(static_cast<uint64_t>(value.toInt()));
        break;
      case c10::TypeKind::FloatType:
        return bits(std::bit_cast<uint64_t>(value.isInt() ? static_cast<double>(value.toInt()) : value.toDouble()));
      case c10::TypeKind::BoolType:
        return bits(value.toBool());
      case c10::TypeKind::ScalarTypeType:
      case c10::TypeKind::LayoutType:
      case c10::TypeKind::MemoryFormatType:
        return bits(static_cast<uint64_t>(value.toInt()));
      case c10::TypeKind::DeviceObjType:
        return bits(static_cast<uint64_t>(value.toDevice().type()) << 32 |
                    static_cast<uint32_t>(value.toDevice().index()));
      case c10::TypeKind::StringType:
        return py::make_tuple("text", value.toStringRef());
      default:
        break;
    }
    refuse_call(name_, "takes a " + type.str() + " as '" + tmpl_.op.schema().arguments()[place.arg].name() +
                           "', which the C interface of libtorch cannot pass");
  }

  static py::tuple bits(uint64_t value) { return py::make_tuple("bits", value); }

  py::tuple number(const c10::Type& type, const CallTemplate::NumberHole& hole) const {
    if ((type.kind() == c10::TypeKind::FloatType) == hole.is_float && type.kind() != c10::TypeKind::NumberType)
      return py::make_tuple("scalar", hole.scalar);
    refuse_call(name_, "takes the number " + hole.name +
                           ", which differs from call to call, in a form that the C interface of libtorch cannot pass");
  }

  py::tuple items(const c10::Type& type, const c10::IValue& value, Place place) const {
    py::list out;
    const c10::List<c10::IValue> list = value.toList();
    for (size_t i = 0; i < list.size(); ++i) out.append(row(type, list.get(i), {place.arg, static_cast<int32_t>(i)}));
    return py::make_tuple("list", out);
  }

  py::tuple tensor(const c10::IValue& value, Place place) const {
    if (const int operand = operand_at(place); operand >= 0) return py::make_tuple("tensor", operand);
    if (!value.isTensor() || !value.toTensor().defined()) return py::make_tuple("undefined");
    const at::Tensor& constant = value.toTensor();
    if (constant.unsafeGetTensorImpl()->is_wrapped_number() && !is_promoted_away(constant.scalar_type()))
      refuse_call(name_,
                  "takes a number of Python's beside tensors of another kind, and the C interface of libtorch "
                  "cannot say that it is one");
    return py::make_tuple("constant", py::reinterpret_steal<py::object>(THPVariable_Wrap(constant)),
                          static_cast<int>(constant.scalar_type()));
  }

  // Whether the result has a type that a number of this one does not decide, be it one of Python's or a tensor.
  bool is_promoted_away(c10::ScalarType number) const {
    return std::ranges::any_of(operands_, [&](SlotId id) {
      if (id == kNoSlot || program_.slots[id].sizes.empty() || program_.slots[id].dtype == ir::DType::Bool)
        return false;
      return c10::isIntegralType(number, true) || ir::is_floating(program_.slots[id].dtype);
    });
  }

  const CallTemplate& tmpl_;
  const std::string& name_;
  const std::vector<SlotId>& operands_;
  const plan::Program& program_;
};

/// Whether an argument tells that this call draws no random numbers, though the operator may: dropout in evaluation.
bool is_without_dropout(const CallTemplate& tmpl) {
  const auto& arguments = tmpl.op.schema().arguments();
  for (uint32_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i].name();
    const c10::IValue& value = tmpl.args[i];
    if (std::ranges::any_of(tmpl.numbers, [&](const auto& hole) { return hole.arg == i; })) continue;
    if ((name == "train" || name == "training") && value.isBool() && !value.toBool()) return true;
    if ((name == "dropout" || name == "dropout_p") && value.isDouble() && value.toDouble() == 0) return true;
  }
  return false;
}

void check(const CallTemplate& tmpl, const std::string& name) {
  using capture::OpFlag;
  if (tmpl.op.schema().name().rfind("aten::", 0) != 0)
    refuse_call(name, "is none of torch's own operators, and libtorch has no other");
  if ((tmpl.facts.is(OpFlag::Draws) && !is_without_dropout(tmpl)) || !tmpl.made_generators.empty())
    refuse_call(name, "draws random numbers");
  if (tmpl.by_data) refuse_call(name, "takes or gives a tensor whose size depends on data");
  if (tmpl.casts) refuse_call(name, "runs under an autocast of its own");
}

}  // namespace

std::string named_with_line(const ir::Graph& graph, const std::string& name, ir::Op op, uint32_t attr) {
  for (const ir::Node& node : graph.nodes)
    if (node.op == op && node.attr == attr && node.line) return name + " at " + graph.lines[node.line];
  return name;
}

ExportedCalls::ExportedCalls(const ir::Graph& graph, const plan::Program& program,
                             const std::vector<CallTemplate>& calls)
    : graph_(graph),
      program_(program),
      calls_(calls),
      same_(program.slots.size(), kNoSlot),
      viewed_(program.slots.size(), kNoSlot) {
  for (const plan::Step& step : program.steps)
    if (const auto* external = std::get_if<plan::ExternStep>(&step)) note_writes(*external);
}

bool ExportedCalls::any() const {
  return std::ranges::any_of(program_.steps, [](const plan::Step& step) {
    return std::holds_alternative<plan::ExternStep>(step) || std::holds_alternative<plan::ContractStep>(step);
  });
}

void ExportedCalls::note_writes(const plan::ExternStep& step) {
  const ir::ExternAttr& attr = graph_.externs[step.external];
  if (attr.kind == ir::ExternKind::View)
    for (const SlotId result : step.results)
      if (result != kNoSlot) viewed_[result] = step.operands[0];
  const CallTemplate& tmpl = calls_[attr.call];
  const c10::FunctionSchema& schema = tmpl.op.schema();
  for (const uint32_t which : attr.written) {
    if (const uint32_t input = input_under(step.operands[which]); input != kNoSlot) written_.push_back(input);
    const c10::AliasInfo* memory = schema.arguments()[tmpl.holes[which].arg].alias_info();
    for (size_t i = 0; i < std::min(schema.returns().size(), step.results.size()); ++i) {
      const c10::AliasInfo* given = schema.returns()[i].alias_info();
      if (memory && given && *memory == *given && step.results[i] != kNoSlot)
        same_[step.results[i]] = step.operands[which];
    }
  }
}

uint32_t ExportedCalls::input_under(SlotId id) const {
  while (true) {
    const plan::Slot& slot = program_.slots[id];
    if (slot.kind == SlotKind::Input) return slot.index;
    const SlotId below = slot.kind == SlotKind::Alias ? slot.base : same_[id] != kNoSlot ? same_[id] : viewed_[id];
    if (below == kNoSlot) return kNoSlot;
    id = below;
  }
}

py::dict ExportedCalls::row(const plan::ExternStep& step) const {
  const ir::ExternAttr& attr = graph_.externs[step.external];
  const std::string name = named_with_line(graph_, attr.name, ir::Op::Extern, step.external);
  const bool is_view = attr.kind == ir::ExternKind::View;
  for (const SlotId result : step.results)
    if (is_view && std::ranges::find(program_.outputs, result) != program_.outputs.end())
      throw py::value_error(name +
                            " gives a view of a tensor that the caller gets or has; return that tensor, or a clone()");
  return row(Call{calls_[attr.call], name, step.operands, step.results, !is_view});
}

py::dict ExportedCalls::row(const plan::ContractStep& step) const {
  std::string name = calls_[step.call].op.schema().name();
  for (uint32_t i = 0; i < graph_.contracts.size(); ++i)
    if (graph_.contracts[i].call == step.call)
      name = named_with_line(graph_, graph_.contracts[i].name, ir::Op::Contract, i);
  return row(Call{calls_[step.call], name, step.operands, {step.result}});
}

py::dict ExportedCalls::row(const Call& call) const {
  check(call.tmpl, call.name);
  py::dict out;
  out["operator"] = call.tmpl.op.schema().name();
  out["overload"] = call.tmpl.op.schema().overload_name();
  out["name"] = call.name;
  out["arguments"] = Arguments(call.tmpl, call.name, call.operands, program_).rows();
  py::list operands;
  for (const SlotId slot : call.operands) operands.append(slot == kNoSlot ? -1 : static_cast<int>(slot));
  out["operands"] = operands;
  add_results(call, out);
  out["is_new"] = call.is_new;
  return out;
}

/// Where what the operator returns goes, and the types: tensors, or one list of them. What nobody wants, or stands in
/// its place already, has no slot.
void ExportedCalls::add_results(const Call& call, py::dict& row) const {
  const auto& returns = call.tmpl.op.schema().returns();
  const auto is_tensor = [](const c10::Argument& given) {
    return given.real_type()->kind() == c10::TypeKind::TensorType;
  };
  const bool gives_list = returns.size() == 1 && returns[0].real_type()->isSubtypeOf(*c10::ListType::ofTensors());
  if (!gives_list && !std::ranges::all_of(returns, is_tensor))
    refuse_call(call.name, "gives something else than tensors, which the C interface of libtorch cannot pass");
  py::list slots, types;
  for (size_t i = 0; i < (gives_list ? call.tmpl.results.size() : returns.size()); ++i) {
    const SlotId slot = i < call.results.size() ? call.results[i] : kNoSlot;
    const bool is_wanted = slot != kNoSlot && same_[slot] == kNoSlot;
    slots.append(is_wanted ? static_cast<int>(slot) : -1);
    types.append(is_wanted ? static_cast<int>(call.tmpl.results[i].dtype) : -1);
  }
  row["results"] = slots;
  row["types"] = types;
  row["gives_list"] = gives_list;
}

}  // namespace fastjit::dispatch
