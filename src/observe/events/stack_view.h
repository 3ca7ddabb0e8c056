#pragma once
// Where the operands of the instruction about to run are. 3.11 saves the top of its value stack in the frame before an
// event. 3.12 and 3.13 do not: the bytecode says how deep the stack is. 3.14 saves it, and marks addresses in it.
#include <Python.h>

#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "observe/events/layout.h"

namespace fastjit::observe {

using Args = std::span<PyObject* const>;

/// How deep the value stack is before each instruction of a function, computed from its bytecode: one number for each
/// code unit; -1 where no path leads or the paths disagree. `ops` is the plain bytecode.
std::vector<int> stack_depths(PyCodeObject* code, const unsigned char* ops);

/// What stack_depths() has said of the code that a call runs.
using StackDepths = std::unordered_map<PyCodeObject*, std::vector<int>>;

class StackView {
 public:
  StackView() = default;
  explicit StackView(InterpreterFrame* frame) : frame_(frame) {}
  /// The instruction at `offset` is about to run. False where nothing says how deep the stack is.
  bool arrive(int offset, const unsigned char* ops, StackDepths& known);
  /// 1: the top of the value stack; null where nothing is.
  PyObject* at(int n) const { return local_of(frame_, top_ - n); }
  /// The same where there may be fewer, as behind an instruction that has raised; null where neither the stack nor the
  /// locals below it have so many.
  PyObject* at_or_null(int n) const { return top_ >= n ? at(n) : nullptr; }
  /// The same, without the locals.
  PyObject* on_stack(int n, const PyCodeObject* code) const {
    return top_ - code->co_nlocalsplus >= n ? at(n) : nullptr;
  }
  /// `count` operands, the lowest of them at(n). Valid until the next call.
  Args from(int n, int count);
  /// The instruction gets `value`, a reference that goes to the stack, in the place of at(n).
  void replace(int n, PyObject* value);

 private:
  InterpreterFrame* frame_ = nullptr;
  int top_ = 0;                               // index behind the value stack, among localsplus
  const std::vector<int>* depths_ = nullptr;  // 3.12, 3.13
  std::vector<PyObject*> operands_;           // 3.14: without marks
};

}  // namespace fastjit::observe
