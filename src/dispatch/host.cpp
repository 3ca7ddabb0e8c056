#include "dispatch/host.h"

#include <Python.h>

#include <unordered_map>

#include "dispatch/function.h"
#include "dispatch/spec.h"

namespace fastjit::dispatch {
namespace {

PyObject* module_type = nullptr;

// C functions by their definition (shared by every bound form), other callables by object. Never freed: definitions are
// static.
std::unordered_map<const void*, observe::Host::Callee>& callees() {
  static auto* const table = new std::unordered_map<const void*, observe::Host::Callee>;
  return *table;
}

const void* identity(PyObject* callable) {
  if (PyCFunction_Check(callable)) return reinterpret_cast<PyCFunctionObject*>(callable)->m_ml;
  if (Py_IS_TYPE(callable, &PyMethodDescr_Type)) return reinterpret_cast<PyMethodDescrObject*>(callable)->d_method;
  if (Py_IS_TYPE(callable, &PyWrapperDescr_Type)) return reinterpret_cast<PyWrapperDescrObject*>(callable)->d_base;
  return callable;
}

observe::Host::Callee classify(PyObject* callable) {
  const auto it = callees().find(identity(callable));
  return it == callees().end() ? observe::Host::Callee::Unknown : it->second;
}

bool is_module(PyObject* object) {
  return module_type && PyType_IsSubtype(Py_TYPE(object), reinterpret_cast<PyTypeObject*>(module_type));
}

void add_all(PyObject* sequence, observe::Host::Callee callee) {
  const Py_ssize_t n = PySequence_Fast_GET_SIZE(sequence);
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* callable = PySequence_Fast_GET_ITEM(sequence, i);
    const void* id = identity(callable);
    if (id == callable) Py_INCREF(callable);  // its address must stay its own
    callees()[id] = callee;
  }
}

}  // namespace

observe::Host torch_host() {
  observe::Host host;
  host.is_tensor = [](PyObject* object) { return is_plain_tensor(object); };
  host.is_module = is_module;
  host.classify = classify;
  host.unwrap = wrapped_callable;  // a nested compiled function runs its Python body while recording
  return host;
}

void register_callees(PyObject* operators, PyObject* pure) {
  add_all(pure, observe::Host::Callee::Pure);
  add_all(operators, observe::Host::Callee::Operator);
}

void register_module_type(PyObject* type) { module_type = Py_NewRef(type); }

}  // namespace fastjit::dispatch
