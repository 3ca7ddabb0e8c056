#pragma once
// Internal layouts of CPython 3.12 that the observer reads; a build for another version must not include this file.
#include <Python.h>

#if PY_VERSION_HEX < 0x030C0000 || PY_VERSION_HEX >= 0x030D0000
#error "layout_312.h describes CPython 3.12 only"
#endif

namespace fastjit::observe {

struct InterpreterFrame {
  PyCodeObject* code;
  InterpreterFrame* previous;
  PyFunctionObject* func;
  PyObject* globals;
  PyObject* builtins;
  PyObject* locals;
  PyFrameObject* frame_object;
  _Py_CODEUNIT* prev_instr;
  int stacktop;
  uint16_t return_offset;
  char owner;
  PyObject* localsplus[1];
};

struct Interpreter {
  Interpreter* next;
  int64_t id, id_refcount;
  int requires_idref;
  void* id_mutex;
  int initialized, finalizing;
  uint64_t monitoring_version;
};

inline constexpr bool kSelfOnTop = false;      // a call's stack: a method and its object, or null and a callable
inline constexpr bool kExitHasSelf = false;    // WITH_EXCEPT_START: __exit__ lies on the stack apart from its object
inline constexpr bool kPrefixEvents = false;   // the event for an instruction comes at its EXTENDED_ARG
inline constexpr bool kKeywordsPlace = false;  // CALL_FUNCTION_EX has a place for keywords, null without any
inline constexpr int kAttrShift = 1;           // LOAD_ATTR's argument is the name's index and a bit for method calls
inline constexpr int kCompareShift = 4;        // COMPARE_OP's argument is the comparison, above other bits
inline constexpr bool kInlineValues = false;   // objects whose attribute values a dictionary shares

inline InterpreterFrame* current_frame(PyThreadState* state) {
  return reinterpret_cast<InterpreterFrame*>(state->cframe->current_frame);
}
/// Changes whenever a tool of sys.monitoring sets its events for all code.
inline uint64_t monitoring_version(PyThreadState* state) {
  return reinterpret_cast<Interpreter*>(state->interp)->monitoring_version;
}
inline bool shares_values(PyObject*) { return false; }
inline PyObject** values_of(const PyDictObject* dict) { return reinterpret_cast<PyObject**>(dict->ma_values); }

}  // namespace fastjit::observe
