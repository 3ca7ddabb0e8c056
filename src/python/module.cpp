// The extension fastjit._C: only puts the parts together.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "backend/compiler.h"
#include "backend/nvrtc.h"
#include "backend/target.h"
#include "capture/lower/lower.h"
#include "capture/ops/aten.h"
#include "capture/ops/schemas.h"
#include "capture/record/library.h"
#include "dispatch/call/function.h"
#include "dispatch/call/modes.h"
#include "dispatch/learn/messages.h"
#include "dispatch/learn/torch_objects.h"
#include "dispatch/run/pool.h"
#include "ir/numerics.h"
#include "observe/libraries.h"
#include "python/bind_cuda.h"
#include "python/bind_export.h"
#include "python/bind_lowering.h"
#include "python/bind_script.h"
#include "python/stance.h"
#include "python/verify.h"
#include "runtime/background.h"
#include "runtime/engine.h"
#include "support/env.h"
#include "support/work.h"

namespace py = pybind11;
using namespace fastjit;

namespace fastjit::capture {
void bind_capture_debug(py::module_& module);
}

static py::dict pool_stats() {
  const dispatch::PoolStats s = dispatch::pool_stats();
  py::dict out;
  out["idle_bytes"] = s.idle_bytes;
  out["live_bytes"] = s.live_bytes;
  out["reuses"] = s.reuses;
  out["fresh"] = s.fresh;
  return out;
}

// A callback of Python's garbage collector: gc.callbacks gives it a phase and a dictionary.
static PyObject* give_idle_back(PyObject*, PyObject* const*, Py_ssize_t) {
  dispatch::pool_expire();
  Py_RETURN_NONE;
}
static PyMethodDef give_idle_back_method = {
    "give_idle_back", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(give_idle_back)), METH_FASTCALL, nullptr};

static py::list settings() {
  py::list out;
  for (const support::SettingRow& row : support::settings())
    out.append(py::make_tuple(row.name, row.fallback, row.unit, row.meaning));
  return out;
}

static support::Setting setting_named(const std::string& name) {
  const auto rows = support::settings();
  for (size_t i = 0; i < rows.size(); ++i)
    if (rows[i].name == name) return static_cast<support::Setting>(i);
  throw py::key_error(name);
}

// Why the engine would not run a cached object: it validates and links it. Empty: it would.
static std::string check_object(const std::string& kind, const py::bytes& object) {
  const std::string_view bytes = object;
  try {
    kind == "cubin" ? backend::load_cuda(bytes) : backend::load_cpu(bytes);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

static std::vector<std::pair<std::string, bool>> lowered_ops() {
  std::vector<std::pair<std::string, bool>> out;
  for (const capture::LowerRow& row : capture::lowerings())
    out.emplace_back(std::string(row.op), row.level == capture::Level::Lowered);
  return out;
}

// What aten.def says, as (name, facts): of every row; of one operator by all rows that speak of it.
static std::vector<std::pair<std::string, std::string>> operator_rows() {
  std::vector<std::pair<std::string, std::string>> out;
  for (const capture::OpRow& row : capture::op_rows())
    out.emplace_back(std::string(row.op) + (row.all ? ".*" : ""), row.text);
  return out;
}

static std::vector<std::string> operator_facts(const std::string& name) {
  std::vector<std::string> out;
  for (const capture::OpRow* row : capture::rows_of(name)) out.emplace_back(row->text);
  return out;
}

PYBIND11_MODULE(_C_in_main, module) {
  support::check_settings();
  runtime::set_up();
  dispatch::pool_expire();  // makes the pool
  dispatch::init_modes();
  PyTypeObject* type = dispatch::make_function_type(module.ptr());
  if (!type) throw py::error_already_set();
  module.attr("Function") = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(type));
  module.attr("version") = FASTJIT_VERSION;
  module.attr("torch_version") = FASTJIT_TORCH_VERSION;
  py::list numerics;
  for (const std::string_view name : ir::kNumerics) numerics.append(py::str(name.data(), name.size()));
  module.attr("numerics") = py::tuple(numerics);
  module.attr("build_id") = std::string(backend::engine_build_id());
  module.def("llvm_version", &backend::llvm_version);
  module.def("host_isa", [] { return std::string(backend::text(backend::host_isa())); });
  module.def("observer_available", &observe::available);
  module.def("after_fork_in_child", &observe::after_fork_in_child);
  module.def("register_callees", [](py::list operators, py::list pure, py::list callers, py::list attention) {
    dispatch::register_callees(operators.ptr(), pure.ptr(), callers.ptr(), attention.ptr());
  });
  module.def("register_before_recording", [](py::object call) { dispatch::register_before_recording(call.ptr()); });
  module.def("register_known_frames", [](py::object call) { dispatch::register_known_frames(call.ptr()); });
  module.def("register_library", [](py::object kernels) { capture::register_library(kernels.ptr()); });
  module.def("register_module_type", [](py::object t) { dispatch::register_module_type(t.ptr()); });
  module.def("register_message_types", [](py::object warning, py::object error) {
    dispatch::register_message_types(warning.ptr(), error.ptr());
  });
  module.def("user_level", &dispatch::user_level);
  module.def("register_library_folders", &observe::set_library_folders);
  module.def("pool_stats", &pool_stats);
  module.def("pool_clear", &dispatch::pool_clear);
  module.attr("give_idle_back") = py::reinterpret_steal<py::object>(PyCFunction_New(&give_idle_back_method, nullptr));
  module.def("check_object", &check_object);
  module.def("clear_memory", &runtime::clear_memory);
  module.def("stop_background", &runtime::stop_background, py::call_guard<py::gil_scoped_release>());
  module.def("hold_background", &runtime::hold_background);
  module.def("recording_work", [] { return support::recording_work; });
  module.def("settings", &settings);
  module.def("setting", [](const std::string& name) { return support::setting_text(setting_named(name)); });
  module.def("setting_flag", [](const std::string& name) { return support::setting_flag(setting_named(name)); });
  module.def("lowered_ops", &lowered_ops);
  module.def("operator_rows", &operator_rows);
  module.def("operator_facts", &operator_facts);
  module.def("known_schemas", [] {
    const auto all = capture::known_schemas();
    return std::vector<std::string>(all.begin(), all.end());
  });
  module.def("expect_schema", &capture::expect_schema);
  capture::bind_capture_debug(module);
  bind_lowering(module);
  bind_script(module);
  bind_cuda(module);
  dispatch::bind_export(module);
  dispatch::bind_verify(module);
  dispatch::bind_stance(module);
}

// Before pybind11, which waits for ever for the lock of the main interpreter.
extern "C" PYBIND11_EXPORT PyObject* PyInit__C() {
  if (PyInterpreterState_Get() == PyInterpreterState_Main()) return PyInit__C_in_main();
  PyErr_SetString(PyExc_ImportError,
                  "fastjit runs in the main interpreter only: torch does not run in subinterpreters");
  return nullptr;
}
