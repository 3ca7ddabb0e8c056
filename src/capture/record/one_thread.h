#pragma once
// Where autograd goes back while a call is recorded.
#include <c10/core/AutogradState.h>

namespace fastjit::capture {

/// While it stands, autograd goes back on this thread, with tensors of a CUDA device too, for which it has a thread of
/// its own: operators there are recorded, and Python code is watched.
class OneThread {
 public:
  OneThread() { state().set_multithreading_enabled(false); }
  ~OneThread() {
    if (!ended_) end();
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  /// May be called again, where autograd has put back the state that it began with.
  void end() noexcept {
    state().set_multithreading_enabled(before_);
    ended_ = true;
  }

 private:
  static c10::AutogradState& state() noexcept { return c10::AutogradState::get_tls_state(); }
  const bool before_ = state().get_multithreading_enabled();
  bool ended_ = false;
};

}  // namespace fastjit::capture
