#include "bind_cuda.h"

#include <pybind11/stl.h>

#include "backend/cuda_driver.h"
#include "backend/nvrtc.h"
#include "codegen/emit_cuda.h"
#include "dispatch/function.h"
#include "runtime/engine.h"

namespace py = pybind11;

namespace fastjit {
namespace {

using dispatch::Variant;

// The index-th most recently used variant that has a program.
Variant& variant_of(const py::object& function, size_t index) {
  if (!py::isinstance(function, py::module_::import("fastjit._C").attr("Function")))
    throw py::type_error("a fastjit function is needed");
  for (const auto& variant :
       reinterpret_cast<dispatch::FunctionObject*>(function.ptr())->function->variants.recent_first())
    if (variant->executable && index-- == 0) return *variant;
  throw py::index_error("the function has no such compiled variant");
}

const plan::KernelPlan& kernel_of(const Variant& variant, size_t kernel) {
  const auto& kernels = variant.executable->program.kernels;
  if (kernel >= kernels.size()) throw py::index_error("the program has no such kernel");
  return kernels[kernel];
}

py::list cuda_kernels(const py::object& function, size_t index) {
  py::list out;
  for (const plan::KernelPlan& plan : variant_of(function, index).executable->program.kernels) {
    const size_t rank = plan.dims.size();
    std::vector<size_t> strides;  // places in KernelArgs::strides that are parameters
    for (size_t i = 0; i < plan.operands.size() * rank; ++i)
      if (plan.operands[i / rank].strides[i % rank] == plan::StrideClass::Any) strides.push_back(i);
    py::dict row;
    row["source"] = codegen::cuda_source(plan);
    row["plan"] = plan::text(plan);
    row["blocks"] = codegen::cuda_shape(plan) == codegen::CudaShape::BlockPerRow;
    row["operands"] = plan.operands.size();
    row["kept"] = plan.kept();
    row["rank"] = rank;
    row["strides"] = strides;
    row["scalars"] = plan.scalars.size();
    row["scratch"] = plan.scratch.size();
    out.append(row);
  }
  return out;
}

std::string nvrtc_open(const std::string& path) {
  backend::set_nvrtc_path(path);
  return backend::nvrtc_problem();
}

py::dict nvrtc_compile(const std::string& source, int sm) {
  backend::Compiled compiled;
  {
    const py::gil_scoped_release release;
    compiled = backend::compile_cuda_source(source, sm, plan::Numerics::Eager);
  }
  py::dict out;
  out["cubin"] = py::bytes(compiled.object);
  out["ptx"] = compiled.assembly;
  out["ms"] = compiled.compile_ms;
  return out;
}

std::string cuda_ptx(const py::object& function, size_t index, size_t kernel, int sm) {
  const plan::KernelPlan plan = kernel_of(variant_of(function, index), kernel);
  const py::gil_scoped_release release;
  return backend::compile_cuda(plan, {backend::Target::Kind::Cuda, backend::Isa::Avx2, sm}).assembly;
}

// Through memory, disk and NVRTC: (key, where it came from).
py::tuple cuda_cached(const py::object& function, size_t index, size_t kernel, int sm) {
  static constexpr const char* kSources[] = {"memory", "disk", "compiled"};
  const Variant& variant = variant_of(function, index);
  const plan::KernelPlan plan = kernel_of(variant, kernel);
  const auto* self = reinterpret_cast<dispatch::FunctionObject*>(function.ptr())->function;
  const runtime::Origin origin{self->options.name, variant.spec.signature(), variant.inspection.ir};
  runtime::KernelResult result;
  {
    const py::gil_scoped_release release;
    result =
        runtime::get_kernel(plan, {backend::Target::Kind::Cuda, backend::Isa::Avx2, sm}, origin, self->options.cache);
  }
  return py::make_tuple(result.key, kSources[static_cast<int>(result.source)]);
}

// Runs the kernels of a program on device memory: `addresses` holds one address per slot, of its first element.
class DeviceRun {
 public:
  DeviceRun(const Variant& variant, std::vector<uint64_t> addresses, uint64_t scratch, uint64_t stream)
      : program_(variant.executable->program), addresses_(std::move(addresses)), scratch_(scratch), stream_(stream) {
    if (addresses_.size() != program_.slots.size()) throw std::runtime_error("one address per slot is needed");
  }

  void all(const std::vector<runtime::KernelResult>& kernels) {
    for (const plan::Step& step : program_.steps) {
      if (const auto* kernel = std::get_if<plan::KernelStep>(&step)) {
        launch(*kernel, *kernels[kernel->kernel].kernel);
      } else if (const auto* parallel = std::get_if<plan::ParallelStep>(&step)) {
        for (const plan::KernelStep& s : parallel->launches) launch(s, *kernels[s.kernel].kernel);
      } else if (!std::holds_alternative<plan::FreeStep>(step)) {
        throw std::runtime_error("the program has steps that are not kernels");
      }
    }
  }

