#pragma once
#include <Python.h>

#include <string>
#include <vector>

#include "dispatch/call/spec.h"

namespace fastjit::dispatch {

/// A call with number arguments replaced by fresh objects of equal value, so that an address names each.
struct FreshCall {
  std::vector<PyObject*> args;       // as vectorcall takes them; owned where fresh
  std::vector<PyObject*> fresh;      // owned
  std::vector<PyObject*> originals;  // per fresh: what it stands for
  std::vector<std::string> names;    // per fresh
  std::vector<bool> varying;         // per fresh: see varying_numbers()

  ~FreshCall() {
    for (PyObject* object : fresh) Py_DECREF(object);
  }
};

/// Per argument: whether it is a number that had another value in a known call, or that is symbolic there.
std::vector<bool> varying_numbers(const std::vector<const CallSpec*>& known, PyObject* const* args, Py_ssize_t total);

/// Fills an empty `call` from vectorcall's arguments. Ints that Python shares are replaced where they vary only: most
/// are sizes and flags, and a copy may be handed out.
void make_fresh(FreshCall& call, PyObject* const* args, Py_ssize_t total, const std::vector<std::string>& names,
                const std::vector<bool>& varying);

}  // namespace fastjit::dispatch
