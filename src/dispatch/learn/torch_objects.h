#pragma once
// What the read observer is told about torch: which objects are tensors and modules, and what each C function of torch
// does.
#include "observe/observe.h"

namespace fastjit::dispatch {

/// The host callbacks; `on_tensor` and `context` are left to the caller.
observe::Host torch_host();

/// Fills the table of torch's C functions: `operators` and `pure` are sequences of callables; what the Python functions
/// `callers` call is an operator too (python/fastjit/_callees.py).
void register_callees(PyObject* operators, PyObject* pure, PyObject* callers, PyObject* attention);
/// `call` (or None) runs before each recording, unwatched. False: it raised.
void register_before_recording(PyObject* call);
/// `call` gives what observe::know_frames() takes; it runs once, before the first recording.
void register_known_frames(PyObject* call);
/// To be called before each recording. False: an exception is set.
bool prepare_recording();
bool is_module_class(PyTypeObject* type);
/// torch.nn.Module; instances of it are modules.
void register_module_type(PyObject* type);

}  // namespace fastjit::dispatch
