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

/// The instances that the calls which this thread looks into for parts have made so far. No later call brings one of
/// them: their classes are compared by content at once, also those of modules.
class MadeHere {
 public:
  static void note(const void* instance);
  static void note(const std::vector<const void*>& instances);
  static bool has(const void* instance) noexcept;
  /// Where the outermost of these calls ends.
  static void clear() noexcept;
};

}  // namespace fastjit::dispatch
