// Attribute reads and writes, by kind of object.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <structmember.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "observe/events/opcode_numbers.h"
#include "observe/judge/tracer.h"

namespace fastjit::observe {
namespace {

// Properties of a tensor that its metadata decides (the call key compares it), or that are operators.
constexpr std::string_view kTensorAttributes[] = {
    "shape",     "dtype",     "device", "ndim",    "layout",    "requires_grad", "itemsize",  "nbytes",
    "names",     "T",         "mT",     "H",       "mH",        "real",          "imag",      "is_cuda",
    "is_cpu",    "is_xpu",    "is_mps", "is_meta", "is_sparse", "is_sparse_csr", "is_mkldnn", "is_quantized",
    "is_nested", "is_vulkan", "is_ipu", "is_maia", "is_mtia",   "is_xla",        "is_hpu",    "is_floating_point"};

bool is_method_kind(PyObject* attr) {
  return Py_IS_TYPE(attr, &PyMethodDescr_Type) || Py_IS_TYPE(attr, &PyWrapperDescr_Type) ||
         Py_IS_TYPE(attr, &PyClassMethodDescr_Type) || PyCFunction_Check(attr) ||
         !std::strcmp(Py_TYPE(attr)->tp_name, "staticmethod") || !std::strcmp(Py_TYPE(attr)->tp_name, "classmethod");
}

}  // namespace

std::string Tracer::attr_text(PyObject* o, PyObject* name) { return name_of(o) + "." + PyUnicode_AsUTF8(name); }

void Tracer::load_attr(PyObject* o, PyObject* name, bool probing) {
  top().expect_probing = probing;
  if (is_tensor(o)) return load_tensor_attr(o, name, probing);
  if (PyModule_Check(o)) return load_python_module_attr(o, name, probing);
  if (PyFunction_Check(o)) return load_function_attr(o, name, probing);
  if (PyType_Check(o)) return load_class_attr(o, name, probing);
  if (Py_IS_TYPE(o, &PySuper_Type)) return load_super_attr(o, name);
  if (PyMethod_Check(o)) return load_method_attr(o, name, probing);
  bool is_heap = Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE && !is_deque(o);
  if (is_heap && PyTuple_Check(o) && is_tuple(o) && Py_TYPE(o)->tp_dictoffset) {
    PyObject* attr = class_attr(Py_TYPE(o), name);  // of a named tuple, its fields are data descriptors
    if (attr && Py_TYPE(attr)->tp_descr_set) return load_value_attr(o, name);
    return is_instance(o) ? load_plain_attr(o, name, probing) : deny("read of " + attr_text(o, name));
  }
  if (is_namespace(o) && is_instance(o)) return load_plain_attr(o, name, probing);
  if (!is_heap || is_plain_value(o) || (PyTuple_Check(o) && is_tuple(o))) return load_value_attr(o, name);
  if (is_instance(o)) return load_plain_attr(o, name, probing);
  deny("read of " + attr_text(o, name));
}

void Tracer::load_plain_attr(PyObject* o, PyObject* name, bool probing) {
  if (!plain_getattribute(Py_TYPE(o))) return own_getattribute(o, name);
  holds_no_facts(o) ? load_fresh_attr(o, name, probing) : load_module_attr(o, name, probing);
}

// A class with a __getattribute__ written in Python, which is watched.
void Tracer::own_getattribute(PyObject* o, PyObject* name) {
  note_instance(o);
  PyObject* method = class_attr(Py_TYPE(o), "__getattribute__");
  PyObject* fallback = class_attr(Py_TYPE(o), "__getattr__");
  if (!method || !PyFunction_Check(method) || fallback) return deny("read of " + attr_text(o, name));
  may_enter(method);
}

// What gives an item of a named tuple.
static bool is_field(PyObject* attr) {
  const char* type = attr ? std::strrchr(Py_TYPE(attr)->tp_name, '.') : nullptr;  // behind _collections or collections
  return type && !std::strcmp(type, "._tuplegetter");
}

// Objects of C types: methods come from the type; data only from objects that never change.
void Tracer::load_value_attr(PyObject* o, PyObject* name) {
  bool is_heap = Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE && !is_deque(o);  // a type that never changes
  PyObject* attr = is_heap ? class_attr(Py_TYPE(o), name) : type_lookup(Py_TYPE(o), name, nullptr);
  if (!is_field(attr)) touch(o);
  // Builtin classes never change, and most of their objects have no attributes of their own.
  PyObject** own = !is_heap && fresh_.contains(o) ? _PyObject_GetDictPtr(o) : nullptr;
  const bool is_own = !attr && own && *own && dict_lookup(*own, name, nullptr);
  if (is_own && PyODict_CheckExact(o)) return;  // as state_dict() gives its result one
  const bool is_bare = !Py_TYPE(o)->tp_dictoffset || (own && !is_own);
  const bool has_none = !is_heap && is_bare && Py_TYPE(o)->tp_getattro == PyObject_GenericGetAttr;
  if (!attr && (is_plain_value(o) || has_none)) {
    if (!top().expect_probing) raising_ = true;
    return;
  }
  // What a generator of the call has returned.
  if (Py_IS_TYPE(o, (PyTypeObject*)PyExc_StopIteration) && is_named(name, "value") && fresh_.contains(o)) return;
  // Where a frame of the call stands, the code that has run says.
  const auto is_here = [&](const Frame& one) { return reinterpret_cast<PyObject*>(one.frame->frame_object) == o; };
  const bool says_place = is_named(name, "f_code") || is_named(name, "f_lineno");
  if (PyFrame_Check(o) && says_place && std::ranges::any_of(frames_, is_here)) return;
  const bool may_be_assigned = PyCFunction_Check(o) && is_named(name, "__module__");
  if (may_be_assigned && is_reached(o)) {
    const std::string label = attr_text(o, name);
    PyObject* module = facts_->read_slot(&((PyCFunctionObject*)o)->m_module, label, where());
    return module ? static_cast<void>(found(module, label)) : void();
  }
  if (!attr || may_be_assigned) return deny("read of " + attr_text(o, name));
  if (is_method_kind(attr) || reads_array_attr(o, name)) return;
  if (is_union(o) && is_named(name, "__args__")) {
    const Ref parts = Ref::steal(PyObject_GetAttr(o, name));  // the union holds them
    return parts ? static_cast<void>(found(parts.get(), attr_text(o, name))) : PyErr_Clear();
  }
  bool never_changes = is_plain_value(o) || PySlice_Check(o) || PyCode_Check(o) || PyMethod_Check(o) ||
                       (PyTuple_Check(o) && is_tuple(o)) || PyCFunction_Check(o) || is_named(name, "__class__");
  if (never_changes && !PyFunction_Check(attr)) return Py_IS_TYPE(attr, &PyProperty_Type) ? may_enter_any() : void();
  if ((is_heap || fresh_.contains(o)) && PyFunction_Check(attr)) return;  // other classes never change
  deny("read of " + attr_text(o, name));
}

void Tracer::load_tensor_attr(PyObject* o, PyObject* name, bool probing) {
  PyTypeObject* type = Py_TYPE(o);
  PyObject* attr = class_attr(type, name);
  if (attr && (is_method_kind(attr) || PyFunction_Check(attr) || is_named(name, "__class__"))) return;
  std::string_view text = PyUnicode_AsUTF8(name);
  if (attr && text == "shape") read_sizes(o, Frame::kAllDims, top().ops[2 * top().offset] == k_LOAD_ATTR);
  if (attr && text == "nbytes" && host_.on_size_read) host_.on_size_read(host_.context, o, -1);
  for (std::string_view known : kTensorAttributes)
    if (attr && text == known) return may_enter_any();
  if (attr && text == "grad" && reads_grad(o)) return;
  if (attr && text == "grad_fn" && !has_graph(o)) return;
  if (attr && text == "data") return static_cast<void>(top().data_of = o);
  if (attr && text == "_version" && host_.counts_own_writes && host_.counts_own_writes(host_.context, o)) return;
  if (attr) return deny("read of Tensor." + std::string(text));
  load_own_tensor_attr(o, name, probing);
}

// Whether it has no history is said by requires_grad, which the call key and the facts compare.
bool Tracer::has_graph(PyObject* tensor) {
  const Ref needed = Ref::steal(PyObject_GetAttrString(tensor, "requires_grad"));
  const Ref history = Ref::steal(PyObject_GetAttrString(tensor, "grad_fn"));
  if (PyErr_Occurred()) PyErr_Clear();
  return needed.get() != Py_False || history.get() != Py_None;
}

// Each call may find another tensor there: which one it is nobody may ask.
bool Tracer::reads_grad(PyObject* tensor) {
  if (!is_reached(tensor) || gradients_.contains(tensor) || !host_.on_grad) return false;
  if (host_.is_own_grad && host_.is_own_grad(host_.context, tensor)) return true;
  know_apart(tensor);
  const std::string label = names_[tensor] + ".grad";
  PyObject* grad = host_.on_grad(host_.context, tensor, label.c_str());
  if (!grad || grad == Py_None) return grad != nullptr;
  if (gradients_.insert(grad).second) {
    if (names_.contains(grad) || arguments_.contains(grad)) return false;
    told_.insert(grad);
    names_.emplace(grad, label);
  }
  return true;
}

// What code has set on one tensor. A tensor that this call made has nothing.
void Tracer::load_own_tensor_attr(PyObject* o, PyObject* name, bool probing) {
  if (arguments_.contains(o)) {
    PyObject** slot = _PyObject_GetDictPtr(o);
    if (slot && *slot && PyDict_GET_SIZE(*slot)) return deny("read of Tensor." + std::string(PyUnicode_AsUTF8(name)));
    bare_.push_back(o);
  } else if (names_.contains(o)) {
    const std::string owner = names_[o], label = owner + "." + PyUnicode_AsUTF8(name);
    Facts::Id id = facts_->instance_dict(o, owner, where());
    if (id < 0) return deny("read of " + label);
    if (PyObject* value = facts_->read_key(id, name, label, where())) return static_cast<void>(found(value, label));
  } else if (is_tagged(o) && dict_lookup(*_PyObject_GetDictPtr(o), name, nullptr)) {
    return;
  }
  fallback_getattr(o, name, probing);
}

bool Tracer::is_tagged(PyObject* tensor) const {
  return std::ranges::any_of(tagged_, [&](const Ref& known) { return known.get() == tensor; });
}

// A tensor that this call made: whoever gets it as a result finds the attribute.
void Tracer::store_tensor_attr(PyObject* o, PyObject* name, PyObject* value) {
  PyObject** slot = _PyObject_GetDictPtr(o);
  const bool is_bare = slot && (!*slot || !PyDict_GET_SIZE(*slot));
  const bool is_new = !is_known(o) && !names_.contains(o) && host_.is_made && host_.is_made(host_.context, o);
  PyObject* hook = class_attr(Py_TYPE(o), "__setattr__");
  const bool is_hooked = hook && PyFunction_Check(hook);
  if (is_named(name, "requires_grad") && !is_hooked && may_require_grad(o, value)) {
    class_attr(Py_TYPE(o), name);
    return;
  }
  if (is_hooked || class_attr(Py_TYPE(o), name)) return deny("store to " + attr_text(o, name));
  const bool is_argument = arguments_.contains(o) && !told_.contains(o) && is_bare;
  if (is_argument) return bare_.push_back(o), store_to_argument(o, name, value);
  if (!is_new || !(is_bare || is_tagged(o))) return deny("store to " + attr_text(o, name));
  touch(value);
  if (is_bare) tagged_.push_back(Ref::share(o));
}

void Tracer::load_class_attr(PyObject* o, PyObject* name, bool probing) {
  auto* type = reinterpret_cast<PyTypeObject*>(o);
  PyObject* meta = type_lookup(Py_TYPE(o), name, nullptr);
  if (meta && Py_TYPE(meta)->tp_descr_set) {
    for (const char* known : {"__name__", "__qualname__", "__module__"})
      if (is_named(name, known)) return note_names(o);
    if (Py_IS_TYPE(meta, &PyProperty_Type)) {  // of its metaclass
      class_attr(Py_TYPE(o), name);
      return may_enter_any();
    }
    if (is_named(name, "__mro__")) {
      note_bases(type);
      return static_cast<void>(found(type->tp_mro, attr_text(o, name)));
    }
    return deny("read of " + attr_text(o, name));
  }
  if (Py_TYPE(o) != &PyType_Type) class_attr(Py_TYPE(o), name);
  PyObject* attr = class_attr(type, name);
  if (attr) note_descriptor(attr);
  if (!attr) return meta ? void() : fallback_getattr(o, name, probing);
  if (Py_IS_TYPE(attr, &PyStaticMethod_Type)) {
    const Ref function = Ref::steal(PyObject_GetAttrString(attr, "__func__"));  // the same as long as the attribute is
    if (function && PyFunction_Check(function.get())) found(function.get(), attr_text(o, name));
  }
  if (is_method_kind(attr) || PyFunction_Check(attr) || !Py_TYPE(attr)->tp_descr_get) return;
  if (Py_IS_TYPE(attr, &PyProperty_Type) || Py_IS_TYPE(attr, &PyMemberDescr_Type)) return;  // the descriptor itself
  may_enter_any();
}

void Tracer::load_super_attr(PyObject* o, PyObject* name) {
  auto* super = reinterpret_cast<SuperObject*>(o);
  if (!super->object_type) return deny("read of " + attr_text(o, name));
  if (is_instance(super->object)) note_instance(super->object);
  PyObject* attr = class_attr(super->object_type, name, super->type);
  if (!attr) return deny("read of " + attr_text(o, name));
  if (is_tensor(super->object)) return load_tensor_attr(super->object, name, false);
  if (!PyType_Check(super->object) && descriptor(super->object, attr, name)) return;  // slots, properties
  if (!PyFunction_Check(attr) && !is_method_kind(attr) && Py_TYPE(attr)->tp_descr_get) may_enter_any();
}

bool Tracer::plain_getattribute(PyTypeObject* type) {
  static PyObject* name = PyUnicode_InternFromString("__getattribute__");
  PyObject* method = class_attr(type, name);  // dict and other C types have a slot wrapper of their own
  return method && Py_IS_TYPE(method, &PyWrapperDescr_Type) &&
         reinterpret_cast<PyWrapperDescrObject*>(method)->d_wrapped == (void*)PyObject_GenericGetAttr;
}

// Whether a class attribute is a descriptor, and what it does, is decided by its own class.
void Tracer::note_descriptor(PyObject* attr) {
  PyTypeObject* type = Py_TYPE(attr);
  if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE) || is_tensor(attr)) return;
  note_instance(attr);
  for (const char* name : {"__get__", "__set__", "__delete__"}) class_attr(type, name);
}

