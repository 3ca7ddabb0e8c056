#include "capture/record/frames.h"
#include "support/work.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace fastjit::capture {
namespace {

// torch's own package, with a slash at the end; empty if it is not known.
std::string folder_of_torch() {
  PyObject* module = PyImport_ImportModule("torch");
  PyObject* file = module ? PyObject_GetAttrString(module, "__file__") : nullptr;
  std::string path = file && PyUnicode_Check(file) ? PyUnicode_AsUTF8(file) : "";
  Py_XDECREF(file);
  Py_XDECREF(module);
  PyErr_Clear();
  return path.substr(0, path.find_last_of('/') + 1);
}

bool is_of_torch(const char* file) {
  static const std::string root = folder_of_torch();
  return file && !root.empty() && std::string_view(file).starts_with(root);
}

// Calls `body(frame, code)` for this frame and those outside it until it says that it has seen enough.
template <class Body>
void for_each_frame(Body body) {
  const PyGILState_STATE gil = PyGILState_Ensure();
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  for (bool more = true; frame && more;) {
    support::count_work();
    PyCodeObject* code = PyFrame_GetCode(frame);
    more = body(frame, code);
    Py_DECREF(code);
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
  PyErr_Clear();
  PyGILState_Release(gil);
}

}  // namespace

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

CallerLines::CallerLines(std::string stand_in_file)
    : stand_in_file_(std::move(stand_in_file)), caller_(PyEval_GetFrame()) {}

CallerLines::~CallerLines() {
  for (const Line& line : lines_) Py_DECREF(line.file);
}

uint32_t CallerLines::now(std::string* target) {
  uint32_t found = 0;
  for_each_frame([&](PyFrameObject* frame, PyCodeObject* code) {
    const char* file = PyUnicode_AsUTF8(code->co_filename);
    if (is_of_torch(file) || (file && stand_in_file_ == file)) return true;
    const Line line{code->co_filename, PyFrame_GetLineNumber(frame)};
    if (lines_.empty() || lines_.back() != line) {
      Py_INCREF(line.file);
      lines_.push_back(line);
    }
    found = static_cast<uint32_t>(lines_.size());
    if (target) *target = stored_name(frame, code);
    return false;
  });
  return found;
}

std::string CallerLines::size_reader() {
  static constexpr std::array<std::string_view, 7> kReads{"shape", "size",   "numel", "nelement",
                                                          "len",   "stride", "nbytes"};
  std::string found;
  for_each_frame([&](PyFrameObject* frame, PyCodeObject* code) {
    if (frame == caller_) return false;
    const char* file = PyUnicode_AsUTF8(code->co_filename);
    if (file && !is_of_torch(file) && scanned_.insert(code).second)
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code->co_names); ++i) {
        const char* name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(code->co_names, i));
        if (name && std::ranges::find(kReads, name) != kReads.end()) found = "its " + std::string(name);
      }
    return found.empty();
  });
  return found;
}

std::vector<std::string> CallerLines::texts() const {
  std::vector<std::string> out;
  for (const Line& line : lines_) {
    const char* file = PyUnicode_AsUTF8(line.file);
    const std::string path = file ? file : "?";
    out.push_back(path.substr(path.find_last_of('/') + 1) + ":" + std::to_string(line.line));
  }
  return out;
}

}  // namespace fastjit::capture
