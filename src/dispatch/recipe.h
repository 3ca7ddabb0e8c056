#pragma once
// How a call's result is put together from its tensor leaves.
#include <Python.h>

#include <string>
#include <vector>

namespace fastjit::dispatch {

class Recipe {
 public:
  Recipe() = default;
  Recipe(Recipe&& other) noexcept { *this = std::move(other); }
  Recipe& operator=(Recipe&& other) noexcept {
    std::swap(steps_, other.steps_);
    return *this;
  }
  ~Recipe();

  /// Describes `result`; its tensor leaves are appended to `leaves` (borrowed). `numbers` are the fresh number objects
  /// given to the call: a leaf that is one of them stays symbolic. Returns false with `why` for a result that is not a
  /// tree of tensors, tuples, lists, dicts and plain constants.
  bool build(PyObject* result, const std::vector<PyObject*>& numbers, std::vector<PyObject*>& leaves, std::string& why);

  /// A new result from new references to the leaves (stolen) and the call's symbolic numbers. Null with an exception
  /// set on failure.
  PyObject* rebuild(PyObject** leaves, PyObject* const* numbers) const;

  bool single() const { return steps_.size() == 1 && steps_[0].kind == Kind::Leaf; }
  bool has_tensors() const;
  /// Renumbers Number leaves: place[i] is the place of number i among the symbolic ones, or -1: guarded by value, so
  /// the leaf is the constant numbers[i].
  void renumber(const std::vector<int>& place, const std::vector<PyObject*>& numbers);

 private:
  enum class Kind : uint8_t { Leaf, Constant, Number, Tuple, List, Dict, Struct };
  struct Step {
    Kind kind;
    PyObject* object = nullptr;  // Constant: the object. Dict: tuple of keys. Struct: the type. Owned.
    Py_ssize_t count = 0;        // containers: items. Number: index
  };
  bool add(PyObject* object, const std::vector<PyObject*>& numbers, std::vector<PyObject*>& leaves, std::string& why,
           int depth);
  struct Builder;
  std::vector<Step> steps_;
};

}  // namespace fastjit::dispatch
