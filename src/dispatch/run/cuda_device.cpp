#include "dispatch/run/cuda_device.h"

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <pybind11/pybind11.h>

#include <optional>

#include "backend/cuda_driver.h"

namespace py = pybind11;

namespace fastjit::dispatch {
namespace {

std::string find_problem() {
  if (std::string problem = backend::cuda_problem(); !problem.empty()) return problem;
  return py::module_::import("fastjit._nvrtc").attr("problem")().cast<std::string>();
}

// Where streams of c10 do not give their handle yet, torch's Python module does.
template <class Stream>
uint64_t handle_of(const Stream& stream) {
  if constexpr (requires { stream.native_handle(); }) {
    return reinterpret_cast<uint64_t>(stream.native_handle());
  } else {
    const py::gil_scoped_acquire gil;
    const py::object ask = py::module_::import("torch._C").attr("_cuda_getCurrentRawStream");
    return ask(static_cast<int>(stream.device_index())).template cast<uint64_t>();
  }
}

}  // namespace

const std::string& cuda_problem() {
  // Kept by the GIL alone: finding it runs Python code, so no lock may be held meanwhile.
  static std::optional<std::string> known;
  if (!known) {
    std::string found = find_problem();
    if (!known) known = std::move(found);
  }
  return *known;
}

uint64_t current_stream(c10::Device device) {
  return handle_of(c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(device));
}

}  // namespace fastjit::dispatch
