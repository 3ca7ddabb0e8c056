#pragma once
// What every call asks of its thread, found in one look: thread-local storage of a shared library is behind a call, and
// torch's is in other libraries. Torch's places stay where they are for as long as the thread lives.
#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace fastjit::dispatch {

struct ThisThread {
  bool recording = false;  // nested functions run their Python body
  void* watch = nullptr;   // what looks at the calls that are made now: see parts.cpp
  const c10::impl::PODLocalDispatchKeySet* keys = nullptr;
  const c10::AutogradState* autograd = nullptr;
  const at::impl::PythonTorchFunctionTLS* functions = nullptr;
};

namespace thread_storage {
inline constinit thread_local ThisThread places;
}

inline ThisThread& this_thread() {
  ThisThread& thread = thread_storage::places;
  if (!thread.keys) [[unlikely]] {
    thread.autograd = &c10::AutogradState::get_tls_state();
    thread.functions = &at::impl::PythonTorchFunctionTLS::get_state();
    thread.keys = &c10::impl::raw_local_dispatch_key_set;
  }
  return thread;
}

}  // namespace fastjit::dispatch
