#include "observe/doors.h"

#include "observe/libraries.h"
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include "observe/tracer.h"
#endif

namespace fastjit::observe {

#if FASTJIT_OBSERVES

DoorWatch::DoorWatch() {
  Tracer::resolve_callees();
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
  const Tracer::Callee* row = Tracer::find_callee(arg);
  if (!row || !*row->door()) return 0;
  try {
    PyCodeObject* code = PyFrame_GetCode(frame);
    watch->found_ = row->door() + callee_text(arg) + " at " + place_of(code, PyFrame_GetLineNumber(frame));
    Py_DECREF(code);
  } catch (const std::exception&) {  // no memory for the words
    watch->found_ = row->door();
  }
  return 0;
}

#else

DoorWatch::DoorWatch() = default;
DoorWatch::~DoorWatch() = default;
int DoorWatch::on_event(PyObject*, PyFrameObject*, int, PyObject*) noexcept { return 0; }

#endif

}  // namespace fastjit::observe