bool Tracer::descriptor(PyObject* o, PyObject* attr, PyObject* name) {
  if (!attr || !Py_TYPE(attr)->tp_descr_set) return false;
  if (Py_IS_TYPE(attr, &PyProperty_Type) || (Py_TYPE(attr)->tp_flags & Py_TPFLAGS_HEAPTYPE))
    return may_enter_any(), true;
  if (is_named(name, "__class__")) return true;
  if (Py_IS_TYPE(attr, &PyMemberDescr_Type) && fresh_.contains(o)) return true;
  if (is_named(name, "__weakref__") && fresh_.contains(o) && Py_IS_TYPE(attr, &PyGetSetDescr_Type)) {
    const Ref made = Ref::steal(Py_TYPE(attr)->tp_descr_get(attr, o, (PyObject*)Py_TYPE(o)));
    if (made.get() == Py_None) return true;  // the call has made no weak reference to it so far
    PyErr_Clear();
  }
  // A field of a new named tuple, which it has for good.
  if (fresh_.contains(o) && PyTuple_Check(o) && is_field(attr)) return true;
  // Of the context of an autograd.Function: what requires grad is in the key and the facts, and what was saved the
  // recorder knows.
  const bool is_of_context = is_named(name, "needs_input_grad") || is_named(name, "saved_tensors");
  if (is_of_context && fresh_.contains(o)) return true;
  if (PyObject** slot = is_reached(o) ? slot_of(o, attr) : nullptr) {
    note_instance(o);
    const std::string label = names_[o] + "." + PyUnicode_AsUTF8(name);
    if (counts_place(reinterpret_cast<PyObject*>(slot), Node::Kind::Slot, label)) return true;
    found(facts_->read_slot(slot, label, where()), label);
    return true;
  }
  deny("read of " + attr_text(o, name));
  return true;
}

