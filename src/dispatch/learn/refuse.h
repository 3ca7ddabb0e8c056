#pragma once
// What is known against a call before it runs.
#include "dispatch/call/function.h"

namespace fastjit::dispatch {

/// Parameter names for messages: from the code object where there is one.
std::vector<std::string> argument_names(PyObject* callable, Py_ssize_t nargs, PyObject* kwnames);
/// The tensors among the arguments: "x", "batch[0]", "state['h']".
std::vector<std::string> tensor_names(const CallSpec& call, const std::vector<std::string>& arguments);
/// The numbers among them.
std::vector<std::string> number_names(const CallSpec& call, const std::vector<std::string>& arguments);

/// The CUDA device that one of a call's tensors is on, else the CPU.
c10::Device device_of(const std::vector<PyObject*>& tensors);

/// Why a call cannot be recorded at all, or empty; `advice` may then say what to do.
std::string refuse(const Function& function, const CallSpec& spec, const std::vector<std::string>& names,
                   std::string& advice);

/// What is missing for programs on this device, or empty. `what_is`: "argument 'x' is".
std::string refuse_device(const std::string& what_is, c10::Device device, std::string& advice);

}  // namespace fastjit::dispatch
