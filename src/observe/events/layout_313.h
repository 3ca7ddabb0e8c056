#pragma once
// Internal layouts of CPython 3.13 that the observer reads; a build for another version must not include this file.
#include <Python.h>

#if PY_VERSION_HEX < 0x030D0000 || PY_VERSION_HEX >= 0x030E0000 || defined(Py_GIL_DISABLED)
#error "layout_313.h describes CPython 3.13 with a GIL only"
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
  void* instr_ptr;
  int stacktop;
  uint16_t return_offset;
  char owner;
  PyObject* localsplus[1];
};

/// The attribute values of an object: in the object itself, or of a dictionary with shared keys.
struct DictValues {
  uint8_t capacity;
  uint8_t size;
  uint8_t embedded;
  uint8_t valid;
  PyObject* values[1];
};

inline constexpr bool kSelfOnTop = true;       // a call's stack: a callable, and above it its object or null
inline constexpr bool kExitHasSelf = false;    // WITH_EXCEPT_START: __exit__ lies on the stack apart from its object
inline constexpr bool kPrefixEvents = false;   // the event for an instruction comes at its EXTENDED_ARG
inline constexpr bool kKeywordsPlace = false;  // CALL_FUNCTION_EX has a place for keywords, null without any
inline constexpr int kAttrShift = 1;           // LOAD_ATTR's argument is the name's index and a bit for method calls
inline constexpr int kCompareShift = 5;        // COMPARE_OP's argument is the comparison, above other bits
inline constexpr bool kInlineValues = true;    // objects whose attribute values a dictionary shares

inline InterpreterFrame* current_frame(PyThreadState* state) {
  return reinterpret_cast<InterpreterFrame*>(state->current_frame);
}
/// Changes whenever a tool of sys.monitoring sets its events for all code.
inline uint64_t monitoring_version(PyThreadState* state) {
  constexpr int kFlags = 8;  // bits of eval_breaker below the version
  return state->eval_breaker >> kFlags;
}
inline DictValues* shared_values(const PyDictObject* dict) { return reinterpret_cast<DictValues*>(dict->ma_values); }
inline PyObject** values_of(const PyDictObject* dict) {
  return dict->ma_values ? shared_values(dict)->values : nullptr;
}
/// True while a dictionary and an object have the same values.
inline bool shares_values(PyObject* dict) {
  const DictValues* values = shared_values(reinterpret_cast<PyDictObject*>(dict));
  return values && values->embedded;
}

}  // namespace fastjit::observe