void Tracer::fallback_getattr(PyObject* o, PyObject* name, bool probing) {
  PyObject* hook = class_attr(Py_TYPE(o), "__getattr__");
  if (hook && PyFunction_Check(hook)) return may_enter(hook);
  if (hook) return deny("read of " + attr_text(o, name));
  if (!probing) raising_ = true;  // an AttributeError, as long as the facts hold
}

void Tracer::load_fresh_attr(PyObject* o, PyObject* name, bool probing) {
  PyObject* attr = class_attr(Py_TYPE(o), name);
  if (attr) note_descriptor(attr);
  if (attr && is_named(name, "__dict__")) {
    PyObject* dict = described_.contains(o) ? nullptr : PyObject_GenericGetDict(o, nullptr);
    if (dict) fresh_.insert(dict);
    return Py_XDECREF(dict);
  }
  if (descriptor(o, attr, name)) return;
  PyObject** slot = _PyObject_GetDictPtr(o);
  if (slot && *slot && dict_lookup(*slot, name, nullptr)) return note_attribute(o, name);
  if (attr) return Py_TYPE(attr)->tp_descr_get && !PyFunction_Check(attr) ? may_enter_any() : void();
  fallback_getattr(o, name, probing);
}

// A new object takes over a dictionary that existed before: what is read and stored there is not the object's own.
bool Tracer::replaces_parts(PyObject* o, PyObject* name, PyObject* value) {
  if (fresh_.contains(value)) return false;
  for (const char* part : {"__dict__", "__kwdefaults__", "__defaults__", "__code__"})
    if (is_named(name, part)) return deny("store to " + attr_text(o, name)), true;
  return false;
}

