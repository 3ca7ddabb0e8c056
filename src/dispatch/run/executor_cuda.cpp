// A program on a CUDA device: kernels through the driver on torch's current stream, memory from torch's allocator, so
// that what torch says of streams and memory holds here as well. Everything that torch has for CUDA is reached through
// its device-generic interfaces: the extension is the same one for a torch without CUDA.
#include <c10/core/DeviceGuard.h>

#include "dispatch/run/cuda_device.h"
#include "dispatch/run/steps.h"

namespace fastjit::dispatch {
namespace {

struct CudaProducts {
  static void mm(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) { at::mm_out(out, a, b); }
  static void bmm(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) { at::bmm_out(out, a, b); }
  template <class... Args>
  static void addmm(at::Tensor& out, const Args&... args) {
    at::addmm_out(out, args...);
  }
  template <class... Args>
  static void baddbmm(at::Tensor& out, const Args&... args) {
    at::baddbmm_out(out, args...);
  }
};

class CudaRun : public Run<CudaRun, CudaProducts, c10::DispatchKey::CUDA> {
 public:
  CudaRun(const Executable& executable, const plan::Program& program, const at::Tensor* const* inputs,
          const uint64_t* scalars)
      : Run(executable, program, inputs, scalars),
        code_(*executable.cuda),
        device_(c10::DeviceType::CUDA, code_.device),
        guard_(device_),
        context_(code_.context),
        stream_(current_stream(device_)) {
    scratch_ = bytes(program_.scratch_bytes, held_scratch_);
  }

 private:
  friend Run;
  using Run::step;

  // Given back to torch's allocator when the call ends; what the stream still runs there keeps its order.
  char* bytes(int64_t count, at::Tensor& held) const {
    if (count == 0) return nullptr;
    held = at::empty({count}, at::TensorOptions(device_).dtype(at::kByte));
    return static_cast<char*>(held.mutable_data_ptr());
  }

  void drop_arena() { held_arena_.reset(); }
  char* take_arena() { return bytes(program_.arena_bytes, held_arena_); }

  at::Tensor empty(const plan::Slot& s) const {
    return at::empty_strided(s.sizes, s.strides, at::TensorOptions(device_).dtype(capture::to_torch(s.dtype)));
  }

  void step(const plan::KernelStep& s) {
    c10::SmallVector<void*, 12> ptrs;
    for (size_t i = 0; i < s.operands.size(); ++i) ptrs.push_back(address({s.operands[i], s.offsets[i]}));
    c10::SmallVector<uint64_t, 8> scalars;
    for (uint32_t scalar : s.scalars) scalars.push_back(scalars_[scalar]);
    const backend::KernelArgs args{ptrs.data(),
                                   s.sizes.data(),
                                   s.strides.data(),
                                   scalars.data(),
                                   s.grid.shared_bytes > 0 ? nullptr : scratch_,
                                   s.scratch_stride,
                                   0};
    thread_local std::vector<uint64_t> words;
    backend::cuda_parameters(program_.kernels[s.kernel], args, words);
    backend::cuda_launch(code_.functions[s.kernel], s.grid, words, stream_);
  }

  void step(const plan::ParallelStep& s) {
    for (const plan::KernelStep& launch : s.launches) step(launch);
  }

  void step(const plan::LoopStep& s) {
    plan::for_each_round(s, [this](const plan::KernelStep& launch) { step(launch); });
  }

  void step(const plan::ContractStep& s) {
    if (s.kind == ir::Product::Convolution) {
      convolution(s);
    } else {
      const auto [a, b, bias] = factors(s);
      at::Tensor out = tensor(s.result);
      product(s, out, a, b, bias);
    }
    for (const plan::KernelStep& launch : s.epilogue) step(launch);
  }

  const CudaCode& code_;
  const c10::Device device_;
  const c10::DeviceGuard guard_;
  const backend::CudaContextGuard context_;
  const uint64_t stream_;
  at::Tensor held_arena_, held_scratch_;
  char* scratch_ = nullptr;
};

}  // namespace

void Executable::load_on_cuda(c10::DeviceIndex device) {
  const c10::DeviceGuard guard(c10::Device(c10::DeviceType::CUDA, device));
  auto code = std::make_unique<CudaCode>();
  code->device = device;
  code->context = backend::cuda_context(device);
  const backend::CudaContextGuard current(code->context);
  for (const auto& kernel : kernels) code->functions.push_back(backend::cuda_function(*kernel, code->context));
  cuda = std::move(code);
}

void run_cuda(const Executable& executable, const at::Tensor* const* inputs, at::Tensor* const* given_up,
              const uint64_t* scalars, Tensors& outputs) {
  run_steps<CudaRun>(executable, executable.program, inputs, given_up, scalars, outputs);
}

}  // namespace fastjit::dispatch
