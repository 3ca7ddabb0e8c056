#include "capture/frames.h"

#include <algorithm>
#include <array>

namespace fastjit::capture {

std::string folder_of_torch() {
  PyObject* module = PyImport_ImportModule("torch");
  PyObject* file = module ? PyObject_GetAttrString(module, "__file__") : nullptr;
  std::string path = file && PyUnicode_Check(file) ? PyUnicode_AsUTF8(file) : "";
  Py_XDECREF(file);
  Py_XDECREF(module);
  PyErr_Clear();
  return path.substr(0, path.find_last_of('/') + 1);
}

std::string stored_name(PyFrameObject* frame, PyCodeObject* code) {
  static const std::array<int, 3> numbers = [] {
    std::array<int, 3> found{-1, -1, -1};
    PyObject* module = PyImport_ImportModule("opcode");
    PyObject* map = module ? PyObject_GetAttrString(module, "opmap") : nullptr;
    static constexpr const char* kNames[] = {"STORE_FAST", "STORE_NAME", "STORE_GLOBAL"};
    for (size_t i = 0; map && i < found.size(); ++i)
      if (PyObject* number = PyDict_GetItemString(map, kNames[i])) found[i] = static_cast<int>(PyLong_AsLong(number));
    Py_XDECREF(map);
    Py_XDECREF(module);
    return found;
  }();
  PyObject* bytes = PyCode_GetCode(code);
  const auto* ops = bytes ? reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(bytes)) : nullptr;
  const Py_ssize_t size = bytes ? PyBytes_GET_SIZE(bytes) : 0;
  std::string name;
  Py_ssize_t at = PyFrame_GetLasti(frame) + 2;
  while (at >= 2 && at + 1 < size && ops[at] == 0) at += 2;  // inline caches
  if (at >= 2 && at + 1 < size) {
    const auto which = std::ranges::find(numbers, ops[at]);
    PyObject* names = which == numbers.end()     ? nullptr
                      : which == numbers.begin() ? PyCode_GetVarnames(code)
                                                 : Py_NewRef(code->co_names);
    if (names && ops[at + 1] < PyTuple_GET_SIZE(names)) name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(names, ops[at + 1]));
    Py_XDECREF(names);
  }
  Py_XDECREF(bytes);
  return name;
}

}  // namespace fastjit::capture