// Settings that a context gives a class and takes back: nothing of it is left when the call ends.
void Tracer::store_class_attr(PyTypeObject* type, PyObject* name) {
  PyObject* before = dict_lookup(type_dict(type), name, nullptr);
  const bool is_settable = Py_TYPE(type)->tp_setattro == PyType_Type.tp_setattro;
  const bool is_inherited = !before;                   // its own from the first call on that puts it back
  if (is_inherited && is_set_for_a_while(type, name))  // what its base has for now would stay
    return interrupt("what " + name_of((PyObject*)type) + " inherits");
  if (is_settable && is_inherited) before = class_attr(type, name);
  const bool is_plain = is_settable && before && is_constant(before);
  if (!is_plain) return deny("store to " + attr_text((PyObject*)type, name));
  if (class_sets_.contains({type, name})) return;
  class_attr(type, name);
  class_sets_.emplace(std::pair(type, name), ClassSet{Ref::share(before), is_inherited, where(),
                                                      placed("store to " + attr_text((PyObject*)type, name))});
}

// Whether what is found there is what the call has set. That no class before it has the name is a fact.
bool Tracer::is_set_for_a_while(PyTypeObject* type, PyObject* name, PyTypeObject* after) {
  PyObject* mro = type->tp_mro;
  Py_ssize_t first = 0;
  while (after && first < PyTuple_GET_SIZE(mro) && PyTuple_GET_ITEM(mro, first++) != (PyObject*)after) {
  }
  const auto dict_of = [&](Py_ssize_t i) { return type_dict((PyTypeObject*)PyTuple_GET_ITEM(mro, i)); };
  Py_ssize_t at = first;
  while (at < PyTuple_GET_SIZE(mro) && !dict_lookup(dict_of(at), name, nullptr)) ++at;
  if (at == PyTuple_GET_SIZE(mro) || !class_sets_.contains({(PyTypeObject*)PyTuple_GET_ITEM(mro, at), name}))
    return false;
  if (at > first) note_bases(type);
  for (Py_ssize_t i = first; i < at; ++i) note_own_key((PyTypeObject*)PyTuple_GET_ITEM(mro, i), name, where());
  return true;
}

