#include "python/bind_cuda.h"

#include <pybind11/stl.h>

#include "backend/cuda_driver.h"
#include "backend/nvrtc.h"
#include "codegen/cuda/emit.h"
#include "dispatch/call/function.h"
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
    if (variant->program.executable && index-- == 0) return *variant;
  throw py::index_error("the function has no such compiled variant");
}

const plan::KernelPlan& kernel_of(const Variant& variant, size_t kernel) {
  const auto& kernels = variant.program.executable->program.kernels;
  if (kernel >= kernels.size()) throw py::index_error("the program has no such kernel");
  return kernels[kernel];
}

py::list cuda_kernels(const py::object& function, size_t index) {
  py::list out;
  for (const plan::KernelPlan& plan : variant_of(function, index).program.executable->program.kernels) {
    const size_t rank = plan.dims.size();
    std::vector<size_t> strides;  // places in KernelArgs::strides that are parameters
    for (size_t i = 0; i < plan.operands.size() * rank; ++i)
      if (plan.operands[i / rank].strides[i % rank] == plan::StrideClass::Any) strides.push_back(i);
    for (size_t i = 0; i < plan.operands.size(); ++i)
      if (plan.operands[i].gathered) strides.push_back(plan.step_of(i));
    std::vector<int> divided;
    for (int d = 0; d < plan.rank(); ++d)
      if (plan::is_divided(plan, d)) divided.push_back(d);
    py::dict row;
    row["source"] = codegen::cuda_source(plan);
    row["plan"] = plan::text(plan);
    row["name"] = plan::name(plan);
    row["blocks"] = plan::threads_of(plan) != plan::Threads::Points;
    row["operands"] = plan.operands.size();
    row["kept"] = plan.kept();
    row["rank"] = rank;
    row["divided"] = divided;
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
  const runtime::Origin origin{self->options.name, variant.key.spec.signature(),
                               [&] { return variant.inspection.ir(); }};
  runtime::KernelResult result;
  {
    const py::gil_scoped_release release;
    result =
        runtime::get_kernel(plan, {backend::Target::Kind::Cuda, backend::Isa::Avx2, sm}, origin, self->options.cache);
  }
  return py::make_tuple(result.key, kSources[static_cast<int>(result.source)]);
}

// Later calls of the variant run these functions (addresses of backend::KernelFn) in place of its kernels.
void replace_kernels(const py::object& function, size_t index, const std::vector<uintptr_t>& addresses) {
  Variant& variant = variant_of(function, index);
  if (addresses.size() != variant.program.executable->kernels.size())
    throw py::value_error("one address per kernel is needed");
  for (size_t i = 0; i < addresses.size(); ++i) {
    auto kernel = std::make_shared<backend::Kernel>();
    kernel->entry = reinterpret_cast<backend::KernelFn>(addresses[i]);
    variant.program.executable->kernels[i] = std::move(kernel);
  }
}

}  // namespace

void bind_cuda(py::module_& module) {
  module.def("cuda_kernels", &cuda_kernels, py::arg("function"), py::arg("variant") = 0);
  module.def("cuda_ptx", &cuda_ptx, py::arg("function"), py::arg("variant"), py::arg("kernel"), py::arg("sm"));
  module.def("cuda_cached", &cuda_cached, py::arg("function"), py::arg("variant"), py::arg("kernel"), py::arg("sm"));
  module.def("cuda_problem", &backend::cuda_problem, py::arg("library") = "libcuda.so.1");
  module.def("nvrtc_open", &nvrtc_open, py::arg("path"));
  module.def("nvrtc_version", &backend::nvrtc_version);
  module.def("nvrtc_compile", &nvrtc_compile, py::arg("source"), py::arg("sm"));
  module.def("replace_kernels", &replace_kernels, py::arg("function"), py::arg("variant"), py::arg("addresses"));
}

}  // namespace fastjit
