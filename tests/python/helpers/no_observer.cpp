// What src/dispatch uses of the observer: linked where there is none, see test_python_builds.py.
#include "observe/judge/doors.h"
#include "observe/known_functions.h"
#include "observe/libraries.h"
#include "observe/observe.h"

using namespace fastjit::observe;

extern "C" __attribute__((visibility("default"))) PyObject* what_it_says() {
  set_library_folders({}, {});
  after_fork_in_child();
  const auto observer = make_observer({});
  observer->watch_scalar(Py_None);
  observer->describe(Py_None);
  observer->pass(Py_None);
  observer->watch_rehearsal(Py_None);
  const bool is_there =
      available() || tracer_active() || observer->start(Py_None) || !observer->refuses(Py_None).empty();
  SideEffect effect(SideEffect::Kind::SetItem);
  effect.value = Ref::share(Py_None);
  Derivation derivation;
  derivation.unary = PyNumber_Negative;
  Ref number = Ref::steal(PyLong_FromLong(1000));
  PyObject* operand = number.get();
  Ref negative = Ref::steal(derivation.compute(&operand));
  Ref own = Ref::steal(own_copy(number.get()));
  DoorWatch doors([] { return false; });
  plain_stdout();
  const bool is_known = known_function(reinterpret_cast<PyObject*>(&PyLong_Type)) >= 0;
  if (is_there || effect.text().empty() || words(negative.get()) != "-1000" || !own || !is_known)
    return PyUnicode_FromString("wrong");
  return PyUnicode_FromString(observer->stop().unsound.c_str());
}
