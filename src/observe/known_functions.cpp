#include "observe/known_functions.h"

#include <cstring>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "observe/errors.h"
#include "observe/ref.h"

namespace fastjit::observe {

// For the message of an error 3.13 runs Python code of the import system, in which another thread may begin a
// recording.
Ref attribute(PyObject* holder, const char* name) {
  PyObject* found = nullptr;
  if (!holder) return Ref();
#if PY_VERSION_HEX >= 0x030D0000
  if (PyObject_GetOptionalAttrString(holder, name, &found) < 0) PyErr_Clear();
#else
  found = PyObject_GetAttrString(holder, name);
  if (!found) PyErr_Clear();
#endif
  return Ref::steal(found);
}

Ref imported(const char* name) {
  const char* colon = std::strchr(name, ':');
  const Ref module_name = Ref::steal(PyUnicode_FromStringAndSize(name, colon - name));
  Ref object = Ref::steal(module_name ? PyImport_GetModule(module_name.get()) : nullptr);
  for (const char* part = colon + 1; object && part;) {
    const char* dot = std::strchr(part, '.');
    const std::string attr = dot ? std::string(part, dot) : std::string(part);
    object = attribute(object.get(), attr.c_str());
    part = dot ? dot + 1 : nullptr;
  }
  PyErr_Clear();
  return object;
}

PyTypeObject* type_named(const char* module, const char* name) noexcept {
  const Ref holder = Ref::steal(PyImport_ImportModule(module));
  PyObject* type = holder ? PyObject_GetAttrString(holder.get(), name) : nullptr;
  if (!type) PyErr_Clear();
  return type && PyType_Check(type) ? reinterpret_cast<PyTypeObject*>(type) : nullptr;
}

// CPython gives the type no public name.
bool is_method_wrapper(PyObject* callable) noexcept {
  static const PyTypeObject* const type = [] {
    const Ref wrapper = Ref::steal(PyObject_GetAttrString(Py_None, "__str__"));
    return Py_TYPE(wrapper.get());  // static: it outlives its instance
  }();
  return Py_TYPE(callable) == type;
}
namespace {

constexpr struct Row {
  const char* name;
  std::string_view judge;
} kRows[] = {
#define PURE(name) {name, ""},
#define FRESH(name) {name, ""},
#define IGNORE(name) {name, ""},
#define MUTATE(name) {name, ""},
#define JUDGE(name, method) {name, #method},
#include "observe/judge/callees.def"
};

/// What identifies a C function, however it is bound: its PyMethodDef, slot, or the object itself.
using Key = std::pair<const void*, const void*>;
struct HashKey {
  size_t operator()(const Key& key) const noexcept {
    return (reinterpret_cast<uintptr_t>(key.first) >> 4) * 31 + (reinterpret_cast<uintptr_t>(key.second) >> 4);
  }
};

struct BoundSlot {  // such as (1).__add__
  PyObject_HEAD PyWrapperDescrObject* descr;
  PyObject* self;
};

Key key_of(PyObject* callable) {
  if (PyInstanceMethod_Check(callable)) callable = PyInstanceMethod_GET_FUNCTION(callable);  // of a pybind11 class
  if (PyCFunction_Check(callable)) return {((PyCFunctionObject*)callable)->m_ml, nullptr};
  if (Py_IS_TYPE(callable, &PyMethodDescr_Type) || Py_IS_TYPE(callable, &PyClassMethodDescr_Type))
    return {((PyMethodDescrObject*)callable)->d_method, nullptr};
  // All types share the wrapper of a slot, and one function may serve several slots: both together tell which it is.
  if (is_method_wrapper(callable)) callable = (PyObject*)reinterpret_cast<BoundSlot*>(callable)->descr;
  if (Py_IS_TYPE(callable, &PyWrapperDescr_Type))
    return {((PyWrapperDescrObject*)callable)->d_base, ((PyWrapperDescrObject*)callable)->d_wrapped};
  return {callable, nullptr};
}

struct Table {
  std::vector<bool> resolved = std::vector<bool>(std::size(kRows));
  std::unordered_map<Key, int, HashKey> rows;
};

Table& table() {
  static Table* one = new Table;  // lives as long as the process: it holds references
  return *one;
}

}  // namespace

void resolve_known_functions() {
  Table& known = table();
  for (size_t i = 0; i < std::size(kRows); ++i) {
    if (known.resolved[i]) continue;
    PyObject* object = Py_XNewRef(imported(kRows[i].name).get());  // kept for ever: the key is an address
    if (!object) continue;
    known.resolved[i] = true;
    known.rows.emplace(key_of(object), static_cast<int>(i));
  }
}

int known_function(PyObject* callable) noexcept {
  const auto row = table().rows.find(key_of(callable));
  return row == table().rows.end() ? -1 : row->second;
}

const char* known_name(int row) noexcept { return kRows[row].name; }

const char* door_of(int row) noexcept {
  if (row < 0) return "";
  const std::string_view judge = kRows[row].judge;
  if (judge == "judge_exit" || judge == "judge_contents" || judge == "judge_leaf")
    return "use of a tensor outside operators by ";
  return judge == "judge_generator" ? "use of a random number generator by " : "";
}

std::string callee_text(PyObject* callable) {
  Ref name = Ref::steal(PyObject_GetAttrString(callable, "__qualname__"));
  const bool is_of_c = PyCFunction_Check(callable) || Py_IS_TYPE(callable, &PyMethodDescr_Type);  // has its name
  if (!name) is_of_c ? put_off_error() : forget_error();
  if (!name || !PyUnicode_Check(name.get())) return Py_TYPE(callable)->tp_name;
  const std::string_view text = PyUnicode_AsUTF8(name.get());
  for (const char* holder : {"pybind11_", "_VariableFunctionsClass."})  // classes that nobody knows by name
    if (text.starts_with(holder)) return std::string(text.substr(text.rfind('.') + 1));
  return std::string(text);
}

}  // namespace fastjit::observe
