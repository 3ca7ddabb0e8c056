#include "dispatch/learn/fresh_call.h"

#include <pybind11/pybind11.h>

#include <bit>
#include <cmath>

#include "observe/observe.h"

namespace fastjit::dispatch {
namespace {

bool worth_replacing(PyObject* object, bool varies) {
  if (PyFloat_CheckExact(object)) return !std::isnan(PyFloat_AS_DOUBLE(object));  // containers look which one it is
  if (!PyLong_CheckExact(object)) return false;
  int overflow = 0;
  PyLong_AsLongLongAndOverflow(object, &overflow);
  return !overflow && (varies || !observe::is_shared(object));
}

bool differs(const ArgSpec& was, PyObject* now) {
  if (was.kind == ArgKind::Int) return PyLong_CheckExact(now) && PyObject_RichCompareBool(was.object, now, Py_EQ) == 0;
  return was.kind == ArgKind::Float && PyFloat_CheckExact(now) &&
         std::bit_cast<uint64_t>(was.number) != std::bit_cast<uint64_t>(PyFloat_AS_DOUBLE(now));
}

}  // namespace

std::vector<bool> varying_numbers(const std::vector<const CallSpec*>& known, PyObject* const* args, Py_ssize_t total) {
  std::vector<bool> out(static_cast<size_t>(total), false);
  for (const CallSpec* call : known) {
    const std::vector<size_t> arguments = call->arguments();
    if (arguments.empty() || arguments.back() + 1 != out.size()) continue;
    for (size_t i = 0; i < arguments.size(); ++i) {
      PyObject* now = args[arguments[i]];
      const bool is_part = i > 0 && arguments[i] == arguments[i - 1];
      const ArgSpec& was = call->specs()[i];
      if (!is_part && (differs(was, now) || (was.kind == ArgKind::Number && was.type == Py_TYPE(now))))
        out[arguments[i]] = true;
    }
  }
  return out;
}

void make_fresh(FreshCall& call, PyObject* const* args, Py_ssize_t total, const std::vector<std::string>& names,
                const std::vector<bool>& varying) {
  for (Py_ssize_t i = 0; i < total; ++i) {
    call.args.push_back(args[i]);
    if (!worth_replacing(args[i], varying[static_cast<size_t>(i)])) continue;
    PyObject* copy = observe::own_copy(args[i]);
    if (!copy && PyErr_Occurred()) throw pybind11::error_already_set();
    if (!copy) continue;
    call.args.back() = copy;
    call.fresh.push_back(copy);
    call.originals.push_back(args[i]);
    call.names.push_back(names[static_cast<size_t>(i)]);
    call.varying.push_back(varying[static_cast<size_t>(i)]);
  }
}

}  // namespace fastjit::dispatch
