// Functions of torch.nn.Module whose code is known (python/fastjit/_known_frames.py): what they read is noted when they
// are entered, the same facts that judging their instructions gives, and the instructions themselves are not watched.
// Where one would do anything but what nearly all calls do, it is watched like any other.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>
#include <array>
#include <utility>

#include "observe/judge/tracer.h"

namespace fastjit::observe {
namespace {

constexpr const char* kHooks[] = {"_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks"};
constexpr const char* kGlobalHooks[] = {"_global_backward_pre_hooks", "_global_backward_hooks", "_global_forward_hooks",
                                        "_global_forward_pre_hooks"};

bool is_empty(PyObject* o) { return o && is_dict(o) && PyDict_GET_SIZE(o) == 0; }

/// Its attributes, borrowed; null where it can have none.
PyObject* own_dict(PyObject* o) {
  const Ref dict = Ref::steal(PyObject_GenericGetDict(o, nullptr));
  if (!dict) PyErr_Clear();
  return dict.get();
}

PyObject* own_attr(PyObject* o, PyObject* name) {
  PyObject* dict = own_dict(o);
  return dict ? dict_lookup(dict, name, nullptr) : nullptr;
}

/// What `o.name` gives where it is an attribute of the object, or the class's and no descriptor; else null.
PyObject* plain_attr(PyObject* o, PyObject* name) {
  PyObject* of_class = type_lookup(Py_TYPE(o), name, nullptr);
  if (of_class && Py_TYPE(of_class)->tp_descr_set) return nullptr;
  if (PyObject* own = own_attr(o, name)) return own;
  return of_class && !Py_TYPE(of_class)->tp_descr_get ? of_class : nullptr;
}

/// What a module of Python holds under the name.
PyObject* item_of(PyObject* module, PyObject* name) {
  return module && PyModule_CheckExact(module) ? dict_lookup(PyModule_GetDict(module), name, nullptr) : nullptr;
}

/// A method of the class that is a plain function, which no attribute of the object hides; else null.
PyObject* plain_method(PyObject* o, PyObject* name) {
  PyObject* method = type_lookup(Py_TYPE(o), name, nullptr);
  if (!method || !PyFunction_Check(method) || own_attr(o, name)) return nullptr;
  return reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(method))->co_flags & kRunsLater ? nullptr : method;
}

}  // namespace

struct Tracer::KnownFrame {
  const char* name;
  bool (Tracer::*notes)();  // what the frame reads; false, before anything is noted: watch it
  PyCodeObject* code = nullptr;
};

std::span<Tracer::KnownFrame> Tracer::known_frames() {
  static KnownFrame all[] = {
      {"__getattr__", &Tracer::notes_getattr},
      {"_wrapped_call_impl", &Tracer::notes_call},
      {"_call_impl", &Tracer::notes_call_impl},
  };
  return all;
}

void know_frames(PyObject* codes) { Tracer::know(codes); }

void Tracer::know(PyObject* codes) {
  for (KnownFrame& known : known_frames())
    known.code = reinterpret_cast<PyCodeObject*>(Py_XNewRef(PyDict_GetItemString(codes, known.name)));
}

PyObject* Tracer::argument(int i) {
  PyObject* o = local(i);
  return o && PyCell_Check(o) ? PyCell_GET(o) : o;
}

bool Tracer::notes_ahead() {
  const auto known = std::ranges::find(known_frames(), top().code, &KnownFrame::code);
  if (known == known_frames().end() || sum_.frame || top().probing) return false;
  if (!plain_getattribute(Py_TYPE(argument(0)))) return false;
  Frame as_it_was = top();
  if (!(this->*known->notes)()) return false;
  as_it_was.expect = top().expect;
  as_it_was.expected = top().expected;
  top() = std::move(as_it_was);
  raising_ = false;
  return true;
}

// The node of its dictionary, where facts alone say what it holds; else -1.
Facts::Id Tracer::plain_node(PyObject* module) {
  if (!is_module(module) || holds_no_facts(module) || !stored_.empty()) return -1;
  const Facts::Id known = facts_->known_dict(module);
  return known >= 0 ? known : facts_->instance_dict(module, std::string(label_of(module)), where());
}

// As load_attr() does, of an attribute that is in the dictionary or nowhere.
PyObject* Tracer::note_own(Facts::Id own, PyObject* module, PyObject* name) {
  class_attr(Py_TYPE(module), name);
  PyObject* value = nullptr;
  if (facts_->again(own, name, &value)) return value;
  return facts_->read_key(own, name, attr_label(module, name), where());
}

