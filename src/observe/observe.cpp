// Entry points, present on every Python version.
#include "observe/observe.h"

#if PY_VERSION_HEX < 0x030C0000
#include "observe/tracer.h"
#endif

namespace fastjit::observe {

bool tracer_active() noexcept {
  PyThreadState* state = PyThreadState_Get();
  return state->c_tracefunc || state->c_profilefunc;
}

#if PY_VERSION_HEX < 0x030C0000

bool available() { return true; }
std::unique_ptr<Observer> make_observer(const Host& host) { return std::make_unique<Tracer>(host); }

#else
namespace {

/// Never starts: this Python version has no read observer.
class NoObserver final : public Observer {
 public:
  void watch_scalar(PyObject*) override {}
  bool start(PyObject*) override { return false; }
  Observation stop() override { return {nullptr, "no read observer for this Python version", {}}; }
};

}  // namespace

bool available() { return false; }
std::unique_ptr<Observer> make_observer(const Host&) { return std::make_unique<NoObserver>(); }
#endif

}  // namespace fastjit::observe
