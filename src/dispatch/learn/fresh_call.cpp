#include "dispatch/learn/fresh_call.h"

#include <pybind11/pybind11.h>

#include <bit>
#include <cmath>

#include "dispatch/call/plain_class.h"
#include "dispatch/learn/refuse.h"
#include "observe/observe.h"

namespace fastjit::dispatch {
namespace {

using observe::Ref;

bool is_number(const ArgSpec& spec) { return spec.kind == ArgKind::Int || spec.kind == ArgKind::Float; }

bool worth_replacing(PyObject* object, bool varies) {
  if (PyFloat_CheckExact(object)) return !std::isnan(PyFloat_AS_DOUBLE(object));  // containers look which one it is
  int overflow = 0;
  PyLong_AsLongLongAndOverflow(object, &overflow);
  return !overflow && (varies || !observe::is_shared(object));
}

bool varies(const ArgSpec& was, const ArgSpec& now) {
  if (was.kind == ArgKind::Number) return was.type == Py_TYPE(now.object);
  if (was.kind != now.kind) return false;
  if (was.kind == ArgKind::Int) return PyObject_RichCompareBool(was.object, now.object, Py_EQ) == 0;
  return std::bit_cast<uint64_t>(was.number) != std::bit_cast<uint64_t>(now.number);
}

// Where the specs of each argument begin, and where the last one's end.
std::vector<size_t> begins(const CallSpec& call) {
  const std::vector<size_t> arguments = call.arguments();
  std::vector<size_t> out;
  for (size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i] == out.size()) out.push_back(i);
  out.push_back(arguments.size());
  return out;
}

}  // namespace

std::vector<bool> varying_numbers(const std::vector<const CallSpec*>& known, const CallSpec& now) {
  std::vector<bool> out(now.flat().numbers.size(), false);
  const std::vector<size_t> mine = begins(now);
  for (const CallSpec* call : known) {
    const std::vector<size_t> its = begins(*call);
    if (its.size() != mine.size()) continue;
    size_t number = 0;
    for (size_t argument = 0; argument + 1 < mine.size(); ++argument) {
      const bool alike = its[argument + 1] - its[argument] == mine[argument + 1] - mine[argument];
      for (size_t i = mine[argument]; i < mine[argument + 1]; ++i) {
        if (!is_number(now.specs()[i])) continue;
        const size_t at = number++;
        if (alike && varies(call->specs()[i - mine[argument] + its[argument]], now.specs()[i])) out[at] = true;
      }
    }
  }
  return out;
}

// Goes through the arguments beside their specs.
struct FreshCall::Walk {
  FreshCall& call;
  const ArgSpec* spec;
  const std::vector<std::string>& names;
  const std::vector<bool>& varying;
  size_t number = 0;
  std::unordered_set<PyObject*> seen = {};  // containers; a number in two places would be two

  /// What takes the place of the object: itself, or a new one.
  Ref one(PyObject* object, bool is_argument) {
    const ArgSpec& s = *spec++;
    switch (s.kind) {
      case ArgKind::Int:
      case ArgKind::Float:
        return replaced(object, is_argument);
      case ArgKind::Tuple:
        return tuple(object, s);
      case ArgKind::List:
        items(object, s);
        break;
      case ArgKind::Dict:
        entries(object, s);
        break;
      case ArgKind::Instance:
        entries(attributes_of(object), s);
        break;
      default:
        break;
    }
    return Ref::share(object);
  }

  Ref replaced(PyObject* object, bool is_argument) {
    const size_t which = number++;
    if ((!is_argument && !varying[which]) || !worth_replacing(object, varying[which])) return Ref::share(object);
    Ref copy = Ref::steal(observe::own_copy(object));
    if (!copy && PyErr_Occurred()) throw pybind11::error_already_set();
    if (!copy) return Ref::share(object);
    call.fresh.push_back(copy.get());
    call.originals.push_back(object);
    call.names.push_back(names[which]);
    call.varying.push_back(varying[which]);
    call.made_.push_back(Ref::share(copy.get()));
    return copy;
  }

