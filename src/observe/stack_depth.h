#pragma once
// How deep the value stack is before each instruction of a function, computed from its bytecode.
#include <Python.h>

#include <vector>

namespace fastjit::observe {

/// One number for each code unit; -1 where no path leads or the paths disagree. `ops` is the plain bytecode.
std::vector<int> stack_depths(PyCodeObject* code, const unsigned char* ops);

}  // namespace fastjit::observe
