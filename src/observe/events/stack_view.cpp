#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include "observe/events/stack_view.h"

namespace fastjit::observe {

#if PY_VERSION_HEX < 0x030C0000

bool StackView::arrive(int, const unsigned char*, StackDepths&) {
  top_ = frame_->stacktop;
  return top_ >= 0;
}

#elif PY_VERSION_HEX < 0x030E0000

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

#else

bool StackView::arrive(int, const unsigned char*, StackDepths&) {
  if (!frame_->stackpointer) return false;
  top_ = static_cast<int>(frame_->stackpointer - frame_->localsplus);
  const PyCodeObject* code = code_of(frame_);
  return top_ >= code->co_nlocalsplus && top_ <= code->co_nlocalsplus + code->co_stacksize;
}

#endif

#if PY_VERSION_HEX < 0x030E0000

Args StackView::from(int n, int count) { return {frame_->localsplus + top_ - n, static_cast<size_t>(count)}; }

void StackView::replace(int n, PyObject* value) { Py_SETREF(frame_->localsplus[top_ - n], value); }

#else

Args StackView::from(int n, int count) {
  operands_.clear();
  for (int i = 0; i < count; ++i) operands_.push_back(at(n - i));
  return operands_;
}

void StackView::replace(int n, PyObject* value) {
  StackRef& place = frame_->localsplus[top_ - n];
  const StackRef old = std::exchange(place, StackRef(value));
  if (old.owns()) Py_DECREF(old.object());
}

#endif

}  // namespace fastjit::observe
#endif
