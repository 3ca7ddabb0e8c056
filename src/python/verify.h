#pragma once
// verify=: on a hit that is chosen the program runs on copies of everything it reads, then the function itself runs on
// the real things; its result is the call's. python/fastjit/_verify.py compares. A program that differs is not run
// again.
#include <pybind11/pybind11.h>

#include <memory>

#include "dispatch/call/function.h"

namespace fastjit::dispatch {

/// Whether a program's next hit is one of the fraction: the first is, the others are spread evenly.
bool is_verified(double fraction, uint64_t hits) noexcept;

/// A hit, verified.
PyObject* verified_call(FunctionObject* self, const std::shared_ptr<Variant>& variant, PyObject* const* tensors,
                        PyObject* const* numbers, PyObject* const* args, size_t nargsf, PyObject* kwnames);

void bind_verify(pybind11::module_& module);

}  // namespace fastjit::dispatch
