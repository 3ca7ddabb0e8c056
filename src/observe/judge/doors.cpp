#include "observe/judge/doors.h"

#include "observe/known_functions.h"
#include "observe/libraries.h"
#include "observe/observe.h"

namespace fastjit::observe {

DoorWatch::DoorWatch(bool (*passes)()) : passes_(passes) {
  resolve_known_functions();
  if (tracer_active()) return;
  capsule_ = Ref::steal(PyCapsule_New(this, nullptr, nullptr));
  if (capsule_) PyEval_SetProfile(&on_event, capsule_.get());
}

DoorWatch::~DoorWatch() {
  if (capsule_ && PyThreadState_Get()->c_profilefunc == &on_event) PyEval_SetProfile(nullptr, nullptr);
}

int DoorWatch::on_event(PyObject* self, PyFrameObject* frame, int what, PyObject* arg) noexcept {
  auto* watch = static_cast<DoorWatch*>(PyCapsule_GetPointer(self, nullptr));
  if (what != PyTrace_C_CALL || !watch->found_.empty()) return 0;
  const std::string door = door_of(known_function(arg));
  if (door.empty() || watch->passes_()) return 0;
  try {
    PyCodeObject* code = PyFrame_GetCode(frame);
    watch->found_ = door + callee_text(arg) + " at " + place_of(code, PyFrame_GetLineNumber(frame));
    Py_DECREF(code);
  } catch (const std::exception&) {  // no memory for the words
    watch->found_ = door;
  }
  return 0;
}

}  // namespace fastjit::observe
