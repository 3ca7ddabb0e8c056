#pragma once
// Effects of a recorded call on Python objects, made again after its program has run. No Python code runs before the
// last of them is made, but for what eager runs too: the repr of a key, a stream's own buffers, finalisers of what is
// replaced.
#include <Python.h>

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "observe/observe.h"

namespace fastjit::dispatch {

/// The values that a recorded call left in places that existed before, for a Recipe.
struct Stored {
  std::vector<PyObject*> values;                        // borrowed
  std::vector<const observe::SideEffect*> effects;      // of each value
  std::unordered_map<PyObject*, Py_ssize_t> in_places;  // how often each is in such a place
};
Stored stored_values(const std::vector<observe::SideEffect>& effects);

/// What is in such a place now; borrowed, null if nothing is. No Python code runs where the key is a name.
PyObject* value_in(observe::SideEffect::Kind kind, PyObject* target, PyObject* key, Py_ssize_t place);

class Replay {
 public:
  /// Keeps no target alive: the facts of the variant lead to each.
  /// `argument` says which target of the call's spec an effect has that is one of an argument.
  Replay(std::vector<observe::SideEffect> effects, const std::function<int(PyObject*)>& argument);
  /// Why the effects cannot be made now, though the facts hold; empty if they can. GIL held.
  std::string refuse() const;
  /// The targets and what is in the places now, kept alive until the end of the call: the GIL may be released before
  /// the effects are made.
  std::vector<observe::Ref> hold(PyObject* const* targets) const;
  /// Makes the effects. `made` (stolen) is what the recipe builds: the call's result, or where values are stored a
  /// tuple of it and of these in order. Returns the result, or null with an exception set.
  PyObject* apply(PyObject* made, PyObject* const* targets) const;
  /// The result alone, where the effects are not to be made.
  PyObject* result_of(PyObject* made) const;
  int traverse(visitproc visit, void* arg) const;  // for the garbage collector
  std::vector<std::string> describe() const { return lines_; }

 private:
  struct Effect {
    observe::SideEffect::Kind kind;
    bool adds;
    Py_ssize_t place;
    PyObject* target;  // borrowed; null: `argument` says which of the call's targets it is
    int argument;
    PyObject* of(PyObject* const* targets) const { return argument < 0 ? target : targets[argument]; }
    observe::Ref key, constant;
    std::string where;
  };
  std::vector<Effect> effects_;
  bool stores_ = false;  // some effect stores a value that the recipe builds
  std::vector<std::string> lines_;
};

}  // namespace fastjit::dispatch
