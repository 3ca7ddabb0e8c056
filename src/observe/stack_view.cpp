#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include "observe/stack_view.h"

namespace fastjit::observe {

#if PY_VERSION_HEX < 0x030C0000

bool StackView::arrive(int, const unsigned char*, StackDepths&) {
  top_ = frame_->stacktop;
  return top_ >= 0;
}

#else

bool StackView::arrive(int offset, const unsigned char* ops, StackDepths& known) {
  PyCodeObject* code = code_of(frame_);
  if (!depths_) {
    auto [it, is_new] = known.try_emplace(code);
    if (is_new) it->second = stack_depths(code, ops);
    depths_ = &it->second;
  }
  const int depth = (*depths_)[static_cast<size_t>(offset)];
  top_ = code->co_nlocalsplus + depth;
  return depth >= 0;
}

#endif

}  // namespace fastjit::observe
#endif
