#pragma once
// autocast on this thread: what of it decides how an operator computes.
#include <ATen/autocast_mode.h>

#include <array>

namespace fastjit::capture {

/// The type that autocast casts to, per device; Undefined where it is off.
struct CastMode {
  c10::ScalarType cpu = c10::ScalarType::Undefined, cuda = c10::ScalarType::Undefined;
  bool operator==(const CastMode&) const = default;

  /// This thread's; a few ns.
  static CastMode now() {
    const auto of = [](c10::DeviceType device) {
      return at::autocast::is_autocast_enabled(device) ? at::autocast::get_autocast_dtype(device)
                                                       : c10::ScalarType::Undefined;
    };
    return {of(at::kCPU), of(at::kCUDA)};
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
  }
  ~CastScope() {
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
  bool cache_;
};

}  // namespace fastjit::capture
