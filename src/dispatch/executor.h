#pragma once
// Runs a program: allocates its outputs, launches kernels, calls the library. Obeys the plan and decides nothing.
#include <ATen/ATen.h>
#include <Python.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <vector>

#include "backend/cuda_driver.h"
#include "backend/kernel.h"
#include "capture/capture.h"
#include "plan/program.h"

namespace fastjit::dispatch {

/// What a program on a CUDA device needs beside its kernels.
struct CudaCode {
  c10::DeviceIndex device = 0;
  backend::CudaContext context = nullptr;
  std::vector<backend::CudaFunction> functions;  // per Program::kernels
  int64_t scratch_bytes = 0;                     // of the launch that needs most: launches of a stream take turns
};

/// A program with everything it needs at run time. Immutable after prepare(); shared by threads.
struct Executable {
  plan::Program program;
  std::vector<std::shared_ptr<const backend::Kernel>> kernels;  // per Program::kernels
  std::unique_ptr<const CudaCode> cuda;                         // null: runs on the CPU
  std::vector<capture::CallTemplate> calls;
  std::vector<ir::ExternAttr> externs;
  std::vector<ir::Store> stores;
  bool writes = false;        // something visible to the caller is written before the program ends
  bool long_running = false;  // worth releasing the GIL for

  /// The GIL may be released or Python code may run during a call.
  bool runs_foreign_code() const { return long_running || !calls.empty(); }

  /// Derives the flags above from the program; call once, when everything else is there.
  void prepare();
  /// Loads the kernels into the primary context of a CUDA device. Throws std::runtime_error.
  void load_on_cuda(c10::DeviceIndex device);
  int kernel_launches() const;
  int steps() const { return static_cast<int>(program.steps.size()); }
};

/// What went differently from the recording although every guard held (an operator's output metadata): the call
/// restarts in eager.
struct Restart {
  std::string why;
};

using Tensors = c10::SmallVector<at::Tensor, 8>;

/// Runs on `inputs` (one per graph input) and `scalars` (bits per graph scalar). outputs[i] is left undefined where
/// Program::outputs[i] is an Input slot. Throws what an operator throws, or Restart. Needs no GIL.
void run(const Executable& executable, const at::Tensor* const* inputs, const uint64_t* scalars, Tensors& outputs);

}  // namespace fastjit::dispatch
