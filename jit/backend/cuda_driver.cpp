#include "backend/cuda_driver.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "backend/compiler.h"
#include "backend/nvrtc.h"

namespace fastjit::backend {
namespace {

// The functions of libcuda that are called: name, parameters. All give 0 for success.
#define CUDA_FUNCTIONS(F)                              \
  F(cuInit, (unsigned))                                \
  F(cuGetErrorString, (int, const char**))             \
  F(cuDeviceGet, (int*, int))                          \
  F(cuDeviceGetAttribute, (int*, int, int))            \
  F(cuDevicePrimaryCtxRetain, (void**, int))           \
  F(cuCtxGetCurrent, (void**))                         \
  F(cuCtxPushCurrent_v2, (void*))                      \
  F(cuCtxPopCurrent_v2, (void**))                      \
  F(cuModuleLoadData, (void**, const void*))           \
  F(cuModuleUnload, (void*))                           \
  F(cuModuleGetFunction, (void**, void*, const char*)) \
  F(cuLaunchKernel,                                    \
    (void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**))

struct Driver {
#define F(name, parameters) int(*name) parameters = nullptr;
  CUDA_FUNCTIONS(F)
#undef F
  std::string problem;
};

std::string words(const Driver& driver, int status) {
  const char* text = nullptr;
  if (driver.cuGetErrorString) driver.cuGetErrorString(status, &text);
  return text ? text : "error " + std::to_string(status);
}

Driver open_driver(const char* library) {
  Driver driver;
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    driver.problem = std::string("there is no CUDA driver (") + dlerror() + ")";
    return driver;
  }
  auto resolve = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (!function && driver.problem.empty()) driver.problem = std::string("the CUDA driver lacks ") + name;
  };
#define F(name, parameters) resolve(driver.name, #name);
  CUDA_FUNCTIONS(F)
#undef F
  if (!driver.problem.empty()) return driver;
  if (const int status = driver.cuInit(0)) driver.problem = "the CUDA driver does not start: " + words(driver, status);
  return driver;
}

const Driver& driver(const char* library = "libcuda.so.1") {
  static const Driver instance = open_driver(library);
  return instance;
}

const Driver& working_driver() {
  const Driver& api = driver();
  if (!api.problem.empty()) throw std::runtime_error(api.problem);
  return api;
}

void check(const Driver& api, int status, const char* what) {
  if (status) throw std::runtime_error(std::string(what) + " failed: " + words(api, status));
}

}  // namespace

// A module belongs to the context it was loaded in. Contexts end with the process, and so do modules that a kernel
// leaves behind in them: unloading needs the context to be current, and a launch may still be running.
struct CudaModules {
  std::mutex mutex;
  std::map<void*, void*> functions;  // context -> function
};

std::shared_ptr<CudaModules> make_cuda_modules() { return std::make_shared<CudaModules>(); }

std::string cuda_problem(const char* library) { return driver(library).problem; }

static int handle_of(const Driver& api, int device) {
  int handle = 0;
  check(api, api.cuDeviceGet(&handle, device), "finding the device");
  return handle;
}

int cuda_sm(int device) {
  constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
  const Driver& api = working_driver();
  const int handle = handle_of(api, device);
  int major = 0, minor = 0;
  check(api, api.cuDeviceGetAttribute(&major, kMajor, handle), "asking for the compute capability");
  check(api, api.cuDeviceGetAttribute(&minor, kMinor, handle), "asking for the compute capability");
  return 10 * major + minor;
}

CudaContext cuda_context(int device) {
  static std::mutex mutex;
  static std::map<int, CudaContext> contexts;
  const Driver& api = working_driver();
  const std::lock_guard lock(mutex);
  CudaContext& context = contexts[device];
  if (!context)
    check(api, api.cuDevicePrimaryCtxRetain(&context, handle_of(api, device)), "retaining the device's context");
  return context;
}

CudaContextGuard::CudaContextGuard(CudaContext context) {
  const Driver& api = working_driver();
  CudaContext current = nullptr;
  check(api, api.cuCtxGetCurrent(&current), "asking for the current context");
  if (current == context) return;
  check(api, api.cuCtxPushCurrent_v2(context), "making the context current");
  pushed_ = true;
}

CudaContextGuard::~CudaContextGuard() {
  CudaContext popped = nullptr;
  if (pushed_) driver().cuCtxPopCurrent_v2(&popped);
}

CudaFunction cuda_function(const Kernel& kernel, CudaContext context) {
  const auto* cuda = dynamic_cast<const CudaKernel*>(&kernel);
  if (!cuda) throw std::runtime_error("a CPU kernel has no function on a GPU");
  const Driver& api = working_driver();
  const std::lock_guard lock(cuda->modules->mutex);
  if (const auto found = cuda->modules->functions.find(context); found != cuda->modules->functions.end())
    return found->second;
  void* module = nullptr;
  CudaFunction function = nullptr;
  check(api, api.cuModuleLoadData(&module, cuda->cubin.data()), "loading a kernel");
  const int status = api.cuModuleGetFunction(&function, module, cuda->entry.c_str());
  if (status) api.cuModuleUnload(module);
  check(api, status, "finding the entry of a kernel");
  cuda->modules->functions.emplace(context, function);
  return function;
}

void cuda_parameters(const plan::KernelPlan& plan, const KernelArgs& args, std::vector<uint64_t>& words) {
  const size_t rank = plan.dims.size();
  words.clear();
  for (size_t i = 0; i < plan.operands.size(); ++i) words.push_back(reinterpret_cast<uint64_t>(args.ptrs[i]));
  for (size_t d = 0; d < rank; ++d) words.push_back(static_cast<uint64_t>(args.sizes[d]));
  for (int d = 0; d < plan.rank(); ++d)
    if (plan::is_divided(plan, d)) words.push_back(plan::divisor(plan::divided_size(plan, d, args.sizes)));
  for (size_t i = 0; i < plan.operands.size(); ++i)
    for (size_t d = 0; d < rank; ++d)
      if (plan.operands[i].strides[d] == plan::StrideClass::Any)
        words.push_back(static_cast<uint64_t>(args.strides[i * rank + d]));
  for (size_t i = 0; i < plan.operands.size(); ++i)
    if (plan.operands[i].gathered) words.push_back(static_cast<uint64_t>(args.strides[plan.step_of(i)]));
  for (size_t i = 0; i < plan.scalars.size(); ++i) words.push_back(args.scalars[i]);
  if (!plan.scratch.empty()) {
    words.push_back(reinterpret_cast<uint64_t>(args.scratch));
    words.push_back(static_cast<uint64_t>(args.scratch_stride));
  }
}

void cuda_launch(CudaFunction function, const plan::Grid& grid, std::span<const uint64_t> parameters, uint64_t stream) {
  if (grid.blocks == 0) return;
  const Driver& api = working_driver();
  void* arguments[] = {const_cast<uint64_t*>(parameters.data())};  // the driver copies it
  check(api,
        api.cuLaunchKernel(function, grid.blocks, 1, 1, grid.threads, 1, 1, grid.shared_bytes,
                           reinterpret_cast<void*>(stream), arguments, nullptr),
        "launching a kernel");
}

}  // namespace fastjit::backend
