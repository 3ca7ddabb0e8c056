// Events of CPython 3.12 and later: a tool of sys.monitoring with callbacks in C. Its events reach every thread; the
// callbacks look only at frames of threads that are observed.
#include "observe/observe.h"

#if FASTJIT_OBSERVES && PY_VERSION_HEX >= 0x030C0000
#include <unistd.h>

#include <chrono>
#include <set>
#include <thread>

#include "observe/errors.h"
#include "observe/events/driver.h"
#include "support/error.h"

namespace fastjit::observe {
namespace {

constexpr int kTool = 4;        // one of those without a fixed purpose
constexpr int kOtherTools = 6;  // ids that anyone may claim; settrace and setprofile have the two above them
constexpr int kCodeUnit = 2;    // bytes
const char* const kToolName = "fastjit";

int claims = 0, listeners = 0;  // observers that have the tool, and those of them that want events; GIL held

using Handler = void (*)(Driver& driver, InterpreterFrame* frame, int offset, PyObject* argument);

void on_enter(Driver& driver, InterpreterFrame* frame, int offset, PyObject*) { driver.enter(frame, offset); }
void on_instruction(Driver& driver, InterpreterFrame* frame, int offset, PyObject*) {
  driver.instruction(frame, offset);
}
void on_leave(Driver& driver, InterpreterFrame* frame, int, PyObject*) { driver.leave(frame); }
void on_raise(Driver& driver, InterpreterFrame*, int, PyObject* exception) {
  driver.raised(exception ? reinterpret_cast<PyObject*>(Py_TYPE(exception)) : nullptr);
}

template <Handler handle>
PyObject* on_event(PyObject*, PyObject* const* args, Py_ssize_t count) noexcept {
  Driver* driver = Driver::current();
  if (!driver || !driver->listens()) Py_RETURN_NONE;
  try {
    const int offset = static_cast<int>(PyLong_AsLong(args[1])) / kCodeUnit;
    InterpreterFrame* frame = current_frame(PyThreadState_Get());
    const bool is_known = reinterpret_cast<PyObject*>(code_of(frame)) == args[0];
    if (is_known && !driver->stops()) handle(*driver, frame, offset, count > 2 ? args[2] : nullptr);
    if (!is_known) driver->unsound("the observer does not know this interpreter's frames");
  } catch (const std::exception& e) {
    driver->unsound("the observer failed: " + support::first_line(e));
  }
  driver->tell_unsound();
  forget_error();
  constexpr bool kMayRaise = handle == &on_enter || handle == &on_instruction;
  if (kMayRaise && driver->stops()) return PyErr_SetString(PyExc_RuntimeError, kStopped), nullptr;
  Py_RETURN_NONE;
}

struct Event {
  const char* name;
  PyMethodDef callback;
};

template <Handler handle>
Event event(const char* name) {
  return {name, {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&on_event<handle>)), METH_FASTCALL, ""}};
}

Event events[] = {event<on_enter>("PY_START"),  event<on_enter>("PY_RESUME"),        event<on_enter>("PY_THROW"),
                  event<on_leave>("PY_RETURN"), event<on_leave>("PY_YIELD"),         event<on_leave>("PY_UNWIND"),
                  event<on_raise>("RAISE"),     event<on_instruction>("INSTRUCTION")};

PyObject* monitoring() { return PySys_GetObject("monitoring"); }  // borrowed

/// One thread at a time sets the tool up or takes it down, first come, first served: both call audit hooks, which may
/// be Python code and let other threads run. `mine()` is false inside such a hook, and where the others take too long.
/// All that is static here is used with the GIL held.
class Turn {
 public:
  Turn() {
    if (process != getpid()) {  // a child has none of its parent's threads
      process = getpid();
      serving = issued;
      owner = 0;
      left.clear();
    }
    const unsigned long self = PyThread_get_thread_ident();
    if (owner == self) return;
    const uint64_t ticket = issued++;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    while (serving != ticket) {
      if (std::chrono::steady_clock::now() > deadline) {
        left.insert(ticket);
        return;
      }
      Py_BEGIN_ALLOW_THREADS;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      Py_END_ALLOW_THREADS;
    }
    mine_ = true;
    owner = self;
  }
  ~Turn() {
    if (!mine_) return;
    owner = 0;
    ++serving;
    while (left.erase(serving)) ++serving;
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  bool mine() const { return mine_; }

 private:
  static inline uint64_t issued = 0, serving = 0;
  static inline std::set<uint64_t> left;  // tickets of those that waited too long
  static inline unsigned long owner = 0;
  static inline pid_t process = 0;
  bool mine_ = false;
};

/// Puts the exception that is on its way aside while the tool is set up or taken down.
class KeepError {
 public:
  KeepError() : error_(PyErr_GetRaisedException()) {}
  ~KeepError() { PyErr_SetRaisedException(error_); }
  KeepError(const KeepError&) = delete;
  KeepError& operator=(const KeepError&) = delete;

