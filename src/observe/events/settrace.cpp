// Events of CPython 3.11: a trace function. The stack pointer is saved in the frame at each of them.
#include "observe/observe.h"

#if FASTJIT_OBSERVES && PY_VERSION_HEX < 0x030C0000
#include "observe/errors.h"
#include "observe/events/driver.h"
#include "support/error.h"

namespace fastjit::observe {
namespace {

int offset_of(const InterpreterFrame* frame) {
  return static_cast<int>(frame->prev_instr - reinterpret_cast<_Py_CODEUNIT*>(frame->code->co_code_adaptive));
}

void dispatch(Driver& driver, PyFrameObject* object, int what, PyObject* arg) {
  auto* view = reinterpret_cast<FrameObject*>(object);
  switch (what) {
    case PyTrace_CALL:
      view->trace_lines = 0;
      view->trace_opcodes = driver.enter(view->frame, offset_of(view->frame));
      return;
    case PyTrace_OPCODE:
      return driver.instruction(view->frame, offset_of(view->frame));
    case PyTrace_RETURN:
      return driver.leave(view->frame);
    case PyTrace_EXCEPTION:
      return driver.raised(arg && PyTuple_Check(arg) ? PyTuple_GET_ITEM(arg, 0) : nullptr);
    default:
      return;
  }
}

int raise_stop() {
  PyErr_SetString(PyExc_RuntimeError, kStopped);
  return -1;
}

int on_event(PyObject*, PyFrameObject* frame, int what, PyObject* arg) noexcept {
  Driver* driver = Driver::current();
  if (!driver || !driver->listens()) return 0;
  try {
    if (!driver->stops()) dispatch(*driver, frame, what, arg);
  } catch (const std::exception& e) {
    driver->unsound("the observer failed: " + support::first_line(e));
  }
  driver->tell_unsound();
  forget_error();
  const bool may_raise = what == PyTrace_OPCODE || what == PyTrace_CALL;
  return driver->stops() && may_raise ? raise_stop() : 0;
}

}  // namespace

bool tracer_active() noexcept {
  PyThreadState* state = PyThreadState_Get();
  return state->c_tracefunc || state->c_profilefunc;
}

bool Driver::start_events() {
  PyEval_SetTrace(&on_event, nullptr);
  return true;
}

bool Driver::stop_events() {
  const bool ours = PyThreadState_Get()->c_tracefunc == &on_event || !reason_.empty();
  if (PyThreadState_Get()->c_tracefunc == &on_event) PyEval_SetTrace(nullptr, nullptr);
  return ours;
}

bool Driver::resume_events() { return !tracer_active() && start_events(); }

// Another observer may watch what the rest of the call calls.
void Driver::pause_events() {
  PyEval_SetTrace(nullptr, nullptr);
  if (active_) end_observation();
}

}  // namespace fastjit::observe
#endif
