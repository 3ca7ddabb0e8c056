#include "dispatch/learn/python_source.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <algorithm>

namespace fastjit::dispatch {
namespace {

namespace py = pybind11;

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    out += c;
    if (c == '{' || c == '}') out += c;
  }
  return out;
}

std::string literal(const c10::IValue& value, const c10::Argument& argument) {
  // Enumerations travel as ints; torch.ops takes the Python objects.
  const std::string type = argument.real_type()->str();
  if (value.isInt() && type.find("ScalarType") != std::string::npos)
    return py::repr(
        py::handle(reinterpret_cast<PyObject*>(torch::getTHPDtype(static_cast<c10::ScalarType>(value.toInt())))));
  if (value.isInt() && (type.find("Layout") != std::string::npos)) return "torch.strided";
  if (value.isInt() && (type.find("MemoryFormat") != std::string::npos)) {
    static constexpr const char* kFormats[] = {"torch.contiguous_format", "torch.preserve_format",
                                               "torch.channels_last", "torch.channels_last_3d"};
    return kFormats[value.toInt()];
  }
  if (value.isDevice()) return "torch.device('" + value.toDevice().str() + "')";
  const py::object object = torch::jit::toPyObject(value);
  if (py::hasattr(object, "tolist"))  // a tensor made of numbers that the function wrote down: exact
    return "torch.tensor(" + py::cast<std::string>(py::repr(object.attr("tolist")())) +
           ", dtype=" + py::cast<std::string>(py::repr(object.attr("dtype"))) + ")";
  return escaped(py::cast<std::string>(py::repr(object)));
}

using NumberHole = capture::CallTemplate::NumberHole;

std::string computed_text(size_t operand) { return "float({" + std::to_string(operand) + "})"; }

std::string scalar_text(const std::string& name) {
  return "scalars[" + escaped(py::cast<std::string>(py::repr(py::str(name)))) + "]";
}

// Of numbers that the program computes, it is an operand of the step.
std::string number_text(const NumberHole& hole) {
  return hole.operand >= 0 ? computed_text(static_cast<size_t>(hole.operand)) : scalar_text(hole.name);
}

// A list of numbers, some of which are not the recorded ones.
std::string list_text(const capture::CallTemplate& call, uint32_t arg) {
  const py::list recorded(torch::jit::toPyObject(call.args[arg]));
  std::vector<std::string> elements;
  for (const py::handle element : recorded) elements.push_back(escaped(py::cast<std::string>(py::repr(element))));
  for (const NumberHole& hole : call.numbers)
    if (hole.arg == arg) elements[static_cast<size_t>(hole.element)] = number_text(hole);
  std::string text;
  for (const std::string& element : elements) text += (text.empty() ? "[" : ", ") + element;
  return text + "]";
}

std::pair<std::string, bool> call_text(const capture::CallTemplate& call) {
  const c10::FunctionSchema& schema = call.op.schema();
  std::string name = schema.name();
  for (size_t at = name.find("::"); at != std::string::npos; at = name.find("::")) name.replace(at, 2, ".");
  std::string text =
      "torch.ops." + name + "." + (schema.overload_name().empty() ? "default" : schema.overload_name()) + "(";
  size_t hole = 0;
  for (size_t i = 0; i < call.args.size(); ++i) {
    if (i) text += ", ";
    if (schema.arguments()[i].kwarg_only()) text += schema.arguments()[i].name() + "=";
    if (hole < call.holes.size() && call.holes[hole].arg == i && call.holes[hole].item < 0) {
      text += "{" + std::to_string(hole++) + "}";
    } else if (hole < call.holes.size() && call.holes[hole].arg == i) {
      const size_t count =
          call.args[i].isTensorList() ? call.args[i].toTensorList().size() : call.args[i].toListRef().size();
      text += "[";
      for (size_t item = 0; item < count; ++item) {
        const bool filled = hole < call.holes.size() && call.holes[hole].arg == i &&
                            call.holes[hole].item == static_cast<int32_t>(item);
        text += (item ? ", " : "") + (filled ? "{" + std::to_string(hole++) + "}" : std::string("None"));
      }
      text += "]";
    } else if (const auto number = std::ranges::find(call.numbers, i, &capture::CallTemplate::NumberHole::arg);
               number != call.numbers.end()) {
      text += number->element < 0 ? number_text(*number) : list_text(call, static_cast<uint32_t>(i));
    } else {
      text += literal(call.args[i], schema.arguments()[i]);
    }
  }
  const bool many = schema.returns().size() != 1 || schema.returns()[0].type()->kind() == c10::TypeKind::ListType;
  return {text + ")", many};
}

// What Python computed, of operands {0}, {1} of the step, and of numbers of the call.
std::string number_text(const capture::NumberOp& op, const std::vector<std::string>& names) {
  using From = capture::NumberOp::Operand::From;
  using Kind = capture::NumberOp::Kind;
  std::vector<std::string> x;
  size_t next = 0;
  for (const capture::NumberOp::Operand& operand : op.operands) {
    if (operand.from == From::Step)
      x.push_back(computed_text(next++));
    else if (operand.from == From::Constant)
      x.push_back("(" + py::cast<std::string>(py::repr(py::float_(operand.value))) + ")");
    else
      x.push_back(scalar_text(names[operand.scalar]));
  }
  constexpr const char* kBetween[] = {" + ", " - ", " * ", " / ", " ** "};
  if (op.kind == Kind::Neg) return "-" + x[0];
  if (op.kind == Kind::Sqrt) return "sqrt(" + x[0] + ")";
  return x[0] + kBetween[static_cast<size_t>(op.kind)] + x[1];
}

}  // namespace

py::dict python_steps(const Variant& variant) {
  const Executable& executable = *variant.program.executable;
  py::list calls, numbers;
  for (const capture::CallTemplate& call : executable.calls) {
    const auto [text, many] = call_text(call);
    py::dict row;
    row["text"] = text;
    row["many"] = many;
    calls.append(row);
  }
  for (const capture::NumberOp& op : executable.numbers) numbers.append(number_text(op, variant.program.scalar_name));
  py::dict out;
  out["calls"] = calls;
  out["numbers"] = numbers;
  out["device"] = device_of(variant).str();
  return out;
}

}  // namespace fastjit::dispatch
