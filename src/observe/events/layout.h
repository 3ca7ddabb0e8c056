#pragma once
// Internal layouts of CPython that the observer reads. What 3.11 to 3.14 share is here, what differs is in a file for
// each version. Layouts are frozen for the life of a version.
#include <Python.h>

#include <cstdint>
#include <cstring>

#if PY_VERSION_HEX < 0x030C0000
#include "observe/events/layout_311.h"
#elif PY_VERSION_HEX < 0x030D0000
#include "observe/events/layout_312.h"
#elif PY_VERSION_HEX < 0x030E0000
#include "observe/events/layout_313.h"
#else
#include "observe/events/layout_314.h"
#endif

namespace fastjit::observe {

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

struct PartialObject {  // functools.partial
  PyObject_HEAD PyObject* function;
  PyObject *args, *keywords;
};

struct ProxyObject {  // types.MappingProxyType
  PyObject_HEAD PyObject* mapping;
};

struct OrderedDictNode {
  PyObject* key;
  Py_hash_t hash;
  OrderedDictNode *next, *previous;
};

struct OrderedDictObject {  // collections.OrderedDict
  PyDictObject dict;
  OrderedDictNode *first, *last, **nodes;
  Py_ssize_t node_count;
  void* sentinel;
  size_t state;  // another one after each change of its order
};

struct CacheLink {  // of functools.lru_cache
  PyObject_HEAD CacheLink *previous, *next;
  Py_hash_t hash;
  PyObject *key, *result;
};

struct CacheObject {  // functools.lru_cache
  CacheLink root;
  void* wrapper;
  int typed;
  PyObject* cache;  // a dictionary of links, of results where there is no bound
  Py_ssize_t hits;
  PyObject* function;
  Py_ssize_t most;  // negative: no bound
  Py_ssize_t misses;
  PyObject* keyword_mark;
};

inline constexpr unsigned char kLocalIsCell = 0x40;
/// Flags of code that a call does not run to its end.
inline constexpr int kRunsLater = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE;

/// The locals that a call begins with: parameters, then *args, then **kwargs.
inline int argument_count(const PyCodeObject* code) {
  return code->co_argcount + code->co_kwonlyargcount + !!(code->co_flags & CO_VARARGS) +
         !!(code->co_flags & CO_VARKEYWORDS);
}

inline bool is_named(PyObject* name, const char* text) { return PyUnicode_CompareWithASCIIString(name, text) == 0; }

#if PY_VERSION_HEX < 0x030E0000
struct DictObject {
  PyObject_HEAD Py_ssize_t used;
  uint64_t version_tag;
};

inline PyCodeObject* code_of(const InterpreterFrame* frame) { return frame->code; }
inline PyFunctionObject* function_of(const InterpreterFrame* frame) { return frame->func; }
/// A parameter, a local or a cell; null where it has no value.
inline PyObject* local_of(const InterpreterFrame* frame, int i) { return frame->localsplus[i]; }
inline uint64_t& version_tag(PyObject* dict) { return reinterpret_cast<DictObject*>(dict)->version_tag; }
#endif
inline const DictKeys* keys_of(const PyDictObject* dict) { return reinterpret_cast<const DictKeys*>(dict->ma_keys); }
inline const DictEntry* entries_of(const DictKeys* keys) {
  return reinterpret_cast<const DictEntry*>(keys->indices + (size_t{1} << keys->log2_index_bytes));
}

#if PY_VERSION_HEX >= 0x030C0000
/// A class's own dictionary, borrowed: that of a builtin class hangs on the interpreter.
inline PyObject* type_dict(PyTypeObject* type) {
  PyObject* dict = PyType_GetDict(type);
  Py_DECREF(dict);
  return dict;
}
/// Equal signs and digits.
inline bool same_number(PyObject* a, PyObject* b) {
  const _PyLongValue &x = ((PyLongObject*)a)->long_value, &y = ((PyLongObject*)b)->long_value;
  constexpr int kDigitCount = 3;           // the bits of lv_tag above it
  constexpr uintptr_t kIsShared = 1 << 2;  // 3.14: Python has one object for all ints of this value
  return !((x.lv_tag ^ y.lv_tag) & ~kIsShared) &&
         !std::memcmp(x.ob_digit, y.ob_digit, (x.lv_tag >> kDigitCount) * sizeof(digit));
}
#endif

}  // namespace fastjit::observe
