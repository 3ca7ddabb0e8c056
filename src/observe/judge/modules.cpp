// nn.Module instances and Python modules: their dictionaries are read as facts.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>
#include <string_view>

#include "observe/judge/tracer.h"

namespace fastjit::observe {
namespace {

bool is_module_part(PyObject* name) {
  const std::string_view text = PyUnicode_AsUTF8(name);
  return std::ranges::find(kModuleParts, text) != std::end(kModuleParts);
}

}  // namespace

void Tracer::found_in_module(const std::string& owner, PyObject* name, PyObject* value) {
  found(value, [&] { return owner + "." + PyUnicode_AsUTF8(name); });
  if (stored_.contains(value)) return;
  if (PyDict_CheckExact(value) && is_module_part(name)) module_dicts_.emplace(value, owner);
}

// What facts say already: repeated blocks ask for the same things again and again. False: the long way.
bool Tracer::reads_module_again(PyObject* o, PyObject* attr, PyObject* name, bool probing) {
  const Facts::Id id = facts_->known_dict(o);
  if (id < 0) return false;
  if (attr && Py_TYPE(attr)->tp_descr_set) {
    PyObject* dict = facts_->node(id).object;
    if (name != literal("__dict__") || !names_.contains(dict) || !module_dicts_.contains(dict)) return false;
    fresh_.erase(dict);
    return true;
  }
  PyObject* value = nullptr;
  if (!read_again(id, name, &value)) return false;
  if (value) return !PyDict_CheckExact(value) || module_dicts_.contains(value) || !is_module_part(name);
  if (attr && !PyFunction_Check(attr) && Py_TYPE(attr)->tp_descr_get) may_enter_any();
  if (!attr) fallback_getattr(o, name, probing);
  return true;
}

void Tracer::load_module_attr(PyObject* o, PyObject* name, bool probing) {
  PyTypeObject* type = Py_TYPE(o);
  PyObject* attr = class_attr(type, name);
  if (attr) note_descriptor(attr);
  if (reads_module_again(o, attr, name, probing)) return;
  const std::string owner(label_of(o));
  Facts::Id id = facts_->instance_dict(o, owner, where());
  if (id < 0) return load_dictless_attr(o, attr, name, probing);
  PyObject* dict = facts_->node(id).object;
  std::string_view text = PyUnicode_AsUTF8(name);
  if (attr && text == "__dict__") {
    names_.emplace(dict, owner + ".__dict__");
    module_dicts_.emplace(dict, owner);
    fresh_.erase(dict);
    return;
  }
  if (descriptor(o, attr, name)) return;
  std::string label = owner + "." + std::string(text);
  if (counts_key(id, name, label)) return;
  if (PyObject* value = facts_->read_key(id, name, label, where())) {
    return found_in_module(owner, name, value);
  }
  if (attr) {
    bool is_method = PyFunction_Check(attr) || !Py_TYPE(attr)->tp_descr_get;
    return is_method ? void() : may_enter_any();
  }
  fallback_getattr(o, name, probing);
}

// An instance with __slots__ only.
void Tracer::load_dictless_attr(PyObject* o, PyObject* attr, PyObject* name, bool probing) {
  if (descriptor(o, attr, name)) return;
  if (!attr) return fallback_getattr(o, name, probing);
  if (!PyFunction_Check(attr) && Py_TYPE(attr)->tp_descr_get) may_enter_any();
}

void Tracer::load_python_module_attr(PyObject* o, PyObject* name, bool probing) {
  if (!PyModule_CheckExact(o)) {
    PyObject* attr = class_attr(Py_TYPE(o), name);
    if (attr && Py_TYPE(attr)->tp_descr_set && descriptor(o, attr, name)) return;
  }
  PyObject* again = nullptr;
  if (facts_->find(o, Node::Kind::Object) >= 0 &&
      read_again(facts_->find(PyModule_GetDict(o), Node::Kind::Dict), name, &again) && again)
    return;
  std::string owner = names_.contains(o) ? names_[o] : PyModule_GetName(o) ? PyModule_GetName(o) : "module";
  facts_->object(o, owner, where());
  PyObject* dict = PyModule_GetDict(o);
  Facts::Id id = facts_->dict(dict, owner);
  std::string label = owner + "." + PyUnicode_AsUTF8(name);
  if (counts_key(id, name, label)) return;
  if (PyObject* value = facts_->read_key(id, name, label, where())) return static_cast<void>(found(value, label));
  if (type_lookup(Py_TYPE(o), name, nullptr)) return;
  PyObject* hook_name = intern(PyUnicode_FromString("__getattr__"));
  PyObject* hook = facts_->read_key(id, hook_name, owner + ".__getattr__", where());
  if (hook && PyFunction_Check(hook)) return may_enter(hook);
  if (hook) return call(hook, std::span<PyObject* const>(&name, 1));
  fallback_getattr(o, name, probing);
}

}  // namespace fastjit::observe
#endif