// Whether the class itself has the attribute.
void Tracer::note_own_key(PyTypeObject* type, PyObject* name, const std::string& where) {
  const std::string owner = std::string(type->tp_name) + ".__dict__";
  facts_->has_key(facts_->dict(type_dict(type), owner), name, owner + "[" + words(name) + "]", where);
}

// What the call does not put back; empty: nothing. What was inherited is the class's own from now on, and a hit does
// not make it so.
std::string Tracer::lasting_class_set() {
  for (const auto& [place, set] : class_sets_) {
    auto [type, name] = place;
    PyObject* now = dict_lookup(type_dict(type), name, nullptr);
    if (!now || !same_bits(now, set.before.get())) return set.store;
    if (set.was_inherited && !facts_->abandoned()) note_own_key(type, name, set.where);
  }
  return "";
}

// `p.grad = None`, as zero_grad() has it.
bool Tracer::stores_grad(PyObject* tensor, PyObject* name, PyObject* value) {
  if (!is_named(name, "grad") || !is_reached(tensor) || gradients_.contains(tensor) || !host_.on_grad_set) return false;
  if (value != Py_None && !is_tensor(value)) return false;
  class_attr(Py_TYPE(tensor), name);
  know_apart(tensor);
  return host_.on_grad_set(host_.context, tensor, value);
}

