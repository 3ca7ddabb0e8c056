#pragma once
// Arguments that are instances of Python classes. Each is compared by identity until calls keep bringing others of its
// class; from then on by class and attributes, so that `step(State(h, c))` is one signature and not one a call.
#include <Python.h>

#include <algorithm>
#include <vector>

namespace fastjit::dispatch {

struct Function;
class CallSpec;

/// Classes of a function's arguments that are compared by content. Addresses only: one that another class got is
/// compared by content, too, which is right as well.
using ByContent = std::vector<PyTypeObject*>;

inline bool contains(const ByContent& classes, const PyTypeObject* type) noexcept {
  return std::find(classes.begin(), classes.end(), type) != classes.end();
}

/// Called before a call is recorded: takes the classes of which it brings yet another instance into
/// Function::by_content and drops the variants of single instances. True if there were any.
bool compare_by_content(Function& function, const CallSpec& call);

}  // namespace fastjit::dispatch