 private:
  PyObject* error_;
};

Ref call(const char* method, const char* format, auto... values) {
  Ref result = Ref::steal(PyObject_CallMethod(monitoring(), method, format, values...));
  if (!result) PyErr_Clear();
  return result;
}

long event_bit(const char* name) {
  Ref all = Ref::steal(PyObject_GetAttrString(monitoring(), "events"));
  Ref bit = all ? Ref::steal(PyObject_GetAttrString(all.get(), name)) : Ref();
  if (!bit) return PyErr_Clear(), 0;
  return PyLong_AsLong(bit.get());
}

void release() {
  for (const Event& one : events) call("register_callback", "ilO", kTool, event_bit(one.name), Py_None);
  call("free_tool_id", "i", kTool);
}

bool claim() {
  if (!call("use_tool_id", "is", kTool, kToolName)) return false;
  for (Event& one : events) {
    Ref callback = Ref::steal(PyCFunction_New(&one.callback, nullptr));
    if (!callback || !call("register_callback", "ilO", kTool, event_bit(one.name), callback.get()))
      return release(), false;
  }
  return true;
}

// False too where the version does not tell of it: then nothing would tell of other tools.
bool listen(bool on) {
  long set = 0;
  for (const Event& one : events) set |= on ? event_bit(one.name) : 0;
  const uint64_t before = monitoring_version(PyThreadState_Get());
  return call("set_events", "il", kTool, set) && monitoring_version(PyThreadState_Get()) != before;
}

/// The tool counts as the observer's until it is given back.
void drop_claim() {
  if (claims == 1) release();
  --claims;
}

bool is_claimed(int tool) {
  Ref name = call("get_tool", "i", tool);
  return name && name.get() != Py_None;
}

bool others_claimed() {
  for (int tool = 0; tool < kOtherTools; ++tool)
    if (!(tool == kTool && claims) && is_claimed(tool)) return true;
  return false;
}

}  // namespace

// Tools that set events for all code move the version: between two moves none begins. A tool that gives its id back
// after its events moves nothing.
bool tracer_active() noexcept {
  static uint64_t free_at = UINT64_MAX;  // the version at which no other tool was there
  PyThreadState* state = PyThreadState_Get();
  if (state->c_tracefunc || state->c_profilefunc) return true;
  const uint64_t version = monitoring_version(state);
  if (version == free_at) return false;
  if (others_claimed()) return true;
  free_at = version;
  return false;
}

bool Driver::start_events() {
  const KeepError keep;
  const Turn turn;
  if (!turn.mine() || others_claimed()) return false;  // also one that watches single functions only
  if (!claims++ && !claim()) return --claims, false;
  if (!listeners && !listen(true)) {
    listen(false);
    drop_claim();
    return false;
  }
  ++listeners;
  hears_ = true;
  return true;
}

void Driver::pause_events() {
  const KeepError keep;
  const Turn turn;
  if (std::exchange(hears_, false) && !--listeners) listen(false);
}

bool Driver::resume_events() {
  const KeepError keep;
  const Turn turn;
  if (!hears_ && (!turn.mine() || (!listeners && !listen(true)))) return false;
  if (!std::exchange(hears_, true)) ++listeners;
  return true;
}

bool Driver::stop_events() {
  const KeepError keep;
  PyThreadState* state = PyThreadState_Get();
  const bool ours = !state->c_tracefunc && !state->c_profilefunc && !others_claimed() && is_claimed(kTool);
  pause_events();
  const Turn turn;
  drop_claim();
  return ours;
}

}  // namespace fastjit::observe
#endif
