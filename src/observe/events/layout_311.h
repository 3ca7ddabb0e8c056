#pragma once
// Internal layouts of CPython 3.11 that the observer reads; a build for another version must not include this file.
#include <Python.h>
#include <frameobject.h>

#include <cstring>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030C0000
#error "layout_311.h describes CPython 3.11 only"
#endif

namespace fastjit::observe {

struct InterpreterFrame {
  PyFunctionObject* func;
  PyObject* globals;
  PyObject* builtins;
  PyObject* locals;
  PyCodeObject* code;
  PyFrameObject* frame_object;
  InterpreterFrame* previous;
  _Py_CODEUNIT* prev_instr;
  int stacktop;
  bool is_entry;
  char owner;
  PyObject* localsplus[1];
};

struct FrameObject {
  PyObject_HEAD PyFrameObject* back;
  InterpreterFrame* frame;
  PyObject* trace;
  int lineno;
  char trace_lines;
  char trace_opcodes;
  char fast_as_locals;
};

inline constexpr bool kSelfOnTop = false;      // a call's stack: a method and its object, or null and a callable
inline constexpr bool kExitHasSelf = false;    // WITH_EXCEPT_START: __exit__ lies on the stack apart from its object
inline constexpr bool kPrefixEvents = true;    // the event for an instruction comes at its EXTENDED_ARG
inline constexpr bool kKeywordsPlace = false;  // CALL_FUNCTION_EX has a place for keywords, null without any
inline constexpr int kAttrShift = 0;           // LOAD_ATTR's argument is the name's index
inline constexpr int kCompareShift = 0;        // COMPARE_OP's argument is the comparison, above other bits
inline constexpr bool kInlineValues = false;   // objects whose attribute values a dictionary shares

inline bool shares_values(PyObject*) { return false; }
inline PyObject** values_of(const PyDictObject* dict) { return reinterpret_cast<PyObject**>(dict->ma_values); }
/// A class's own dictionary, borrowed.
inline PyObject* type_dict(PyTypeObject* type) { return type->tp_dict; }
/// Equal signs and digits.
inline bool same_number(PyObject* a, PyObject* b) {
  if (Py_SIZE(a) != Py_SIZE(b)) return false;
  const size_t digits = static_cast<size_t>(Py_SIZE(a) < 0 ? -Py_SIZE(a) : Py_SIZE(a));
  return !std::memcmp(((PyLongObject*)a)->ob_digit, ((PyLongObject*)b)->ob_digit, digits * sizeof(digit));
}

}  // namespace fastjit::observe
