// Entry points, present on every Python version.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include "observe/judge/tracer.h"
#endif

namespace fastjit::observe {

bool plain_stdout() noexcept {
  PyObject* out = PySys_GetObject("stdout");
  if (!out || out == Py_None) return true;
  if (Py_TYPE(out)->tp_getattro != PyObject_GenericGetAttr) return false;
  static PyObject* const name = PyUnicode_InternFromString("write");
  PyObject* of_class = _PyType_Lookup(Py_TYPE(out), name);
  if (!of_class || !Py_IS_TYPE(of_class, &PyMethodDescr_Type)) return false;
  PyObject* write = PyObject_GetAttr(out, name);  // an attribute of the object itself would come first
  const bool plain = write && PyCFunction_Check(write) && PyCFunction_GET_SELF(write) == out;
  Py_XDECREF(write);
  PyErr_Clear();
  return plain;
}

#if FASTJIT_OBSERVES

bool available() { return true; }
std::unique_ptr<Observer> make_observer(const Host& host) { return std::make_unique<Tracer>(host); }

#else
namespace {

/// Never starts.
class NoObserver final : public Observer {
 public:
  void watch_scalar(PyObject*, PyObject*, bool) override {}
  void vary(std::vector<NumberPlace>) override {}
  void describe(PyObject*) override {}
  void pass(PyObject*) override {}
  std::string refuses(PyObject*) override { return ""; }
  void give_up(const std::string&) override {}
  void watch_rehearsal(PyObject*) override {}
  bool start(PyObject*) override { return false; }
  Observation stop() override {
    Observation none;
    none.unsound = "this build has no read observer";
    return none;
  }
};

}  // namespace

bool tracer_active() noexcept {
  PyThreadState* state = PyThreadState_Get();
  return state->c_tracefunc || state->c_profilefunc;
}
bool available() { return false; }
void know_frames(PyObject*) {}
void after_fork_in_child() {}
std::unique_ptr<Observer> make_observer(const Host&) { return std::make_unique<NoObserver>(); }
#endif

}  // namespace fastjit::observe
