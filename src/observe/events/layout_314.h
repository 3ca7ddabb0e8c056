#pragma once
// Internal layouts of CPython 3.14 that the observer reads; a build for another version must not include this file.
#include <Python.h>

#if PY_VERSION_HEX < 0x030E0000 || PY_VERSION_HEX >= 0x030F0000 || defined(Py_GIL_DISABLED)
#error "layout_314.h describes CPython 3.14 with a GIL only"
#endif

namespace fastjit::observe {

/// A place of the value stack: an object's address, and in its low bits whether the place owns a reference.
class StackRef {
 public:
  StackRef() = default;
  /// Takes over a reference, except to an immortal object, whose references nothing counts.
  explicit StackRef(PyObject* owned) : bits_(reinterpret_cast<uintptr_t>(owned) | (owned->ob_flags & kBorrowed)) {}
  /// Null where nothing is, and for a number that is no object.
  PyObject* object() const {
    return (bits_ & kNumber) == kNumber ? nullptr : reinterpret_cast<PyObject*>(bits_ & ~kBorrowed);
  }
  bool owns() const { return !(bits_ & kBorrowed); }

 private:
  static constexpr uintptr_t kBorrowed = 1, kNumber = 3;  // an empty place is borrowed
  uintptr_t bits_;
};

struct InterpreterFrame {
  StackRef executable;
  InterpreterFrame* previous;
  StackRef function;
  PyObject* globals;
  PyObject* builtins;
  PyObject* locals;
  PyFrameObject* frame_object;
  void* instr_ptr;
  StackRef* stackpointer;
  uint16_t return_offset;
  char owner;
  uint8_t visited;
  StackRef localsplus[1];
};

inline constexpr bool kSelfOnTop = true;      // a call's stack: a callable, and above it its object or null
inline constexpr bool kExitHasSelf = true;    // WITH_EXCEPT_START: __exit__ lies on the stack apart from its object
inline constexpr bool kPrefixEvents = false;  // the event for an instruction comes at its EXTENDED_ARG
inline constexpr bool kKeywordsPlace = true;  // CALL_FUNCTION_EX has a place for keywords, null without any
inline constexpr int kAttrShift = 1;          // LOAD_ATTR's argument is the name's index and a bit for method calls
inline constexpr int kCompareShift = 5;       // COMPARE_OP's argument is the comparison, above other bits
inline constexpr bool kInlineValues = false;  // stores to an object's attributes tell its dictionary's watchers

inline InterpreterFrame* current_frame(PyThreadState* state) {
  return reinterpret_cast<InterpreterFrame*>(state->current_frame);
}
inline PyCodeObject* code_of(const InterpreterFrame* frame) {
  return reinterpret_cast<PyCodeObject*>(frame->executable.object());
}
inline PyFunctionObject* function_of(const InterpreterFrame* frame) {
  return reinterpret_cast<PyFunctionObject*>(frame->function.object());
}
inline PyObject* local_of(const InterpreterFrame* frame, int i) { return frame->localsplus[i].object(); }
/// Changes whenever a tool of sys.monitoring sets its events for all code.
inline uint64_t monitoring_version(PyThreadState* state) {
  constexpr int kFlags = 8;  // bits of eval_breaker below the version
  return state->eval_breaker >> kFlags;
}
inline PyObject** values_of(const PyDictObject* dict) {
  constexpr size_t kHeader = 8;  // the size of what is before the values
  return dict->ma_values ? reinterpret_cast<PyObject**>(reinterpret_cast<char*>(dict->ma_values) + kHeader) : nullptr;
}
inline bool shares_values(PyObject*) { return false; }

}  // namespace fastjit::observe
