#pragma once
#include <Python.h>

#include <string>
#include <vector>

namespace fastjit::dispatch {

/// A call with number arguments replaced by fresh objects of equal value, so that an address names each.
struct FreshCall {
  std::vector<PyObject*> args;       // as vectorcall takes them; owned where fresh
  std::vector<PyObject*> fresh;      // owned
  std::vector<PyObject*> originals;  // per fresh: what it stands for
  std::vector<std::string> names;    // per fresh

  ~FreshCall() {
    for (PyObject* object : fresh) Py_DECREF(object);
  }
};

/// Fills an empty `call` from vectorcall's arguments; `replace` is false: no number is replaced.
void make_fresh(FreshCall& call, PyObject* const* args, Py_ssize_t total, const std::vector<std::string>& names,
                bool replace);

}  // namespace fastjit::dispatch
