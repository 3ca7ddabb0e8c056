// Which object an argument is. The call's key says what arguments hold, not which objects they are: what depends on
// that needs a constraint of its own, or is unsound.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>

#include "observe/judge/tracer.h"
#include "observe/sets.h"

namespace fastjit::observe {
namespace {

bool holds_items(PyObject* o) {
  return PyList_CheckExact(o) || PyDict_Check(o) || PyTuple_Check(o) || PySet_CheckExact(o);
}

}  // namespace

void Tracer::compare_identity(PyObject* a, PyObject* b) {
  if (Py_TYPE(a) != Py_TYPE(b) || fresh_.contains(a) || fresh_.contains(b)) return;  // never one object
  if (is_tensor(a)) {
    know_apart(a), know_apart(b);
    if (a != b && (gradients_.contains(a) || gradients_.contains(b))) return deny("identity of a gradient");
    const auto known = [&](PyObject* t) { return arguments_.contains(t) || told_.contains(t); };
    const bool of_argument = arguments_.contains(a) || arguments_.contains(b);
    const std::pair pair(a, b);
    const bool noted = a != b && of_argument && known(a) && known(b);
    if (noted && compared_.insert(pair).second) identities_.push_back(pair);
    return;
  }
  const bool by_content = PyTuple_Check(a) || arguments_.contains(a) || arguments_.contains(b);
  if (described_.contains(a) || described_.contains(b)) return deny("identity of " + name_of(a));
  const bool is_value = PyLong_CheckExact(a) || PyFloat_CheckExact(a) || PyComplex_CheckExact(a) ||
                        PyUnicode_CheckExact(a) || PyBytes_CheckExact(a);
  if (is_copying() && (is_value || (PyTuple_CheckExact(a) && a == b))) return;  // a copy of a tuple may be that tuple
  if (is_value || (holds_items(a) && by_content)) deny("identity of " + name_of(a));
}

void Tracer::find_identical(PyObject* container, PyObject* item) {
  if (!is_tensor(item) || !(PyList_Check(container) || PyTuple_Check(container))) return;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(container); ++i)
    compare_identity(item, PySequence_Fast_ITEMS(container)[i]);
}

void Tracer::judge_search(PyObject* callee, Args args) {
  if (args.size() < 2 || !readable_args(args, callee)) return;
  find_identical(args[0], args[1]);
  if (holds_nan(args[1])) return deny("comparison of " + name_of(args[1]));
  may_enter_any();
}

void Tracer::meet_argument(PyObject* reached, const std::string& label) {
  if (gradients_.contains(reached)) return deny("read of " + label + ", which is a gradient as well,");
  if (!arguments_.contains(reached)) return;
  if (is_tensor(reached)) return told_.contains(reached) ? void() : void(identities_.emplace_back(reached, reached));
  deny("read of " + label + ", which is an argument as well,");
}

// The tensors in `o`: which objects they are matters.
void Tracer::know_apart(PyObject* o, int depth) {
  if (is_tensor(o)) return static_cast<void>(known_apart_.insert(o));
  if (depth > 8) return;
  if (PyList_Check(o) || PyTuple_Check(o)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i) know_apart(PySequence_Fast_ITEMS(o)[i], depth + 1);
  } else if (PyDict_Check(o)) {
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(o, &at, &key, &value);) know_apart(value, depth + 1);
  } else if (PyAnySet_Check(o)) {
    for (const setentry& place : set_places(o))
      if (holds_item(place)) know_apart(place.key, depth + 1);
  }
}

bool Tracer::holds_argument_tensor(PyObject* o, int depth) {
  if (is_tensor(o)) return arguments_.contains(o);
  if (depth > 8) return true;
  if (PyList_Check(o) || PyTuple_Check(o)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
      if (holds_argument_tensor(PySequence_Fast_ITEMS(o)[i], depth + 1)) return true;
  } else if (PyDict_Check(o)) {
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(o, &at, &key, &value);)
      if (holds_argument_tensor(value, depth + 1)) return true;
  }
  return false;
}

}  // namespace fastjit::observe
#endif
