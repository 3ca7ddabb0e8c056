#pragma once
// What a program does beside its graph as Python expressions, for inspect("source").
#include <pybind11/pybind11.h>

#include "dispatch/call/function.h"

namespace fastjit::dispatch {

/// "calls": of torch's, each {"text": "torch.ops.aten.mm.default({0}, {1})", "many": it returns several tensors};
/// "numbers": what it computes with Python's numbers, "0.9 ** float({0})"; "device": "cuda:0".
pybind11::dict python_steps(const Variant& variant);

}  // namespace fastjit::dispatch
