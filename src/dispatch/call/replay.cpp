#include "dispatch/call/replay.h"

#include "dispatch/call/plain_class.h"

namespace fastjit::dispatch {
namespace {

using observe::Ref;
using observe::SideEffect;
using Kind = SideEffect::Kind;

PyObject** slot_at(PyObject* target, Py_ssize_t place) {
  return reinterpret_cast<PyObject**>(reinterpret_cast<char*>(target) + place);
}

// The value is borrowed. What it replaces is kept in `replaced`.
bool store(Kind kind, PyObject* target, PyObject* key, Py_ssize_t place, PyObject* value, std::vector<Ref>& replaced) {
  PyObject* old = value_in(kind, target, key, place);
  if (PyErr_Occurred()) return false;
  replaced.push_back(Ref::share(old));
  switch (kind) {
    case Kind::SetItem:
      if (!PyDict_Check(target)) return PyObject_GenericSetAttr(target, key, value) == 0;
      return PyDict_SetItem(target, key, value) == 0;
    case Kind::SetIndex:
      return PyList_SetItem(target, place, Py_NewRef(value)) == 0;
    case Kind::Append:
      return PyList_Append(target, value) == 0;
    case Kind::SetCell:
      return PyCell_Set(target, value) == 0;
    case Kind::SetSlot: {
      PyObject** slot = slot_at(target, place);
      Py_INCREF(value);
      Py_XSETREF(*slot, value);
      return true;
    }
    case Kind::Print:
    case Kind::Warn:
    case Kind::Call:
      break;
  }
  return false;
}

// As warnings.warn() does for the frame that these are the globals, the file and the line of.
bool warn_at(PyObject* globals, PyObject* category, PyObject* text, PyObject* file, PyObject* line) {
  static PyObject* const key = PyUnicode_InternFromString("__warningregistry__");
  static PyObject* const name = PyUnicode_InternFromString("__name__");
  Ref registry = Ref::share(PyDict_GetItemWithError(globals, key));
  if (!registry && !PyErr_Occurred()) {
    registry = Ref::steal(PyDict_New());
    if (registry && PyDict_SetItem(globals, key, registry.get()) < 0) registry = {};
  }
  Ref module = registry ? Ref::share(PyDict_GetItemWithError(globals, name)) : Ref();
  if (PyErr_Occurred()) return false;
  if (!module || !(module.get() == Py_None || PyUnicode_Check(module.get())))
    module = Ref::steal(PyUnicode_FromString("<string>"));
  const Ref warnings = Ref::steal(PyImport_ImportModule("_warnings"));
  const Ref warn = warnings ? Ref::steal(PyObject_GetAttrString(warnings.get(), "warn_explicit")) : Ref();
  return warn && bool(Ref::steal(PyObject_CallFunctionObjArgs(warn.get(), text, category, file, line, module.get(),
                                                              registry.get(), nullptr)));
}

bool warn(PyObject* target, PyObject* what, Py_ssize_t stack_level) {
  PyObject *category = PyTuple_GET_ITEM(what, 0), *text = PyTuple_GET_ITEM(what, 1);
  if (stack_level) return bool(Ref::steal(PyObject_CallFunction(target, "OOn", text, category, stack_level)));
  return warn_at(target, category, text, PyTuple_GET_ITEM(what, 2), PyTuple_GET_ITEM(what, 3));
}

bool is_stored(const SideEffect& effect) { return SideEffect::stores(effect.kind) && !effect.adds; }

bool is_in_place(const SideEffect& effect) {
  PyObject *target = effect.target.get(), *value = effect.value.get();
  if (effect.kind != Kind::Append) {
    const bool there = value_in(effect.kind, target, effect.key.get(), effect.place) == value;
    PyErr_Clear();
    return there;
  }
  for (Py_ssize_t i = PyList_GET_SIZE(target); i-- > 0;)
    if (PyList_GET_ITEM(target, i) == value) return true;
  return false;
}

}  // namespace

PyObject* value_in(Kind kind, PyObject* target, PyObject* key, Py_ssize_t place) {
  switch (kind) {
    case Kind::SetItem:
      if (!PyDict_Check(target)) target = attributes_of(target);
      return target ? PyDict_GetItemWithError(target, key) : nullptr;
    case Kind::SetIndex:
      return place < PyList_GET_SIZE(target) ? PyList_GET_ITEM(target, place) : nullptr;
    case Kind::SetCell:
      return PyCell_GET(target);
    case Kind::SetSlot:
      return *slot_at(target, place);
    case Kind::Append:
    case Kind::Print:
    case Kind::Warn:
    case Kind::Call:
      break;
  }
  return nullptr;
}

Stored stored_values(const std::vector<SideEffect>& effects) {
  Stored out;
  for (const SideEffect& effect : effects) {
    if (!is_stored(effect)) continue;
    out.values.push_back(effect.value.get());
    out.effects.push_back(&effect);
    if (is_in_place(effect)) ++out.in_places[effect.value.get()];
  }
  return out;
}

Replay::Replay(std::vector<SideEffect> effects, const std::function<int(PyObject*)>& argument) {
  for (SideEffect& effect : effects) {
    lines_.push_back(effect.text());
    PyObject* target = effect.target.get();
    const int which = effect.of_argument ? argument(target) : -1;
    if (effect.of_argument) target = nullptr;
    Effect own{effect.kind, effect.adds, effect.place, target, which, std::move(effect.key), {}, effect.where};
    if (!is_stored(effect)) own.constant = std::move(effect.value);
    stores_ |= !own.constant;
    effects_.push_back(std::move(own));
  }
}

int Replay::traverse(visitproc visit, void* arg) const {
  for (const Effect& effect : effects_) {
    Py_VISIT(effect.key.get());
    Py_VISIT(effect.constant.get());
  }
  return 0;
}

std::string Replay::refuse() const {
  for (const Effect& effect : effects_) {
    if (effect.argument >= 0) continue;  // the call's key says what it is
    if (effect.kind == Kind::Print && !observe::plain_stdout()) return "side effect: print at " + effect.where;
    const char* why =
        effect.kind == Kind::Warn ? observe::why_no_warning(PyTuple_GET_ITEM(effect.constant.get(), 0)) : nullptr;
    if (why) return "side effect: warnings.warn at " + effect.where + ", and " + why;
    const bool is_dict = effect.kind == Kind::SetItem,
               is_list = effect.kind == Kind::SetIndex || effect.kind == Kind::Append;
    const bool other = (is_dict && !PyDict_CheckExact(effect.target)) || (is_list && !PyList_CheckExact(effect.target));
    if (other) return "a store at " + effect.where + " goes to an object of another class";
  }
  return "";
}

std::vector<Ref> Replay::hold(PyObject* const* targets) const {
  std::vector<Ref> held;
  for (const Effect& effect : effects_) {
    PyObject* target = effect.of(targets);
    held.push_back(Ref::share(target));
    held.push_back(Ref::share(value_in(effect.kind, target, effect.key.get(), effect.place)));
  }
  PyErr_Clear();
  return held;
}

PyObject* Replay::apply(PyObject* made, PyObject* const* targets) const {
  if (!made) return nullptr;
  const Ref values = Ref::steal(made);
  const Ref result = Ref::steal(result_of(Py_NewRef(made)));
  std::vector<Ref> replaced;  // released last: finalisers may do anything
  Py_ssize_t next = 1;
  bool done = true;
  for (const Effect& effect : effects_) {
    PyObject* target = effect.of(targets);
    if (effect.kind == Kind::Print || effect.kind == Kind::Call) {
      done = bool(Ref::steal(PyObject_Call(target, effect.constant.get(), effect.key.get())));
    } else if (effect.kind == Kind::Warn) {
      done = warn(target, effect.constant.get(), effect.place);
    } else if (effect.adds) {
      PyObject* now = value_in(effect.kind, target, effect.key.get(), effect.place);
      if (!now && !PyErr_Occurred())
        PyErr_Format(PyExc_RuntimeError, "fastjit: the number added to at %s is gone", effect.where.c_str());
      const Ref sum = now ? Ref::steal(PyNumber_Add(now, effect.constant.get())) : Ref();
      done = sum && store(effect.kind, target, effect.key.get(), effect.place, sum.get(), replaced);
    } else {
      done =
          store(effect.kind, target, effect.key.get(), effect.place, PyTuple_GET_ITEM(values.get(), next++), replaced);
    }
    if (!done) return nullptr;
  }
  return Py_NewRef(result.get());
}

PyObject* Replay::result_of(PyObject* made) const {
  if (!made || !stores_) return made;
  const Ref values = Ref::steal(made);
  return Py_NewRef(PyTuple_GET_ITEM(made, 0));
}

}  // namespace fastjit::dispatch
