// A call's program as plain data: planned anew, so that kernels compute all that they can, for one thread and a level
// of the CPU that the user chose. Numbers are those of the call, but for arguments that only steps read.
#include "python/bind_export.h"

#include <ATen/autocast_mode.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/headeronly/version.h>

#include <algorithm>

#include "backend/compiler.h"
#include "capture/record/trace.h"
#include "dispatch/call/function.h"
#include "dispatch/learn/compile.h"
#include "dispatch/learn/refuse.h"
#include "python/export_calls.h"

namespace py = pybind11;

namespace fastjit::dispatch {
namespace {

constexpr int kNone = -1;

[[noreturn]] void refuse_export(const std::string& why) { throw py::value_error(why); }

/// A call as vectorcall has it.
struct PythonCall {
  std::vector<PyObject*> args;
  Py_ssize_t nargs;
  py::object names;

  PythonCall(const py::tuple& positional, const py::dict& keywords)
      : nargs(static_cast<Py_ssize_t>(positional.size())) {
    for (const py::handle arg : positional) args.push_back(arg.ptr());
    py::list given;
    for (const auto& [name, value] : keywords) {
      given.append(name);
      args.push_back(value.ptr());
    }
    if (!given.empty()) names = py::tuple(given);
  }
};

/// The variant that serves the call, and what it makes of it.
struct Match {
  std::shared_ptr<Variant> variant;
  std::vector<PyObject*> tensors, numbers;
};

Match find(const Function& function, const PythonCall& call) {
  const Modes modes = current_modes();
  for (const auto& variant : function.variants.recent_first()) {
    if (!variant->program.executable) continue;
    Match match{variant, std::vector<PyObject*>(variant->key.spec.object_count()),
                std::vector<PyObject*>(variant->number_count())};
    if (serves(*variant, modes, call.args.data(), call.nargs, call.names.ptr(), match.tensors.data(),
               match.numbers.data()))
      return match;
  }
  const std::string why = explain(function, call.args.data(), call.nargs, call.names.ptr());
  refuse_export("this call is no compiled program, so there is nothing to export; explain() says: " + why);
}

/// What cannot be told by the plan.
void check(const Variant& variant) {
  if (variant.program.device >= 0) refuse_export("it runs on a CUDA device; call it with tensors on the CPU");
  if (variant.program.replay)
    refuse_export("it has an effect on Python objects (" + variant.program.replay->describe().front() +
                  "); return the value, and pass it to the next call");
  if (variant.guards.values.empty()) return;
  const std::string& read = variant.guards.values.front().label;
  if (read.starts_with(std::string(capture::kFew) + " at "))
    refuse_export("an operator" + read.substr(capture::kFew.size()) +
                  " gives a tensor whose size depends on data; leave it to the caller, or keep the size, as "
                  "torch.where does");
  refuse_export("Python reads " + read + " out of a tensor and decides by it; keep it a tensor, as torch.where does");
}

/// Captured before the passes, at the sizes of the call, its results with the strides that Fortran's arrays have.
ir::Graph graph_of(const Variant& variant, bool column_major) {
  const Sized* sized = variant.program.sized.get();
  ir::Graph graph = sized ? ir::at_sizes(variant.inspection.captured, sized->latest()) : variant.inspection.captured;
  for (size_t i = 0; i < graph.traced.size(); ++i)
    if (graph.traced[i].trip.hint() != variant.inspection.captured.traced[i].trip.hint())
      refuse_export(
          "a loop ran another number of rounds when it was recorded; compile it with dynamic=False, which "
          "records each number");
  if (!column_major) return graph;
  for (ir::NodeId& output : graph.outputs) {
    const ir::Layout& layout = graph.layout(output);
    if (graph[output].op == ir::Op::Input || layout.rank() < 2) continue;
    std::vector<ir::Dim> strides;
    ir::Dim step = 1;
    for (const ir::Dim& size : layout.sizes) {
      strides.push_back(step);
      step = step * std::max<int64_t>(size.hint(), 1);
    }
    if (!ir::identical(layout.strides, strides)) output = graph.fresh_copy(output, std::move(strides));
  }
  return graph;
}

/// Refuses a step that is Python's.
void check(const plan::Step& step, const Executable& executable) {
  if (const auto* number = std::get_if<plan::NumberStep>(&step))
    refuse_export("the number " + executable.numbers[number->number].label +
                  " is computed in Python; compute it with tensors");
}

/// The inputs that the program writes to. They are arguments.
std::vector<uint32_t> written_by(const ir::Graph& graph, const ExportedCalls& calls, const Variant& variant) {
  std::vector<uint32_t> written = calls.written();
  for (const ir::Store& store : graph.stores) written.push_back(store.input);
  for (const uint32_t input : written)
    if (const capture::InputSource& source = variant.program.inputs[input];
        source.kind == capture::InputSource::Kind::Captured)
      refuse_export("it writes to the tensor " + variant.guards.captured.name(source.index) +
                    ", which is no argument; pass it as one");
  return written;
}

py::str name_of(ir::DType dtype) { return {ir::text(dtype).data(), ir::text(dtype).size()}; }

/// The type of the slot as torch numbers it; kNone: one that only calls know.
int type_of(const plan::Slot& slot, const Match& match) {
  if (slot.kind == plan::SlotKind::Input) {
    PyObject* tensor = match.variant->input(match.variant->program.inputs[slot.index], match.tensors.data());
    return static_cast<int>(THPVariable_Unpack(tensor).scalar_type());
  }
  return ir::is_raw(slot.dtype) ? kNone : static_cast<int>(capture::to_torch(slot.dtype));
}

py::list slots_of(const plan::Program& program, const ExportedCalls& calls, const Match& match) {
  static constexpr const char* kKinds[] = {"input", "tensor", "temp", "extern", "alias"};
  py::list out;
  const auto given = [](plan::SlotId id) { return id == plan::kNoSlot ? kNone : static_cast<int>(id); };
  for (size_t i = 0; i < program.slots.size(); ++i) {
    const plan::Slot& slot = program.slots[i];
    py::dict row;
    row["kind"] = kKinds[static_cast<size_t>(slot.kind)];
    row["dtype"] = name_of(slot.dtype);
    row["type"] = type_of(slot, match);
    row["item"] = ir::size_of(slot.dtype);
    row["index"] = slot.index;
    row["offset"] = slot.offset;
    row["base"] = given(slot.base);
    row["same"] = given(calls.same()[i]);
    row["sizes"] = slot.sizes;
    row["strides"] = slot.strides;
    out.append(row);
  }
  return out;
}

py::dict launch_of(const plan::Program& program, const plan::KernelStep& step) {
  py::dict out;
  out["kernel"] = step.kernel;
  out["operands"] = step.operands;
  out["offsets"] = step.offsets;
  out["sizes"] = step.sizes;
  out["strides"] = step.strides;
  out["scalars"] = step.scalars;
  out["block"] = step.block;
  out["units"] = step.units;
  out["scratch_stride"] = step.scratch_stride;
  out["scratch"] = static_cast<int64_t>(program.kernels[step.kernel].scratch.size()) * step.scratch_stride;
  return out;
}

/// The steps: calls of torch, slots that are used no more, and launches that run `trip` times with where their operands
/// go between two rounds.
py::list steps_of(const plan::Program& program, const ExportedCalls& calls, const Executable& executable) {
  py::list out;
  for (const plan::Step& step : program.steps) {
    check(step, executable);
    py::list launches, walks, jumps, places;
    py::dict row;
    row["trip"] = 1;
    if (const auto* external = std::get_if<plan::ExternStep>(&step)) row["call"] = calls.row(*external);
    if (const auto* free = std::get_if<plan::FreeStep>(&step); free && free->slot != plan::kNoSlot)
      row["free"] = free->slot;
    const auto add = [&](const plan::KernelStep& launch) { launches.append(launch_of(program, launch)); };
    if (const auto* kernel = std::get_if<plan::KernelStep>(&step)) add(*kernel);
    if (const auto* parallel = std::get_if<plan::ParallelStep>(&step)) std::ranges::for_each(parallel->launches, add);
    if (const auto* loop = std::get_if<plan::LoopStep>(&step)) {
      std::ranges::for_each(loop->body, add);
      row["trip"] = loop->trip;
      for (const auto& [of, delta] : loop->walks) walks.append(py::make_tuple(of.launch, of.operand, delta));
      for (const plan::LoopStep::Operand of : loop->jumps) jumps.append(py::make_tuple(of.launch, of.operand));
      for (const plan::Place& place : loop->table) places.append(py::make_tuple(place.slot, place.offset));
    }
    if (const auto* product = std::get_if<plan::ContractStep>(&step)) {
      row["call"] = calls.row(*product);
      std::ranges::for_each(product->epilogue, add);
    }
    if (launches.empty() && !row.contains("call") && !row.contains("free")) continue;
    row["launches"] = launches;
    row["walks"] = walks;
    row["jumps"] = jumps;
    row["places"] = places;
    out.append(row);
  }
  return out;
}

/// The tensors and numbers among the arguments, in their order. `input`, `scalars`: what of the program they are.
py::list arguments_of(const Function& function, const Match& match, const PythonCall& call, bool open_numbers) {
  const Variant& variant = *match.variant;
  const CallSpec& spec = variant.key.spec;
  const std::vector<std::string> names = argument_names(function.callable, call.nargs, call.names.ptr());
  const std::vector<std::string> tensors = tensor_names(spec, names), numbers = number_names(spec, names);
  py::list out;
  size_t tensor = 0, number = 0, symbolic = 0;
  for (const ArgSpec& arg : spec.specs()) {
    py::dict row;
    if (arg.kind == ArgKind::Tensor) {
      const size_t at = tensor++;
      if (arg.same_as >= 0) continue;
      const auto is_it = [&](const capture::InputSource& source) {
        return source.kind == capture::InputSource::Kind::Argument && source.index == at;
      };
      const auto found = std::ranges::find_if(variant.program.inputs, is_it);
      const bool used = found != variant.program.inputs.end();
      row["name"] = tensors[at];
      row["tensor"] = py::handle(match.tensors[at]);
      row["input"] = used ? static_cast<int>(found - variant.program.inputs.begin()) : kNone;
    } else if (arg.kind == ArgKind::Number || arg.kind == ArgKind::Int || arg.kind == ArgKind::Float) {
      const size_t at = number++;
      if (arg.kind != ArgKind::Number) continue;
      const size_t which = symbolic++;
      if (!open_numbers) continue;
      std::vector<size_t> scalars;
      for (size_t i = 0; i < variant.program.scalar_number.size(); ++i)
        if (variant.program.scalar_number[i] == which) scalars.push_back(i);
      row["name"] = numbers[at];
      row["is_float"] = arg.type == &PyFloat_Type;
      row["scalars"] = scalars;
    } else {
      continue;
    }
    out.append(row);
  }
  return out;
}

/// Bits of each scalar of the program in this call.
std::vector<uint64_t> scalars_of(const Match& match, const ir::Graph& graph) {
  const HitProgram& program = match.variant->program;
  const Derived::Numbers all(program.derived, match.numbers.data(), match.variant->number_count());
  if (!all.why().empty()) refuse_export(all.why());
  std::vector<uint64_t> bits;
  for (size_t i = 0; i < program.scalar_number.size(); ++i) {
    if (program.scalar_number[i] == capture::Capture::kSize) {
      bits.push_back(static_cast<uint64_t>(graph.scalars[i].size.hint()));
      continue;
    }
    PyObject* number = all.data()[program.scalar_number[i]];
    bits.push_back(program.scalar_is_float[i] ? std::bit_cast<uint64_t>(PyFloat_AS_DOUBLE(number))
                                              : static_cast<uint64_t>(PyLong_AsLongLong(number)));
  }
  return bits;
}

/// Per input: the tensor that is no argument, or None.
py::list captured_of(const Match& match) {
  py::list out;
  for (const capture::InputSource& source : match.variant->program.inputs) {
    const bool argument = source.kind == capture::InputSource::Kind::Argument;
    PyObject* tensor = argument ? Py_None : match.variant->input(source, match.tensors.data());
    if (!argument && !is_plain_tensor(tensor)) refuse_export("a tensor that it found before is not there any more");
    out.append(py::handle(tensor));
  }
  return out;
}

py::list objects_of(const plan::Program& program, const backend::Target& target, const std::string& prefix) {
  py::list out;
  for (size_t i = 0; i < program.kernels.size(); ++i) {
    const std::string symbol = prefix + std::to_string(i);
    std::string object;
    {
      const py::gil_scoped_release release;
      object = backend::compile_cpu_as(symbol, program.kernels[i], target);
    }
    py::dict row;
    row["symbol"] = symbol;
    row["name"] = plan::name(program.kernels[i]);
    row["object"] = py::bytes(object);
    out.append(row);
  }
  return out;
}

py::dict export_program(const py::object& object, const py::tuple& args, const py::dict& kwargs, const std::string& isa,
                        bool column_major, const std::string& prefix) {
  const Function& function = *reinterpret_cast<FunctionObject*>(object.ptr())->function;
  const PythonCall call(args, kwargs);
  const Match match = find(function, call);
  const Variant& variant = *match.variant;
  check(variant);
  const backend::Isa level = isa == backend::text(backend::Isa::Avx2) ? backend::Isa::Avx2 : backend::Isa::Avx512;
  const backend::Target target{backend::Target::Kind::Cpu, level, 0};
  plan::PlanOptions options;
  options.numerics = function.options.numerics;
  options.own_products = options.no_library = true;
  options.lanes = backend::lanes_for(level);
  const ir::Graph graph = pass::run(graph_of(variant, column_major), context_for(function, c10::kCPU));
  const plan::Program program = plan::plan(graph, options);
  const Executable& executable = *variant.program.executable;
  const ExportedCalls calls(graph, program, executable.calls);
  const std::vector<uint32_t> written = written_by(graph, calls, variant);
  const bool open_numbers = variant.program.derived.empty();
  py::dict out;
  out["steps"] = steps_of(program, calls, executable);
  if (calls.any() && at::autocast::is_autocast_enabled(c10::kCPU))
    refuse_export("steps of torch would run under the autocast that is on; export it with autocast off");
  out["kernels"] = objects_of(program, target, prefix);
  out["arguments"] = arguments_of(function, match, call, open_numbers);
  out["captured"] = captured_of(match);
  out["slots"] = slots_of(program, calls, match);
  out["written"] = written;
  out["scalars"] = scalars_of(match, graph);
  out["outputs"] = program.outputs;
  out["arena"] = program.arena_bytes;
  out["plan"] = plan::text(program);
  out["torch_abi"] = TORCH_ABI_VERSION;
  return out;
}

}  // namespace

void bind_export(py::module_& module) {
  module.def("export_program", &export_program, py::arg("function"), py::arg("args"), py::arg("kwargs"), py::arg("isa"),
             py::arg("column_major"), py::arg("prefix"));
}

}  // namespace fastjit::dispatch
