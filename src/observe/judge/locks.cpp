// Locks that the call takes and gives back. A hit takes none: its facts are compared at one moment, in which they hold
// as they did for who held the lock.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>
#include <cstring>

#include "observe/judge/tracer.h"

namespace fastjit::observe {

bool Tracer::is_lock(PyObject* o) {
  static const PyTypeObject* const plain = type_named("_thread", "LockType");
  static const PyTypeObject* const reentrant = type_named("_thread", "RLock");
  return Py_TYPE(o) == plain || Py_TYPE(o) == reentrant;
}

// Whether one could be taken at once says what other threads do.
void Tracer::judge_lock(PyObject* callee, Args args) {
  const PyMethodDef* method = PyCFunction_Check(callee) ? reinterpret_cast<PyCFunctionObject*>(callee)->m_ml
                              : Py_IS_TYPE(callee, &PyMethodDescr_Type)
                                  ? reinterpret_cast<PyMethodDescrObject*>(callee)->d_method
                                  : nullptr;
  const char* name = method ? method->ml_name : "";
  const bool takes = !std::strcmp(name, "acquire"), enters = !std::strcmp(name, "__enter__");
  if (!*name || args.empty() || (takes && args.size() > 1)) return deny("call of " + callee_text(callee));
  int& held = locks_[args[0]];
  held += takes || enters ? 1 : -1;
  if (held < 0) deny("release of a lock that the call did not take");
}

bool Tracer::locks_are_given_back() const {
  return std::ranges::all_of(locks_, [](const auto& lock) { return lock.second == 0; });
}

}  // namespace fastjit::observe
#endif
