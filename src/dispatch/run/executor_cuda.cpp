// A program on a CUDA device: kernels through the driver on torch's current stream, memory from torch's allocator, so
// that what torch says of streams and memory holds here as well. Everything that torch has for CUDA is reached through
// its device-generic interfaces: the extension is the same one for a torch without CUDA.
#include <ATen/EmptyTensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>

#include <unordered_map>

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

  // From torch's allocator, without the dispatcher before it. Given back there; what the stream still runs keeps its
  // order.
  c10::DataPtr allocate(size_t bytes) const {
    if (code_.allocator) return code_.allocator->allocate(bytes);
    auto* held = new at::Tensor(at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(device_).dtype(at::kByte)));
    return {held->mutable_data_ptr(), held, [](void* tensor) { delete static_cast<at::Tensor*>(tensor); }, device_};
  }

  char* bytes(int64_t count, c10::DataPtr& held) const {
    if (count == 0) return nullptr;
    held = allocate(static_cast<size_t>(count));
    return static_cast<char*>(held.get());
  }

  void drop_arena() { held_arena_.clear(); }
  char* take_arena() { return bytes(program_.arena_bytes, held_arena_); }
  void take_over(Stopped& from) { numbers_ = std::move(from.numbers); }
  void hand_over(Stopped& at) { at.numbers = std::move(numbers_); }

  at::Tensor empty(const plan::Slot& s) const {
    const at::ScalarType dtype = capture::to_torch(s.dtype);
    const size_t bytes = at::detail::computeStorageNbytes(s.sizes, s.strides, c10::elementSize(dtype));
    c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, allocate(bytes), code_.allocator,
                         code_.allocator != nullptr);
    at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::scalarTypeToTypeMeta(dtype));
    t.unsafeGetTensorImpl()->set_sizes_and_strides(s.sizes, s.strides);
    return t;
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

  // Where a number of Python's is: on the host.
  double* number(plan::SlotId id) {
    if (slot(id).kind == SlotKind::Temp) return &numbers_[id];
    return static_cast<double*>(tensor(id).mutable_data_ptr());
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
  c10::DataPtr held_arena_, held_scratch_;
  char* scratch_ = nullptr;
  std::unordered_map<plan::SlotId, double> numbers_;
};

}  // namespace

void Executable::load_on_cuda(c10::DeviceIndex device) {
  const c10::DeviceGuard guard(c10::Device(c10::DeviceType::CUDA, device));
  auto code = std::make_unique<CudaCode>();
  code->device = device;
  code->context = backend::cuda_context(device);
  code->allocator = c10::GetAllocator(c10::DeviceType::CUDA);
  const backend::CudaContextGuard current(code->context);
  for (const auto& kernel : kernels) code->functions.push_back(backend::cuda_function(*kernel, code->context));
  cuda = std::move(code);
}

void run_cuda(const Executable& executable, const at::Tensor* const* inputs, at::Tensor* const* given_up,
              const uint64_t* scalars, Tensors& outputs) {
  run_steps<CudaRun>(executable, executable.program, inputs, given_up, scalars, outputs);
}

void run_part_cuda(const Executable& executable, const at::Tensor* const* inputs, at::Tensor* const* given_up,
                   const uint64_t* scalars, const Part& part, Stopped& at, Tensors& outputs) {
  run_part_on<CudaRun>(executable, executable.program, inputs, given_up, scalars, part, at, outputs);
}

bool run_checked_cuda(const Executable& executable, const at::Tensor* const* inputs, const uint64_t* scalars,
                      Tensors& outputs, ValueCheck& check) {
  return run_checked_on<CudaRun>(executable, executable.program, inputs, scalars, outputs, check);
}

}  // namespace fastjit::dispatch