// `p.data = p.data` changes nothing.
bool Tracer::stores_own_data(PyObject* tensor, PyObject* name, PyObject* value) {
  if (!is_named(name, "data") || !is_tensor(value) || !host_.is_own_data) return false;
  class_attr(Py_TYPE(tensor), name);
  return host_.is_own_data(host_.context, tensor, value);
}

void Tracer::store_attr(PyObject* o, PyObject* name, PyObject* value) {
  if (rehearsal_ && (!fresh_.contains(o) || contexts_.contains(o))) return deny("store to " + attr_text(o, name));
  if (PyType_Check(o) && is_reached(o) && is_constant(value))
    return store_class_attr(reinterpret_cast<PyTypeObject*>(o), name);
  if (is_tensor(o) && (stores_own_data(o, name, value) || stores_grad(o, name, value))) return;
  if (is_tensor(o)) return store_tensor_attr(o, name, value);
  if (described_.contains(o)) return store_described_attr(o, name, value, true);
  if (!fresh_.contains(o)) return store_reached_attr(o, name, value, true);
  if (replaces_parts(o, name, value)) return;
  if (PyFunction_Check(o) || (PyODict_CheckExact(o) && !type_lookup(Py_TYPE(o), name, nullptr))) return touch(value);
  const bool is_plain = Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE || is_namespace(o);
  if (!is_plain || is_tensor(o) || PyType_Check(o)) return deny("store to " + attr_text(o, name));
  PyObject* hook = class_attr(Py_TYPE(o), "__setattr__");
  if (hook && PyFunction_Check(hook)) return may_enter(hook);
  PyObject* attr = class_attr(Py_TYPE(o), name);
  if (attr) note_descriptor(attr);
  if (attr && Py_TYPE(attr)->tp_descr_set) {
    if (Py_IS_TYPE(attr, &PyMemberDescr_Type)) return;
    may_enter_any();
  }
}

