#pragma once
// Internal layouts of CPython 3.11 that the observer reads. They are frozen for the life of 3.11; a build for another
// version must not include this file.
#include <Python.h>
#include <frameobject.h>

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

struct DictKeys {
  Py_ssize_t refcnt;
  uint8_t log2_size;
  uint8_t log2_index_bytes;
  uint8_t kind;  // 0: any keys, 1: str keys, 2: str keys, values in ma_values
  uint32_t version;
  Py_ssize_t usable;
  Py_ssize_t nentries;
  char indices[1];
};

struct DictEntry {
  PyObject* key;
  PyObject* value;
};

struct SuperObject {
  PyObject_HEAD PyTypeObject* type;
  PyObject* object;
  PyTypeObject* object_type;
};

struct WrapperObject {  // a bound slot wrapper, such as (1).__add__
  PyObject_HEAD PyWrapperDescrObject* descr;
  PyObject* self;
};

inline constexpr unsigned char kLocalIsCell = 0x40;

inline const DictKeys* keys_of(const PyDictObject* dict) { return reinterpret_cast<const DictKeys*>(dict->ma_keys); }
inline const DictEntry* entries_of(const DictKeys* keys) {
  return reinterpret_cast<const DictEntry*>(keys->indices + (size_t{1} << keys->log2_index_bytes));
}
inline PyObject* code_of(const PyFunctionObject* f) { return f->func_code; }

}  // namespace fastjit::observe
