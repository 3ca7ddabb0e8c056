#include "dispatch/recipe.h"

#include <algorithm>

#include "dispatch/spec.h"

namespace fastjit::dispatch {
namespace {

constexpr int kMaxDepth = 16;

bool is_constant(PyObject* object) {
  return object == Py_None || PyBool_Check(object) || PyLong_CheckExact(object) || PyFloat_CheckExact(object) ||
         PyUnicode_CheckExact(object);
}

// torch.return_types.*: struct sequences, which are made from one tuple.
bool is_return_type(PyObject* object) {
  if (!PyTuple_Check(object) || PyTuple_CheckExact(object)) return false;
  PyObject* module = PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object)), "__module__");
  const bool yes =
      module && PyUnicode_Check(module) && PyUnicode_CompareWithASCIIString(module, "torch.return_types") == 0;
  Py_XDECREF(module);
  PyErr_Clear();
  return yes;
}

}  // namespace

Recipe::~Recipe() {
  for (Step& step : steps_) Py_XDECREF(step.object);
}

bool Recipe::build(PyObject* result, const std::vector<PyObject*>& numbers, std::vector<PyObject*>& leaves,
                   std::string& why) {
  return add(result, numbers, leaves, why, 0);
}

bool Recipe::add(PyObject* object, const std::vector<PyObject*>& numbers, std::vector<PyObject*>& leaves,
                 std::string& why, int depth) {
  if (depth > kMaxDepth) {
    why = "its result is nested more than 16 deep";
    return false;
  }
  if (is_plain_tensor(object)) {
    leaves.push_back(object);
    steps_.push_back({Kind::Leaf});
    return true;
  }
  const auto number = std::find(numbers.begin(), numbers.end(), object);
  if (number != numbers.end()) {
    steps_.push_back({Kind::Number, nullptr, number - numbers.begin()});
    return true;
  }
  if (is_constant(object)) {
    steps_.push_back({Kind::Constant, Py_NewRef(object)});
    return true;
  }
  if (PyDict_CheckExact(object)) {
    PyObject* keys = PyTuple_New(PyDict_GET_SIZE(object));
    Py_ssize_t at = 0, i = 0;
    PyObject *key, *value;
    while (PyDict_Next(object, &at, &key, &value)) PyTuple_SET_ITEM(keys, i++, Py_NewRef(key));
    steps_.push_back({Kind::Dict, keys, i});
    for (at = 0; PyDict_Next(object, &at, &key, &value);)
      if (!is_constant(key) || !add(value, numbers, leaves, why, depth + 1)) {
        if (why.empty()) why = std::string("its result has a dictionary key of type ") + Py_TYPE(key)->tp_name;
        return false;
      }
    return true;
  }
  const bool structure = is_return_type(object);
  if (!structure && !PyTuple_CheckExact(object) && !PyList_CheckExact(object)) {
    why = std::string("it returns a ") + Py_TYPE(object)->tp_name;
    return false;
  }
  const Py_ssize_t n = PySequence_Fast_GET_SIZE(object);
  if (structure)
    steps_.push_back({Kind::Struct, Py_NewRef(reinterpret_cast<PyObject*>(Py_TYPE(object))), n});
  else
    steps_.push_back({PyTuple_CheckExact(object) ? Kind::Tuple : Kind::List, nullptr, n});
  PyObject** items = PySequence_Fast_ITEMS(object);
  for (Py_ssize_t i = 0; i < n; ++i)
    if (!add(items[i], numbers, leaves, why, depth + 1)) return false;
  return true;
}

bool Recipe::has_tensors() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const Step& step) { return step.kind == Kind::Leaf; });
}

void Recipe::renumber(const std::vector<int>& place, const std::vector<PyObject*>& numbers) {
  for (Step& step : steps_) {
    if (step.kind != Kind::Number) continue;
    const auto index = static_cast<size_t>(step.count);
    if (place[index] >= 0)
      step.count = place[index];
    else
      step = {Kind::Constant, Py_NewRef(numbers[index])};
  }
}

struct Recipe::Builder {
  const Step* step;
  PyObject** leaves;
  PyObject* const* numbers;

  PyObject* one() {
    const Step& s = *step++;
    switch (s.kind) {
      case Kind::Leaf:
        return *leaves++;
      case Kind::Constant:
        return Py_NewRef(s.object);
      case Kind::Number:
        return Py_NewRef(numbers[s.count]);
      case Kind::Tuple:
        return items(PyTuple_New(s.count), s.count, true);
      case Kind::List:
        return items(PyList_New(s.count), s.count, false);
      case Kind::Struct: {
        PyObject* fields = items(PyTuple_New(s.count), s.count, true);
        PyObject* out = fields ? PyObject_CallOneArg(s.object, fields) : nullptr;
        Py_XDECREF(fields);
        return out;
      }
      case Kind::Dict:
        return dict(s);
    }
    return nullptr;
  }

  // On failure the rest is still walked so that every leaf reference is released.
  PyObject* items(PyObject* container, Py_ssize_t n, bool tuple) {
    bool ok = container != nullptr;
    for (Py_ssize_t i = 0; i < n; ++i) {
      PyObject* item = one();
      if (!item) ok = false;
      if (!container)
        Py_XDECREF(item);
      else if (tuple)
        PyTuple_SET_ITEM(container, i, item);
      else
        PyList_SET_ITEM(container, i, item);
    }
    if (!ok) Py_CLEAR(container);
    return container;
  }

  PyObject* dict(const Step& s) {
    PyObject* out = PyDict_New();
    bool ok = out != nullptr;
    for (Py_ssize_t i = 0; i < s.count; ++i) {
      PyObject* value = one();
      if (!value || (out && PyDict_SetItem(out, PyTuple_GET_ITEM(s.object, i), value) < 0)) ok = false;
      Py_XDECREF(value);
    }
    if (!ok) Py_CLEAR(out);
    return out;
  }
};

PyObject* Recipe::rebuild(PyObject** leaves, PyObject* const* numbers) const {
  Builder builder{steps_.data(), leaves, numbers};
  return builder.one();
}

}  // namespace fastjit::dispatch
