#pragma once
// Modes beside those of the call key that decide how an operator computes: autocast on this thread, and which kernels
// scaled_dot_product_attention may choose.
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

#include <array>
#include <vector>

namespace fastjit::capture {

/// torch.nn.attention.sdpa_kernel, a setting of the process.
struct AttentionMode {
  uint64_t bits = 0;  // one for each kernel that may be chosen, then their order of priority
  bool operator==(const AttentionMode&) const = default;

  static AttentionMode now() {
    at::Context& context = at::globalContext();
    uint64_t bits = (context.userEnabledFlashSDP() ? 1u : 0u) | (context.userEnabledMathSDP() ? 2u : 0u) |
                    (context.userEnabledMemEfficientSDP() ? 4u : 0u) | (context.userEnabledCuDNNSDP() ? 8u : 0u) |
                    (context.userEnabledOverrideableSDP() ? 16u : 0u);
    int shift = kFlags;
    for (const at::SDPBackend kernel : context.sDPPriorityOrder()) {
      bits |= (static_cast<uint64_t>(kernel) & kMask) << shift;
      shift += kBitsOfKernel;
    }
    return {bits};
  }

  void apply() const {
    at::Context& context = at::globalContext();
    context.setSDPUseFlash(bits & 1);
    context.setSDPUseMath(bits & 2);
    context.setSDPUseMemEfficient(bits & 4);
    context.setSDPUseCuDNN(bits & 8);
    context.setSDPUseOverrideable(bits & 16);
    std::vector<int64_t> order;
    for (size_t i = 0; i < context.sDPPriorityOrder().size(); ++i)
      order.push_back(static_cast<int64_t>(bits >> (kFlags + i * kBitsOfKernel) & kMask));
    context.setSDPPriorityOrder(order);
  }

 private:
  static constexpr int kFlags = 5, kBitsOfKernel = 4;
  static constexpr uint64_t kMask = 15;
};

/// The type that autocast casts to, per device; Undefined where it is off.
struct CastMode {
  c10::ScalarType cpu = c10::ScalarType::Undefined, cuda = c10::ScalarType::Undefined;
  AttentionMode attention{};
  bool operator==(const CastMode&) const = default;

  /// This thread's; a few ns.
  static CastMode now() {
    const auto of = [](c10::DeviceType device) {
      return at::autocast::is_autocast_enabled(device) ? at::autocast::get_autocast_dtype(device)
                                                       : c10::ScalarType::Undefined;
    };
    return {of(at::kCPU), of(at::kCUDA), AttentionMode::now()};
  }
  /// The same without autocast: as torch asks its users to run backward().
  static CastMode of_backward() {
    CastMode mode = now();
    mode.cpu = mode.cuda = c10::ScalarType::Undefined;
    return mode;
  }
};

/// Runs a scope under another mode than the caller's. Casts are not kept for later operators: what a weight was cast to
/// would outlive the block of the user's in which autocast drops it.
class CastScope {
 public:
  explicit CastScope(const CastMode& mode) : cache_(at::autocast::is_autocast_cache_enabled()) {
    for (size_t i = 0; i < kDevices.size(); ++i) {
      const c10::ScalarType dtype = i ? mode.cuda : mode.cpu;
      before_[i] = {at::autocast::is_autocast_enabled(kDevices[i]), at::autocast::get_autocast_dtype(kDevices[i])};
      set(kDevices[i], dtype != c10::ScalarType::Undefined,
          dtype != c10::ScalarType::Undefined ? dtype : before_[i].dtype);
    }
    at::autocast::set_autocast_cache_enabled(false);
    changes_attention_ = mode.attention != attention_;
    if (changes_attention_) mode.attention.apply();
  }
  ~CastScope() {
    if (changes_attention_) attention_.apply();
    at::autocast::set_autocast_cache_enabled(cache_);
    for (size_t i = 0; i < kDevices.size(); ++i) set(kDevices[i], before_[i].on, before_[i].dtype);
  }
  CastScope(const CastScope&) = delete;
  CastScope& operator=(const CastScope&) = delete;

 private:
  static constexpr std::array kDevices{at::kCPU, at::kCUDA};
  struct State {
    bool on;
    c10::ScalarType dtype;
  };
  static void set(c10::DeviceType device, bool on, c10::ScalarType dtype) {
    at::autocast::set_autocast_enabled(device, on);
    at::autocast::set_autocast_dtype(device, dtype);
  }
  std::array<State, kDevices.size()> before_;
  bool cache_, changes_attention_ = false;
  AttentionMode attention_ = AttentionMode::now();
};

}  // namespace fastjit::capture
