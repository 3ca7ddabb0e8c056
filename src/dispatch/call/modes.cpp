#include "dispatch/call/modes.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>

#include "capture/record/library.h"
#include "dispatch/call/this_thread.h"

namespace fastjit::dispatch {

// at::impl's functions that ask for these are two calls each. An explicit instantiation may name a private member
// ([temp.spec.general]/6); a torch without these does not compile.
using TorchFunctions = at::impl::PythonTorchFunctionTLS;
using DisabledState = at::impl::TorchFunctionDisabledState TorchFunctions::*;
using TorchFunctionModes = std::vector<std::shared_ptr<c10::SafePyObject>> TorchFunctions::*;
DisabledState disabled_state();
TorchFunctionModes torch_function_modes();
template <DisabledState State, TorchFunctionModes Modes>
struct TorchFunctionAccess {
  friend DisabledState disabled_state() { return State; }
  friend TorchFunctionModes torch_function_modes() { return Modes; }
};
template struct TorchFunctionAccess<&TorchFunctions::disabled_state_, &TorchFunctions::stack_>;

namespace {

enum Bit : uint32_t {
  Grad = 1,
  FwGrad = 2,
  Inference = 4,
  Deterministic = 8,
  TorchFunctionOff = 16,
  TorchFunctionMode = 32,
  // Flags that torch's Python code may read.
  Cudnn = 64,
  CudnnBenchmark = 128,
  CudnnDeterministic = 256,
  Mkldnn = 512,
  AutocastCache = 1024
};

constexpr int kAutocastOn = 0x80;  // beside the dtype that autocast has or would have

uint64_t usual_included, usual_excluded;

uint64_t raw(c10::DispatchKeySet set) { return set.raw_repr(); }

// Keys that no_grad, inference_mode and autocast switch, which programs may run under.
uint64_t allowed_changes() {
  static const uint64_t keys =
      raw(c10::autograd_dispatch_keyset | c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView) |
          c10::autocast_dispatch_keyset);
  return keys;
}

// As at::impl::torch_function_mode_enabled().
bool asks_modes(const TorchFunctions& functions) {
  return functions.*disabled_state() != at::impl::TorchFunctionDisabledState::ALL_DISABLED &&
         !(functions.*torch_function_modes()).empty();
}

}  // namespace

void init_modes() {
  usual_included = raw(this_thread().keys->included());
  usual_excluded = raw(this_thread().keys->excluded());
}

Modes current_modes() noexcept { return current_modes(this_thread()); }

Modes current_modes(const ThisThread& thread) noexcept {
  Modes modes;
  modes.included = raw(thread.keys->included());
  modes.excluded = raw(thread.keys->excluded());
  const c10::AutogradState& state = *thread.autograd;
  modes.bits = (state.get_grad_mode() ? Grad : 0u) | (state.get_fw_grad_mode() ? FwGrad : 0u) |
               (state.get_inference_mode() ? Inference : 0u);
  const at::Context& context = at::globalContext();
  modes.bits |= (context.deterministicAlgorithms() ? Deterministic : 0u) | (context.userEnabledCuDNN() ? Cudnn : 0u) |
                (context.benchmarkCuDNN() ? CudnnBenchmark : 0u) |
                (context.deterministicCuDNN() ? CudnnDeterministic : 0u) | (context.userEnabledMkldnn() ? Mkldnn : 0u);
  const bool functions_on = thread.functions->*disabled_state() == at::impl::TorchFunctionDisabledState::ENABLED;
  modes.bits |= (functions_on ? 0u : TorchFunctionOff) | (asks_modes(*thread.functions) ? TorchFunctionMode : 0u);
  modes.default_dtype = static_cast<uint16_t>(c10::get_default_dtype_as_scalartype());
  if (at::autocast::is_autocast_cache_enabled()) modes.bits |= AutocastCache;
  const bool is_usual = modes.included == usual_included && modes.excluded == usual_excluded;
  for (const auto& [device, shift] : {std::pair(at::kCPU, 0), std::pair(at::kCUDA, 8)}) {
    const int on = !is_usual && at::autocast::is_autocast_enabled(device) ? kAutocastOn : 0;
    modes.autocast |= static_cast<uint16_t>((on | static_cast<int>(at::autocast::get_autocast_dtype(device))) << shift);
  }
  modes.library = capture::library_state();
  return modes;
}

const char* unusual(const Modes& modes) noexcept {
  const uint64_t allowed = allowed_changes();
  if (((modes.included ^ usual_included) & ~allowed) || ((modes.excluded ^ usual_excluded) & ~allowed))
    return "a dispatch mode, tracer or torch.func transform is active";
  if (modes.bits & TorchFunctionMode) return "a torch function mode (such as a default device) is active";
  if (modes.bits & TorchFunctionOff) return "torch functions are disabled";
  return nullptr;
}

static std::string dtype_name(int dtype) {
  return std::string(c10::getDtypeNames(static_cast<c10::ScalarType>(dtype)).first);
}

static std::string autocast_name(int state) { return state & kAutocastOn ? dtype_name(state - kAutocastOn) : "off"; }

std::string difference(const Modes& then, const Modes& now) {
  constexpr struct {
    Bit bit;
    const char* name;
  } kNames[] = {{Inference, "inference mode"},
                {Grad, "grad mode"},
                {FwGrad, "forward-mode grad"},
                {Deterministic, "deterministic mode"},
                {Cudnn, "torch.backends.cudnn.enabled"},
                {CudnnBenchmark, "torch.backends.cudnn.benchmark"},
                {CudnnDeterministic, "torch.backends.cudnn.deterministic"},
                {Mkldnn, "torch.backends.mkldnn.enabled"},
                {AutocastCache, "the cache of autocast"}};
  for (const auto& [bit, name] : kNames)
    if ((then.bits ^ now.bits) & bit)
      return name + std::string(then.bits & bit ? " was on, is off" : " was off, is on");
  if (then.default_dtype != now.default_dtype)
    return "the default dtype was " + dtype_name(then.default_dtype) + ", is " + dtype_name(now.default_dtype);
  for (const auto& [device, shift] : {std::pair("cpu", 0), std::pair("cuda", 8)}) {
    const int was = then.autocast >> shift & 0xFF, is = now.autocast >> shift & 0xFF;
    if (was != is && !((was | is) & kAutocastOn))
      return std::string("the dtype for autocast on ") + device + " was " + dtype_name(was) + ", is " + dtype_name(is);
    if (was != is)
      return std::string("autocast on ") + device + " was " + autocast_name(was) + ", is " + autocast_name(is);
  }
  if (then.library != now.library) return "torch.library has registered or dropped a kernel of an aten operator";
  return "the thread's dispatch keys differ";
}

}  // namespace fastjit::dispatch
