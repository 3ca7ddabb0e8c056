#include "python/bind_debug.h"

#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include "capture/capture.h"

namespace py = pybind11;

namespace fastjit::capture {
namespace {

void collect(py::handle value, std::vector<at::Tensor>& tensors) {
  if (THPVariable_Check(value.ptr())) {
    tensors.push_back(THPVariable_Unpack(value.ptr()));
  } else if (py::isinstance<py::tuple>(value) || py::isinstance<py::list>(value)) {
    for (py::handle item : value) collect(item, tensors);
  } else if (py::isinstance<py::dict>(value)) {
    for (auto item : py::reinterpret_borrow<py::dict>(value)) collect(item.second, tensors);
  }
}

CallInputs inputs_of(const py::args& args, bool adopt) {
  CallInputs inputs;
  inputs.adopt_unknown = adopt;
  for (size_t i = 0; i < args.size(); ++i) {
    const py::handle arg = args[i];
    const std::string name = "arg" + std::to_string(i);
    const size_t before = inputs.tensors.size();
    collect(arg, inputs.tensors);
    for (size_t k = before; k < inputs.tensors.size(); ++k)
      inputs.tensor_names.push_back(
          inputs.tensors.size() - before == 1 ? name : name + "[" + std::to_string(k - before) + "]");
    if (PyFloat_CheckExact(arg.ptr()) || PyLong_CheckExact(arg.ptr())) inputs.scalars.emplace_back(arg.ptr(), name);
  }
  return inputs;
}

py::dict describe(const Capture& capture) {
  py::list calls, inputs, stores, values;
  for (const CallTemplate& call : capture.calls) {
    py::list holes;
    for (const CallTemplate::Hole& hole : call.holes) holes.append(py::make_tuple(hole.arg, hole.item));
    py::dict row;
    row["op"] = c10::toString(call.op.operator_name());
    row["holes"] = holes;
    row["args"] = call.args.size();
    row["results"] = call.results.size();
    row["shape_from_metadata"] = call.shape_from_metadata;
    calls.append(row);
  }
  for (const InputSource& source : capture.inputs)
    inputs.append(py::make_tuple(source.kind == InputSource::Kind::Argument ? "argument" : "captured", source.index));
  for (const auto& store : capture.graph.stores) stores.append(py::make_tuple(store.input, store.value, store.bumps));
  for (const ValueGuard& value : capture.guards) values.append(py::make_tuple(value.label, value.expected));
  py::dict out;
  out["values"] = values;
  out["unsound"] = capture.unsound;
  out["graph"] = capture.unsound.empty() ? ir::print(capture.graph) : "";
  out["calls"] = calls;
  out["inputs"] = inputs;
  out["stores"] = stores;
  out["outputs"] = capture.graph.outputs;
  out["lines"] = capture.graph.lines;
  out["bound_scalars"] = capture.bound_scalars;
  return out;
}

py::dict capture_debug(const py::function& function, const py::args& args, const py::kwargs& kwargs) {
  const bool adopt = kwargs.contains("adopt") && kwargs["adopt"].cast<bool>();
  CallInputs inputs = inputs_of(args, adopt);
  const std::vector<bool> symbolic(inputs.scalars.size(), true);
  Recorder recorder(std::move(inputs));
  if (kwargs.contains("captured"))
    for (py::handle tensor : kwargs["captured"])
      recorder.add_captured(tensor.ptr(), THPVariable_Unpack(tensor.ptr()), "captured");
  const py::object result = function(*args);
  std::vector<at::Tensor> outputs;
  collect(result, outputs);
  py::dict out = describe(recorder.finish(outputs, {}, symbolic, plan::Numerics::Eager));
  out["result"] = result;
  return out;
}

}  // namespace

void bind_capture_debug(py::module_& module) { module.def("capture_debug", &capture_debug); }

}  // namespace fastjit::capture
