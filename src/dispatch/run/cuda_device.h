#pragma once
// What torch and this machine say about CUDA devices, asked without CUDA's headers or libraries.
#include <Python.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace fastjit::dispatch {

/// Empty when kernels can be compiled for CUDA devices and launched there, else what is missing. Looked up once a
/// process; needs the GIL.
const std::string& cuda_problem();

/// The handle of the device's current stream on this thread, as the driver takes it.
uint64_t current_stream(c10::Device device);

}  // namespace fastjit::dispatch
