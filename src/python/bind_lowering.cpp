#include "python/bind_lowering.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <cstring>

#include "capture/lower/lower.h"
#include "python/reference_eval.h"

namespace py = pybind11;

namespace fastjit {
namespace {

using capture::Arg;
using capture::LowerCall;
using capture::LowerRow;
using capture::TensorMeta;
using capture::Value;

TensorMeta meta_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec(),
          tensor.unsafeGetTensorImpl()->is_wrapped_number()};
}

// The graph and inputs of one call whose tensors are all program inputs.
struct Single {
  ir::Graph graph;
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> scalars;
  std::vector<std::pair<at::Tensor, ir::NodeId>> seen;
  bool symbolic = false;

  ir::NodeId scalar(const at::Tensor& number) {
    scalars.push_back(number.detach().clone());
    return graph.scalar(number.is_floating_point() ? ir::DType::F64 : ir::DType::I64, {"s", true});
  }

  Value value(const at::Tensor& tensor) {
    if (!tensor.defined()) return {};
    Value out{ir::kNoNode, meta_of(tensor)};
    const auto type = capture::to_ir(tensor.scalar_type());
    if (!type || tensor.layout() != at::kStrided) return out;
    if (out.meta->wrapped_number) {
      if (symbolic && tensor.scalar_type() != at::kBool) {
        out.node = scalar(tensor);
        return out;
      }
      out.node = tensor.is_floating_point() ? graph.constant(*type, tensor.item<double>())
                                            : graph.constant_int(*type, tensor.to(at::kLong).item<int64_t>());
      return out;
    }
    for (auto& [known, node] : seen)
      if (known.is_same(tensor)) {
        out.node = node;
        return out;
      }
    out.node = graph.input(*type, out.meta->layout(), {"in" + std::to_string(inputs.size())});
    inputs.push_back(tensor.detach().clone());
    seen.emplace_back(tensor, out.node);
    return out;
  }

  Arg arg(const c10::IValue& value_) {
    Arg out;
    if (value_.isTensor()) {
      if (!value_.toTensor().defined()) return out;
      out.kind = Arg::Kind::Tensor;
      out.tensor = value(value_.toTensor());
    } else if (value_.isTensorList() || value_.isOptionalTensorList()) {
      out.kind = Arg::Kind::TensorList;
      for (const c10::IValue& item : value_.toListRef())
        out.list.push_back(item.isTensor() ? value(item.toTensor()) : Value{});
    } else if (!value_.isNone()) {
      out.kind = Arg::Kind::Constant;
      out.constant = value_;
      if (symbolic && value_.isDouble()) out.scalar = scalar(at::full({}, value_.toDouble(), at::kDouble));
    }
    return out;
  }
};

void collect(const c10::IValue& value, std::vector<at::Tensor>& out) {
  if (value.isTensor())
    out.push_back(value.toTensor());
  else if (value.isTensorList())
    for (const at::Tensor& tensor : value.toTensorVector()) out.push_back(tensor);
  else
    throw std::invalid_argument("a result is not a tensor");
}

// Numbers where the schema has a tensor become wrapped numbers, as torch's own argument parser makes them.
py::tuple with_wrapped_numbers(const c10::FunctionSchema& schema, const py::tuple& args) {
  py::tuple out(args.size());
  for (size_t i = 0; i < args.size(); ++i) {
    const py::object arg = args[i];
    const bool number = PyFloat_Check(arg.ptr()) || PyLong_Check(arg.ptr());
    if (!number || i >= schema.arguments().size() || schema.arguments()[i].type() != c10::TensorType::get()) {
      out[i] = arg;
      continue;
    }
    at::Tensor tensor = PyBool_Check(arg.ptr())    ? at::full({}, arg.cast<bool>(), at::kBool)
                        : PyFloat_Check(arg.ptr()) ? at::full({}, arg.cast<double>(), at::kDouble)
                                                   : at::full({}, arg.cast<int64_t>(), at::kLong);
    tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    out[i] = py::cast(tensor);
  }
  return out;
}

// Runs `op` eagerly, lowers the same call and evaluates the graph: (eager results, lowered results or None, graph
// text).
// `symbolic`: numbers are run-time scalars of the graph.
py::tuple lower_and_evaluate(const std::string& name, const std::string& overload, const std::string& row_name,
                             bool symbolic, const py::tuple& args, const py::dict& kwargs) {
  const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  torch::jit::Stack stack = torch::jit::createStackForSchema(
      op.schema(), torch::jit::tuple_slice(with_wrapped_numbers(op.schema(), args)), kwargs, std::nullopt);
  Single single;
  single.symbolic = symbolic;
  std::vector<Arg> lower_args;
  for (const c10::IValue& value : stack) lower_args.push_back(single.arg(value));
  op.callBoxed(stack);
  std::vector<at::Tensor> eager;
  for (const c10::IValue& value : stack) collect(value, eager);
  std::vector<TensorMeta> results;
  for (const at::Tensor& tensor : eager) results.push_back(meta_of(tensor));

  const LowerRow* row = capture::find_lowering(row_name);
  LowerCall call{single.graph, row_name, lower_args, results, plan::Numerics::Eager, {}};
  if (!row || row->level != capture::Level::Lowered || !row->fn(call)) return py::make_tuple(eager, py::none(), "");
  std::vector<ir::NodeId> given;  // without what is no tensor
  for (const ir::NodeId id : call.out)
    if (id != ir::kNoNode) given.push_back(id);
  single.graph.outputs = given;
  std::string text = ir::print(single.graph);
  if (std::string wrong = ir::verify(single.graph); !wrong.empty()) throw std::runtime_error(wrong + "\n" + text);
  std::vector<at::Tensor> lowered = capture::evaluate(single.graph, single.inputs, single.scalars, given);
  for (size_t i = 0; i < call.out.size(); ++i)
    if (call.out[i] == ir::kNoNode) lowered.insert(lowered.begin() + static_cast<std::ptrdiff_t>(i), at::Tensor());
  return py::make_tuple(eager, lowered, text);
}

}  // namespace

void bind_lowering(py::module_& module) {
  module.def("lower_and_evaluate", &lower_and_evaluate, py::arg("name"), py::arg("overload"), py::arg("row"),
             py::arg("symbolic"), py::arg("args"), py::arg("kwargs"));
}

}  // namespace fastjit
