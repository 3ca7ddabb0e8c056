// A stand-in for a CUDA device under a CPU build of torch: tensors that say they are on cuda:N, in host memory. Every
// operator on them runs torch's CPU kernel on the same memory. Loaded by tests with torch.ops.load_library.
//   fake_cuda::to(x, index)       a copy of a CPU tensor, as a tensor on cuda:<index>
//   fake_cuda::cpu(x)             a copy back
//   fake_cuda::set_stream(handle) the current stream of every device
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <unordered_map>

namespace {

constexpr c10::DeviceType kCuda = c10::DeviceType::CUDA;
thread_local c10::DeviceIndex current_device = 0;
int64_t current_stream = 0;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kCuda; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device old = getDevice();
    current_device = device.index();
    return old;
  }
  c10::Device getDevice() const override { return {kCuda, current_device}; }
  void setDevice(c10::Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = device.index(); }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, current_stream);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return getStream(stream.device()); }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return reinterpret_cast<void*>(stream.id()); }
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

// Autograd asks which accelerator there is.
struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override { return 2; }
  // Its operators run torch's for the CPU, and draw from this one.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
};
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
REGISTER_CUDA_HOOKS(CUDAHooks);

at::Tensor tensor_on(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
  at::Tensor tensor =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
  tensor.unsafeGetTensorImpl()->set_storage_offset(like.storage_offset());
  return tensor;
}

// The same memory under another device's name.
c10::Storage storage_on(const c10::Storage& storage, c10::Device device) {
  auto* held = new c10::Storage(storage);
  c10::DataPtr data(storage.mutable_data(), held, [](void* p) { delete static_cast<c10::Storage*>(p); }, device);
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                            static_cast<size_t>(storage.nbytes()), std::move(data),
                                                            c10::GetAllocator(c10::kCPU), true));
}

// One operator: what stands for what.
struct Call {
  std::unordered_map<const c10::TensorImpl*, at::Tensor> tensors;      // host alias -> device tensor
  std::unordered_map<const c10::StorageImpl*, c10::Storage> storages;  // host alias -> device storage
  std::unordered_map<const c10::StorageImpl*, c10::Storage> aliases;   // device storage -> host alias
  c10::Device device{kCuda, current_device};

  at::Tensor to_host(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    device = tensor.device();
    c10::Storage& alias = aliases[tensor.storage().unsafeGetStorageImpl()];
    if (!alias) {
      alias = storage_on(tensor.storage(), c10::Device(c10::kCPU));
      storages[alias.unsafeGetStorageImpl()] = tensor.storage();
    }
    at::Tensor host = tensor_on(alias, c10::DispatchKey::CPU, tensor);
    tensors[host.unsafeGetTensorImpl()] = tensor;
    return host;
  }

  at::Tensor to_device(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.device().is_cpu()) return tensor;
    const auto known = tensors.find(tensor.unsafeGetTensorImpl());
    if (known != tensors.end()) {
      c10::TensorImpl* impl = known->second.unsafeGetTensorImpl();
      if (impl->sizes() != tensor.sizes()) {  // an out= argument took its size
        impl->set_storage_keep_dtype(storage_on(tensor.storage(), device));
        impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
      }
      return known->second;
    }
    const auto view = storages.find(tensor.storage().unsafeGetStorageImpl());
    return tensor_on(view != storages.end() ? view->second : storage_on(tensor.storage(), device),
                     c10::DispatchKey::CUDA, tensor);
  }

  template <class Map>
  static c10::IValue mapped(const c10::IValue& value, Map map) {
    if (value.isTensor()) return map(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(map(tensor));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList())
        list.push_back(tensor ? std::optional(map(*tensor)) : std::nullopt);
      return list;
    }
    return value;
  }
};

void on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call call;
  const size_t first = stack->size() - op.schema().arguments().size();
  for (size_t i = first; i < stack->size(); ++i) {
    c10::IValue& value = (*stack)[i];
    if (value.isDevice() && value.toDevice().is_cuda()) {
      if (value.toDevice().has_index()) call.device = value.toDevice();
      value = c10::Device(c10::kCPU);
    }
    value = Call::mapped(value, [&](const at::Tensor& tensor) { return call.to_host(tensor); });
  }
  const at::DisableRecordFunctionGuard one_kernel;  // what it runs on the host no observer sees
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i)
    (*stack)[i] = Call::mapped((*stack)[i], [&](const at::Tensor& tensor) { return call.to_device(tensor); });
}

at::Tensor to(const at::Tensor& x, int64_t index) {
  const at::Tensor copy = x.clone();
  const c10::Device device(kCuda, static_cast<c10::DeviceIndex>(index));
  return tensor_on(storage_on(copy.storage(), device), c10::DispatchKey::CUDA, copy);
}

at::Tensor cpu(const at::Tensor& x) {
  return tensor_on(storage_on(x.storage(), c10::Device(c10::kCPU)), c10::DispatchKey::CPU, x).clone();
}

}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_host>()); }

// Composite kernels that look for a CUDA kernel by the device's type, or that a device has its own kernel for.
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("copy_", torch::CppFunction::makeFromBoxedFunction<&on_host>());
  // One kernel for all tensors of a list.
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames())
    if (name.name.starts_with("aten::_foreach_"))
      m.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&on_host>());
}

TORCH_LIBRARY(fake_cuda, m) {
  m.def("to(Tensor x, int index=0) -> Tensor", to);
  m.def("cpu(Tensor x) -> Tensor", cpu);
  m.def("set_stream(int handle) -> ()", [](int64_t handle) { current_stream = handle; });
}