// Of an argument that the key describes by its class and attributes: the next call's is found where this one was.
void Tracer::store_described_attr(PyObject* o, PyObject* name, PyObject* value, bool hooked) {
  PyTypeObject* type = Py_TYPE(o);
  PyObject* hook = hooked ? class_attr(type, "__setattr__") : nullptr;
  if (hook && PyFunction_Check(hook)) return may_enter(hook);
  PyObject* attr = class_attr(type, name);
  if (attr) note_descriptor(attr);
  if (attr && Py_TYPE(attr)->tp_descr_set) {
    const bool is_python = Py_IS_TYPE(attr, &PyProperty_Type) || Py_TYPE(attr)->tp_flags & Py_TPFLAGS_HEAPTYPE;
    return is_python ? may_enter_any() : deny("store to " + attr_text(o, name));
  }
  if (type->tp_setattro != PyObject_GenericSetAttr && hooked) return deny("store to " + attr_text(o, name));
  store_to_argument(o, name, value);
}

// Of a new object: nobody else finds it gone.
void Tracer::delete_attr(PyObject* o, PyObject* name) {
  if (!fresh_.contains(o) || !is_instance(o) || contexts_.contains(o)) return deny("deletion of " + attr_text(o, name));
  PyObject* hook = class_attr(Py_TYPE(o), "__delattr__");
  if (hook && PyFunction_Check(hook)) return may_enter(hook);
  PyObject* attr = class_attr(Py_TYPE(o), name);
  if (attr) note_descriptor(attr);
  if (attr && Py_TYPE(attr)->tp_descr_set && !Py_IS_TYPE(attr, &PyMemberDescr_Type)) return may_enter_any();
  raising_ = true;  // where there is none
}

// `hooked`: a __setattr__ of the class runs; otherwise it is object.__setattr__ itself that is called.
void Tracer::store_reached_attr(PyObject* o, PyObject* name, PyObject* value, bool hooked) {
  PyTypeObject* type = Py_TYPE(o);
  const bool is_module_object = PyModule_CheckExact(o);
  if (!is_reached(o) || !(is_module_object || is_instance(o))) return deny("store to " + attr_text(o, name));
  const std::string label = names_[o] + "." + PyUnicode_AsUTF8(name);
  if (is_module_object) {
    facts_->object(o, names_[o], where());
    return store_key(facts_->dict(PyModule_GetDict(o), names_[o]), name, value, label);
  }
  note_instance(o);
  PyObject* hook = hooked ? class_attr(type, "__setattr__") : nullptr;
  if (hook && PyFunction_Check(hook)) return enters_setattr(hook, value), may_enter(hook);
  if (hooked && type->tp_setattro != PyObject_GenericSetAttr) return deny("store to " + attr_text(o, name));
  PyObject* attr = class_attr(type, name);
  if (attr) note_descriptor(attr);
  if (attr && Py_TYPE(attr)->tp_descr_set) {
    if (PyObject** slot = slot_of(o, attr)) return store_place(SideEffect::Kind::SetSlot, o, slot, value, label);
    if (Py_IS_TYPE(attr, &PyProperty_Type) || (Py_TYPE(attr)->tp_flags & Py_TPFLAGS_HEAPTYPE)) return may_enter_any();
    return deny("store to " + attr_text(o, name));
  }
  const Facts::Id id = facts_->instance_dict(o, names_[o], where());
  if (id < 0) return deny("store to " + attr_text(o, name));
  store_key(id, name, value, label);
}

}  // namespace fastjit::observe
#endif
