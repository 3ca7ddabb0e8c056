#pragma once
// What is known against a call before it runs.
#include "dispatch/call/function.h"

namespace fastjit::dispatch {

/// Parameter names for messages: from the code object where there is one.
std::vector<std::string> argument_names(PyObject* callable, Py_ssize_t nargs, PyObject* kwnames);
/// The tensors among the arguments: "x", "batch[0]", "state['h']".
std::vector<std::string> tensor_names(const CallSpec& call, const std::vector<std::string>& arguments);

/// The device that a call runs on: that of its tensors, the CPU without any.
c10::Device device_of(const std::vector<PyObject*>& tensors);

/// Why a call cannot be recorded at all, or empty; `advice` may then say what to do.
std::string refuse(const Function& function, const CallSpec& spec, const Modes& modes,
                   const std::vector<std::string>& names, std::string& advice);

/// Why a call that no variant serves is not recorded although nothing is wrong with it; empty: it would be.
std::string waiting(const Function& function, uint64_t call);

/// Whether only the sizes of a call are new, and come for the first time, and several that were recorded so have not
/// come again: neither may these, so the call runs eagerly, and the next one with them is recorded. Asked where no
/// value is new.
bool has_new_sizes(const Function& function, const CallSpec& call);

/// The same of the value that is new, the last of `path`, where many that were recorded in its place never came again.
bool has_new_value(const Function& function, const std::vector<capture::ValueGuard>& path);

/// Recordings in a row that no call used, with the last one if none did so far.
uint32_t unused_recordings(const Function& function);
/// Why nothing is recorded after so many of them; empty: it is.
std::string fruitless(const Function& function, uint32_t unused);

/// Why a call cannot become one more variant, or empty; `varied` says what kept changing.
std::string full(const Function& function, const CallSpec& call, const std::function<std::string()>& varied);

}  // namespace fastjit::dispatch