std::string Tracer::attr_label(PyObject* module, PyObject* name) {
  std::string label(label_of(module));
  if (!label.empty()) label += '.';
  return label += PyUnicode_AsUTF8(name);
}

// Module.__getattr__: a parameter, buffer or submodule, where there is one of that name.
bool Tracer::notes_getattr() {
  PyObject *self = argument(0), *name = argument(1), *dict = own_dict(self);
  if (!dict || !PyUnicode_CheckExact(name)) return false;
  size_t holder = 0;
  std::array<PyObject*, std::size(kModuleParts)> parts{};
  for (;; ++holder) {
    if (holder == parts.size()) return false;
    parts[holder] = dict_lookup(dict, literal(kModuleParts[holder]), nullptr);
    if (!parts[holder] || !PyDict_CheckExact(parts[holder])) return false;
    if (dict_lookup(parts[holder], name, nullptr)) break;
  }
  const Facts::Id own = plain_node(self);
  if (own < 0 || std::ranges::any_of(parts, [&](PyObject* part) { return part && is_known(part); })) return false;
  class_attr(Py_TYPE(self), "__dict__");
  for (size_t i = 0; i <= holder; ++i) {
    PyObject *part = literal(kModuleParts[i]), *key = intern(Py_NewRef(name)), *known = nullptr;
    if (!facts_->again(own, part, &known)) facts_->read_key(own, part, attr_label(self, part), where());
    const Facts::Id there = facts_->find(parts[i], Node::Kind::Dict);
    const Facts::Id node = there >= 0 ? there : facts_->dict(parts[i], attr_label(self, part));
    if (i == holder ? read_again(node, key, &known) : facts_->again(node, key, &known)) continue;
    PyObject* value = facts_->read_key(node, key, attr_label(self, key), where());
    if (value) found_in_module(std::string(label_of(self)), key, value);
  }
  return true;
}

// Module.__call__: on to _call_impl, where the module is not compiled by torch.
bool Tracer::notes_call() {
  PyObject *self = argument(0), *compiled = literal("_compiled_call_impl"), *next = literal("_call_impl");
  PyObject* method = plain_method(self, next);
  if (!method || plain_attr(self, compiled) != Py_None) return false;
  load_attr(self, compiled);
  load_attr(self, next);
  call_function(reinterpret_cast<PyFunctionObject*>(method));
  return true;
}

// Module._call_impl: on to forward(), where there are no hooks.
bool Tracer::notes_call_impl() {
  PyObject *self = argument(0), *next = literal("forward"), *globals = top().frame->globals;
  PyObject* method = plain_method(self, next);
  if (!method) return false;
  std::array<PyObject*, std::size(kHooks)> hooks{};
  for (size_t i = 0; i < hooks.size(); ++i)
    if (hooks[i] = plain_attr(self, literal(kHooks[i])); !is_empty(hooks[i])) return false;
  for (const char* name : kGlobalHooks)
    if (!is_empty(dict_lookup(globals, literal(name), nullptr))) return false;
  const Facts::Id own = plain_node(self);
  if (own < 0 || !notes_globals()) return false;
  note_own(own, self, next);
  for (size_t i = 0; i < hooks.size(); ++i) {
    note_own(own, self, literal(kHooks[i]));
    const Facts::Id known = facts_->find(hooks[i], Node::Kind::Dict);
    facts_->truth(known >= 0 ? known : facts_->dict(hooks[i], attr_label(self, literal(kHooks[i]))), where());
  }
  call_function(reinterpret_cast<PyFunctionObject*>(method));
  return true;
}

// The hooks of all modules, and the call that tells whether torch.jit traces, whose name depends on torch's release.
// They are the same for each module: once is enough.
bool Tracer::notes_globals() {
  PyObject* globals = top().frame->globals;
  if (noted_globals_ == globals) return true;
  PyObject *torch = dict_lookup(globals, name_at(0), nullptr), *c = item_of(torch, name_at(1));
  PyObject* tells = item_of(c, name_at(2));
  if (!tells || !PyCFunction_Check(tells)) return false;
  read_global(name_at(0));
  load_attr(torch, name_at(1));
  load_attr(c, name_at(2));
  call(tells, {});
  for (const char* name : kGlobalHooks) {
    read_global(literal(name));
    truth(dict_lookup(globals, literal(name), nullptr));
  }
  noted_globals_ = globals;
  return true;
}

}  // namespace fastjit::observe
#endif
