#include "dispatch/learn/stand_in.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "observe/observe.h"

namespace fastjit::dispatch {
namespace {

// Other letters may be spelt otherwise in a compiled function.
bool is_plain_identifier(PyObject* name) { return PyUnicode_IS_ASCII(name) && PyUnicode_IsIdentifier(name) == 1; }

std::string joined(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : ", ") + part;
  return out;
}

// def call(self, arg0, /, *, dim): return self(arg0, dim=dim). Nothing where a keyword is no plain identifier.
std::optional<std::string> source(Py_ssize_t nargs, PyObject* kwnames) {
  std::vector<std::string> keywords;
  for (Py_ssize_t i = 0; kwnames && i < PyTuple_GET_SIZE(kwnames); ++i) {
    PyObject* name = PyTuple_GET_ITEM(kwnames, i);
    if (!is_plain_identifier(name)) return std::nullopt;
    keywords.emplace_back(PyUnicode_AsUTF8(name));
  }
  const auto unused = [&](std::string name) {
    while (std::ranges::find(keywords, name) != keywords.end()) name += "_";
    return name;
  };
  const std::string self = unused("self");
  std::vector<std::string> parameters{self}, arguments;
  for (Py_ssize_t i = 0; i < nargs; ++i) arguments.push_back(unused("arg" + std::to_string(i)));
  parameters.insert(parameters.end(), arguments.begin(), arguments.end());
  parameters.emplace_back("/");
  if (!keywords.empty()) parameters.emplace_back("*");
  parameters.insert(parameters.end(), keywords.begin(), keywords.end());
  for (const std::string& name : keywords) arguments.push_back(name + "=" + name);
  return "def call(" + joined(parameters) + "): return " + self + "(" + joined(arguments) + ")\n";
}

}  // namespace

bool begins_in_python(PyObject* callable) noexcept {
  if (PyFunction_Check(callable)) return true;
  if (PyMethod_Check(callable)) return PyFunction_Check(PyMethod_GET_FUNCTION(callable));
  static PyObject* const name = PyUnicode_InternFromString("__call__");
  PyObject* method = _PyType_Lookup(Py_TYPE(callable), name);
  return method && PyFunction_Check(method);
}

PyObject* stand_in(Py_ssize_t nargs, PyObject* kwnames) {
  static auto* const made = new std::map<std::string, PyObject*>;
  const auto text = source(nargs, kwnames);
  if (!text) return nullptr;
  PyObject*& function = (*made)[*text];
  if (function) return function;
  namespace py = pybind11;
  const auto code =
      py::reinterpret_steal<py::object>(Py_CompileString(text->c_str(), observe::kStandInFile, Py_file_input));
  if (!code) return PyErr_Clear(), nullptr;  // a keyword such as None
  py::dict globals;
  globals["__builtins__"] = py::module_::import("builtins");
  if (!py::reinterpret_steal<py::object>(PyEval_EvalCode(code.ptr(), globals.ptr(), globals.ptr())))
    return PyErr_Clear(), nullptr;
  return function = py::object(globals["call"]).release().ptr();
}

}  // namespace fastjit::dispatch
