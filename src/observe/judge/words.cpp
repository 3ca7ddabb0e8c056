// Objects and effects in words. Needs no observer.
#include "observe/errors.h"
#include "observe/observe.h"

namespace fastjit::observe {

bool is_constant(PyObject* o) {
  if (o == Py_None || o == Py_Ellipsis || o == Py_NotImplemented || PyBool_Check(o)) return true;
  if (PyLong_CheckExact(o) || PyFloat_CheckExact(o) || PyComplex_CheckExact(o)) return true;
  if (PyUnicode_CheckExact(o) || PyBytes_CheckExact(o)) return true;
  if (!PyTuple_CheckExact(o)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i)
    if (!is_constant(PyTuple_GET_ITEM(o, i))) return false;
  return true;
}

std::string words(PyObject* o) {
  if (!o) return "absent";
  bool plain = o == Py_None || PyBool_Check(o) || PyLong_CheckExact(o) || PyFloat_CheckExact(o) ||
               PyComplex_CheckExact(o) || PyUnicode_CheckExact(o) || PyBytes_CheckExact(o) || PyTuple_CheckExact(o);
  if (!plain) return Py_TYPE(o)->tp_name;
  Ref text = Ref::steal(PyObject_Repr(o));
  const char* utf8 = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
  if (!utf8) return forget_error(), Py_TYPE(o)->tp_name;
  std::string s = utf8;
  return s.size() <= 60 ? s : s.substr(0, 57) + "...";
}

std::string SideEffect::text() const {
  const auto shown = [](PyObject* o) { return is_constant(o) ? words(o) : std::string(Py_TYPE(o)->tp_name); };
  std::string out = label;
  if (kind == Kind::Print || kind == Kind::Call) {
    std::string arguments;
    const auto add = [&](const std::string& name, PyObject* o) {
      arguments += (arguments.empty() ? "" : ", ") + name + shown(o);
    };
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value.get()); ++i) add("", PyTuple_GET_ITEM(value.get(), i));
    PyObject *name, *named;
    for (Py_ssize_t i = 0; key && PyDict_Next(key.get(), &i, &name, &named);)
      add(PyUnicode_AsUTF8(name) + std::string("="), named);
    out += "(" + arguments + ")";
  } else if (kind == Kind::Warn) {
    PyObject* category = PyTuple_GET_ITEM(value.get(), 0);
    out +=
        "(" + shown(PyTuple_GET_ITEM(value.get(), 1)) + ", " + reinterpret_cast<PyTypeObject*>(category)->tp_name + ")";
  } else if (kind == Kind::Append) {
    out += ".append(" + (symbolic ? Py_TYPE(value.get())->tp_name : shown(value.get())) + ")";
  } else {
    out += (adds ? " += " : " = ") + (symbolic ? Py_TYPE(value.get())->tp_name : shown(value.get()));
  }
  return out + " (" + where + ")";
}

}  // namespace fastjit::observe
