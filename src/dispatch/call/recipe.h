#pragma once
// How a call's result is put together from its tensor leaves.
#include <Python.h>

#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

#include "observe/ref.h"

namespace fastjit::observe {
struct Observation;
}

namespace fastjit::dispatch {

struct Stored;

class Recipe {
 public:
  Recipe() = default;
  Recipe(Recipe&& other) noexcept { *this = std::move(other); }
  Recipe& operator=(Recipe&& other) noexcept {
    std::swap(steps_, other.steps_);
    std::swap(shares_, other.shares_);
    return *this;
  }
  ~Recipe();

  /// Describes `result`; its tensor leaves are appended to `leaves` (borrowed). `numbers` are the fresh number objects
  /// given to the call: a leaf that is one of them stays symbolic. Returns false with `why` for a result that is not
  /// made of tensors, plain constants, tuples, lists, dicts and instances of Python classes over object, dict or
  /// OrderedDict, and for a changeable container that something beside the result refers to: a copy of it would not be
  /// the same.
  /// With stored values: describes the tuple of the result and these; what they share stays shared.
  /// `call`: the tensors that it gave attributes, the classes that it made. `kept`: objects that are the same ones in
  /// each call that the variant serves, so that a result may hold them. `argument`: which target of the call's spec an
  /// argument is, or -1.
  bool build(PyObject* result, const std::vector<PyObject*>& numbers, std::vector<PyObject*>& leaves, std::string& why,
             const Stored& stored, const observe::Observation& call, const std::unordered_set<PyObject*>& kept,
             const std::function<int(PyObject*)>& argument);

  /// What differs from call to call, but for the tensors.
  struct Given {
    PyObject* const* numbers;  // the call's symbolic ones
    PyObject* const* values;   // those that the program computed
    const uint64_t* scalars;   // of the graph: where they are sizes, ints
    PyObject* const* targets;
  };
  /// A new result from new references to the leaves (stolen). Null with an exception set on failure.
  PyObject* rebuild(PyObject** leaves, const Given& given) const;

  /// The objects that it does not make, kept alive until the result is there: the GIL may be released before.
  std::vector<observe::Ref> hold() const;

  bool single() const { return steps_.size() == 1 && steps_[0].kind == Kind::Leaf; }
  bool has_tensors() const;
  int traverse(visitproc visit, void* arg) const;  // for the garbage collector
  std::string text() const;                        // two recipes with one text give equal results for equal leaves
  /// Which numbers its Number leaves are, in their order.
  std::vector<uint32_t> numbers() const;
  /// Per number its place among those of Given, in the first list that has one; -1: it has none.
  struct Places {
    const std::vector<int>&numbers, &values, &scalars;
  };
  /// Renumbers Number leaves. One without a place is guarded by value, so the leaf is the constant numbers[i].
  void renumber(const Places& places, const std::vector<PyObject*>& numbers);

 private:
  // Struct: made by calling a type with a tuple. Instance: its items, then its attributes. Same: a container once more.
  // Size: a scalar of the graph. Tagged: a leaf, then its attributes. Kept: an object that is there already. Argument:
  // one of the call.
  enum class Kind : uint8_t {
    Leaf,
    Constant,
    Number,
    Value,
    Size,
    Tuple,
    List,
    Dict,
    Struct,
    NamedTuple,
    Instance,
    Same,
    Tagged,
    Kept,
    Argument
  };
  struct Element {
    Kind kind;
    // Constant: the object. Kept: a weak reference to it, or it. Dict, Tagged: tuple of keys. Struct, NamedTuple: the
    // type. Instance: (type, keys, names). Owned.
    PyObject* object = nullptr;
    Py_ssize_t count = 0;  // containers: items. Number, Value, Size, Argument: index. Same: which container, in the
                           // order of their steps
  };
  struct Reader;
  struct Maker;
  std::vector<Element> steps_;
  bool shares_ = false;  // there is a step Same
};

}  // namespace fastjit::dispatch
