#include "dispatch/learn/torch_objects.h"

#include <ATen/SavedTensorHooks.h>
#include <Python.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "capture/record/cast_mode.h"
#include "dispatch/call/function.h"
#include "dispatch/call/spec.h"
#include "dispatch/run/backward.h"

namespace fastjit::dispatch {
namespace {

PyObject* module_type = nullptr;
PyObject* before_recording = nullptr;
PyObject* known_frames = nullptr;  // until the first recording

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

// The C functions that read or change the choice of kernels of scaled_dot_product_attention.
std::unordered_set<const void*>& attention_callees() {
  static auto* const table = new std::unordered_set<const void*>;
  return *table;
}

const observe::Setting* setting_of(PyObject* callable) {
  static const observe::Setting attention{"the choice of kernels for scaled_dot_product_attention",
                                          [] { return capture::AttentionMode::now().bits; },
                                          [](uint64_t bits) { capture::AttentionMode{bits}.apply(); }};
  return attention_callees().contains(identity(callable)) ? &attention : nullptr;
}

const observe::Setting* gradients_under() {
  // Bit 0: torch.autograd.detect_anomaly(); bit 1: hooks, which Python code alone can put back.
  static const observe::Setting autograd{"hooks for saved tensors or new nodes, or anomaly detection",
                                         []() -> uint64_t {
                                           const bool hooks = at::SavedTensorDefaultHooks::get_hooks().has_value() ||
                                                              nodes_are_watched();
                                           return uint64_t{torch::autograd::AnomalyMode::is_enabled()} | hooks * 2ULL;
                                         },
                                         [](uint64_t bits) { torch::autograd::AnomalyMode::set_enabled(bits & 1); }};
  return &autograd;
}

// Code of torch.ops' objects, each of which holds a function of its own that pybind11 made. Never freed.
std::vector<PyCodeObject*>& operator_callers() {
  static auto* const codes = new std::vector<PyCodeObject*>;
  return *codes;
}

bool called_by_operator_object(PyObject* callable) {
  PyFrameObject* frame = PyCFunction_Check(callable) ? PyEval_GetFrame() : nullptr;
  if (!frame) return false;
  PyCodeObject* code = PyFrame_GetCode(frame);
  Py_DECREF(code);  // its function holds it
  return std::ranges::find(operator_callers(), code) != operator_callers().end();
}

observe::Host::Callee classify(PyObject* callable) {
  const auto it = callees().find(identity(callable));
  if (it != callees().end()) return it->second;
  return called_by_operator_object(callable) ? observe::Host::Callee::Boxed : observe::Host::Callee::Unknown;
}

bool is_module(PyObject* object) { return is_module_class(Py_TYPE(object)); }

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
  host.setting_of = setting_of;
  host.gradients_under = gradients_under;
  host.unwrap = wrapped_callable;  // a nested compiled function runs its Python body while recording
  return host;
}

void register_callees(PyObject* operators, PyObject* pure, PyObject* callers, PyObject* attention) {
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(attention); ++i)
    attention_callees().insert(identity(PySequence_Fast_GET_ITEM(attention, i)));
  add_all(pure, observe::Host::Callee::Pure);
  add_all(operators, observe::Host::Callee::Operator);
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(callers); ++i) {
    PyObject* code = PyFunction_GetCode(PySequence_Fast_GET_ITEM(callers, i));
    operator_callers().push_back(reinterpret_cast<PyCodeObject*>(Py_NewRef(code)));
  }
}

void register_before_recording(PyObject* call) { before_recording = Py_IsNone(call) ? nullptr : Py_NewRef(call); }

void register_known_frames(PyObject* call) { known_frames = Py_NewRef(call); }

bool prepare_recording() {
  if (PyObject* call = std::exchange(known_frames, nullptr)) {
    PyObject* codes = PyObject_CallNoArgs(call);
    Py_DECREF(call);
    if (!codes) return false;
    observe::know_frames(codes);
    Py_DECREF(codes);
  }
  if (!before_recording) return true;
  PyObject* done = PyObject_CallNoArgs(before_recording);
  Py_XDECREF(done);
  return done != nullptr;
}

bool is_module_class(PyTypeObject* type) {
  return module_type && PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(module_type));
}

void register_module_type(PyObject* type) { module_type = Py_NewRef(type); }

}  // namespace fastjit::dispatch