  // Numbers below the next `count` objects stay as they are.
  void skip(Py_ssize_t count) {
    for (; count > 0; --count, ++spec) {
      count += spec->length;
      number += is_number(*spec);
    }
  }

  // A tuple cannot be changed: another one takes its place.
  Ref tuple(PyObject* object, const ArgSpec& s) {
    PyTypeObject* type = s.type ? s.type : &PyTuple_Type;
    const bool is_known = type == &PyTuple_Type || is_python_class(type);
    if (!is_known || !seen.insert(object).second) return skip(s.length), Ref::share(object);
    Ref items = Ref::steal(PyTuple_New(s.length));
    if (!items) throw pybind11::error_already_set();
    bool differs = false;
    for (Py_ssize_t i = 0; i < s.length; ++i) {
      const Ref item = one(PyTuple_GET_ITEM(object, i), false);
      differs |= item.get() != PyTuple_GET_ITEM(object, i);
      PyTuple_SET_ITEM(items.get(), i, Py_NewRef(item.get()));
    }
    if (!differs) return Ref::share(object);
    if (type != &PyTuple_Type) {
      const Ref given = Ref::steal(PyTuple_Pack(1, items.get()));
      items = given ? Ref::steal(PyTuple_Type.tp_new(type, given.get(), nullptr)) : Ref();
      if (!items) throw pybind11::error_already_set();
    }
    call.made_.push_back(Ref::share(items.get()));
    return items;
  }

  void items(PyObject* list, const ArgSpec& s) {
    if (!seen.insert(list).second) return skip(s.length);
    for (Py_ssize_t i = 0; i < s.length; ++i) {
      PyObject* before = PyList_GET_ITEM(list, i);
      const Ref now = one(before, false);
      if (now.get() == before) continue;
      call.places_.push_back({Ref::share(list), {}, i, Ref::share(before), Ref::share(now.get())});
      PyList_SetItem(list, i, Py_NewRef(now.get()));
    }
  }

  void entries(PyObject* dict, const ArgSpec& s) {
    if (!dict || !seen.insert(dict).second) return skip(s.length);
    Py_ssize_t at = 0;
    PyObject *key, *before;
    while (PyDict_Next(dict, &at, &key, &before)) {
      if (!PyUnicode_CheckExact(key) && !PyLong_CheckExact(key)) {  // it may be sought by Python code
        skip(1);
        continue;
      }
      const Ref now = one(before, false);
      if (now.get() == before) continue;
      call.places_.push_back({Ref::share(dict), Ref::share(key), -1, Ref::share(before), Ref::share(now.get())});
      if (PyDict_SetItem(dict, key, now.get()) < 0) throw pybind11::error_already_set();
    }
  }
};

void FreshCall::make(PyObject* const* given, Py_ssize_t total, const CallSpec& spec,
                     const std::vector<std::string>& arguments, const std::vector<bool>& varying_numbers) {
  const std::vector<std::string> all = number_names(spec, arguments);
  Walk walk{*this, spec.specs().data(), all, varying_numbers};
  for (Py_ssize_t i = 0; i < total; ++i)
    args.push_back(walk.one(given[i], true).get());  // held by made_, or the caller
}

void FreshCall::restore() noexcept {
  for (; !places_.empty(); places_.pop_back()) {
    const Place& place = places_.back();
    PyObject* container = place.container.get();
    if (!place.key) {
      if (place.index < PyList_GET_SIZE(container) && PyList_GET_ITEM(container, place.index) == place.now.get())
        PyList_SetItem(container, place.index, Py_NewRef(place.before.get()));
    } else if (PyDict_GetItemWithError(container, place.key.get()) == place.now.get()) {
      PyDict_SetItem(container, place.key.get(), place.before.get());
    }
  }
}

}  // namespace fastjit::dispatch