  static int64_t scratch_bytes(const plan::Program& program) {
    int64_t most = 0;
    for (const plan::Step& step : program.steps) {
      if (const auto* kernel = std::get_if<plan::KernelStep>(&step)) most = std::max(most, bytes(program, *kernel));
      if (const auto* parallel = std::get_if<plan::ParallelStep>(&step))
        for (const plan::KernelStep& s : parallel->launches) most = std::max(most, bytes(program, s));
    }
    return most;
  }

 private:
  static int64_t bytes(const plan::Program& program, const plan::KernelStep& s) {
    return codegen::cuda_launch(program.kernels[s.kernel], s.sizes.data()).scratch_bytes;
  }

  void launch(const plan::KernelStep& s, const backend::Kernel& kernel) {
    const plan::KernelPlan& plan = program_.kernels[s.kernel];
    if (!s.scalars.empty()) throw std::runtime_error("run-time scalars are not passed here");
    std::vector<void*> ptrs;
    for (size_t i = 0; i < s.operands.size(); ++i) {
      const auto offset = static_cast<uint64_t>(s.offsets[i] * ir::size_of(plan.operands[i].dtype));
      ptrs.push_back(reinterpret_cast<void*>(addresses_[s.operands[i]] + offset));
    }
    const codegen::CudaLaunch shape = codegen::cuda_launch(plan, s.sizes.data());
    const backend::KernelArgs args{ptrs.data(),
                                   s.sizes.data(),
                                   s.strides.data(),
                                   nullptr,
                                   reinterpret_cast<char*>(scratch_),
                                   shape.scratch_stride,
                                   0};
    backend::cuda_launch(kernel, shape, codegen::cuda_parameters(plan, args), stream_);
  }

  const plan::Program& program_;
  std::vector<uint64_t> addresses_;
  uint64_t scratch_, stream_;
};

// What cuda_run() needs: the slots as (kind, input, dtype, sizes, strides, offset, base), outputs, arena and scratch.
py::dict cuda_memory(const py::object& function, size_t index) {
  static constexpr const char* kKinds[] = {"input", "tensor", "temp", "extern", "alias"};
  const plan::Program& program = variant_of(function, index).executable->program;
  py::list slots;
  for (const plan::Slot& slot : program.slots)
    slots.append(py::make_tuple(kKinds[static_cast<int>(slot.kind)], slot.index, std::string(ir::text(slot.dtype)),
                                slot.sizes, slot.strides, slot.offset, slot.base));
  py::dict out;
  out["slots"] = slots;
  out["outputs"] = program.outputs;
  out["arena"] = program.arena_bytes;
  out["scratch"] = DeviceRun::scratch_bytes(program);
  return out;
}

void cuda_run(const py::object& function, size_t index, const std::vector<uint64_t>& addresses, uint64_t scratch,
              uint64_t stream, int device) {
  const Variant& variant = variant_of(function, index);
  const backend::Target target{backend::Target::Kind::Cuda, backend::Isa::Avx2, backend::cuda_sm(device)};
  DeviceRun run(variant, addresses, scratch, stream);
  const py::gil_scoped_release release;
  std::vector<runtime::KernelResult> kernels;
  for (const plan::KernelPlan& plan : variant.executable->program.kernels)
    kernels.push_back(runtime::get_kernel(plan, target, {}));
  run.all(kernels);
}

// Later calls of the variant run these functions (addresses of backend::KernelFn) in place of its kernels.
void replace_kernels(const py::object& function, size_t index, const std::vector<uintptr_t>& addresses) {
  Variant& variant = variant_of(function, index);
  if (addresses.size() != variant.executable->kernels.size()) throw py::value_error("one address per kernel is needed");
  for (size_t i = 0; i < addresses.size(); ++i) {
    auto kernel = std::make_shared<backend::Kernel>();
    kernel->entry = reinterpret_cast<backend::KernelFn>(addresses[i]);
    variant.executable->kernels[i] = std::move(kernel);
  }
}

}  // namespace

void bind_cuda(py::module_& module) {
  module.def("cuda_kernels", &cuda_kernels, py::arg("function"), py::arg("variant") = 0);
  module.def("cuda_ptx", &cuda_ptx, py::arg("function"), py::arg("variant"), py::arg("kernel"), py::arg("sm"));
  module.def("cuda_cached", &cuda_cached, py::arg("function"), py::arg("variant"), py::arg("kernel"), py::arg("sm"));
  module.def("cuda_memory", &cuda_memory, py::arg("function"), py::arg("variant"));
  module.def("cuda_run", &cuda_run, py::arg("function"), py::arg("variant"), py::arg("addresses"), py::arg("scratch"),
             py::arg("stream"), py::arg("device"));
  module.def("cuda_problem", &backend::cuda_problem, py::arg("library") = "libcuda.so.1");
  module.def("nvrtc_open", &nvrtc_open, py::arg("path"));
  module.def("nvrtc_version", &backend::nvrtc_version);
  module.def("nvrtc_compile", &nvrtc_compile, py::arg("source"), py::arg("sm"));
  module.def("replace_kernels", &replace_kernels, py::arg("function"), py::arg("variant"), py::arg("addresses"));
}

}  // namespace fastjit
