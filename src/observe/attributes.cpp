// Attribute reads and writes, by kind of object.
#include "observe/observe.h"

#if PY_VERSION_HEX < 0x030C0000
#include <structmember.h>

#include <cstring>
#include <string_view>

#include "observe/tracer.h"

namespace fastjit::observe {
namespace {

// Properties of a tensor that its metadata decides (the call key compares it), or that are operators.
constexpr std::string_view kTensorAttributes[] = {"shape",
                                                  "dtype",
                                                  "device",
                                                  "ndim",
                                                  "layout",
                                                  "requires_grad",
                                                  "is_leaf",
                                                  "itemsize",
                                                  "nbytes",
                                                  "names",
                                                  "T",
                                                  "mT",
                                                  "H",
                                                  "mH",
                                                  "real",
                                                  "imag",
                                                  "is_cuda",
                                                  "is_cpu",
                                                  "is_xpu",
                                                  "is_mps",
                                                  "is_meta",
                                                  "is_sparse",
                                                  "is_sparse_csr",
                                                  "is_mkldnn",
                                                  "is_quantized",
                                                  "is_nested",
                                                  "is_vulkan",
                                                  "is_ipu",
                                                  "is_maia",
                                                  "is_mtia",
                                                  "is_xla",
                                                  "is_hpu",
                                                  "is_floating_point"};

bool is_method_kind(PyObject* attr) {
  return Py_IS_TYPE(attr, &PyMethodDescr_Type) || Py_IS_TYPE(attr, &PyWrapperDescr_Type) ||
         Py_IS_TYPE(attr, &PyClassMethodDescr_Type) || PyCFunction_Check(attr) ||
         !std::strcmp(Py_TYPE(attr)->tp_name, "staticmethod") || !std::strcmp(Py_TYPE(attr)->tp_name, "classmethod");
}

// Where an attribute of __slots__ is kept.
PyObject** slot_of(PyObject* o, PyObject* attr) {
  if (!Py_IS_TYPE(attr, &PyMemberDescr_Type)) return nullptr;
  const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(attr)->d_member;
  return member->type == T_OBJECT_EX ? reinterpret_cast<PyObject**>(reinterpret_cast<char*>(o) + member->offset)
                                     : nullptr;
}

bool is_named(PyObject* name, const char* text) { return PyUnicode_CompareWithASCIIString(name, text) == 0; }

}  // namespace

std::string Tracer::attr_text(PyObject* o, PyObject* name) { return name_of(o) + "." + PyUnicode_AsUTF8(name); }

void Tracer::load_attr(PyObject* o, PyObject* name, bool probing) {
  top().expect_probing = probing;
  if (is_tensor(o)) return load_tensor_attr(o, name);
  if (PyModule_Check(o)) return load_python_module_attr(o, name, probing);
  if (PyFunction_Check(o)) return load_function_attr(o, name);
  if (PyType_Check(o)) return load_class_attr(o, name);
  if (Py_IS_TYPE(o, &PySuper_Type)) return load_super_attr(o, name);
  if (PyMethod_Check(o) && !is_named(name, "__self__") && !is_named(name, "__func__"))
    return load_function_attr(PyMethod_GET_FUNCTION(o), name);
  bool is_heap = Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE;
  if (!is_heap || (PyTuple_Check(o) && is_tuple(o))) return load_value_attr(o, name);
  if (is_instance(o)) return load_plain_attr(o, name, probing);
  deny("read of " + attr_text(o, name));
}

void Tracer::load_plain_attr(PyObject* o, PyObject* name, bool probing) {
  if (!plain_getattribute(Py_TYPE(o))) return own_getattribute(o, name);
  fresh_.contains(o) ? load_fresh_attr(o, name, probing) : load_module_attr(o, name, probing);
}

// A class with a __getattribute__ written in Python, which is watched.
void Tracer::own_getattribute(PyObject* o, PyObject* name) {
  note_instance(o);
  PyObject* method = class_attr(Py_TYPE(o), intern(PyUnicode_FromString("__getattribute__")));
  PyObject* fallback = class_attr(Py_TYPE(o), intern(PyUnicode_FromString("__getattr__")));
  if (!method || !PyFunction_Check(method) || fallback) return deny("read of " + attr_text(o, name));
  may_enter(method);
}

// Objects of C types: methods come from the type; data only from objects that never change.
void Tracer::load_value_attr(PyObject* o, PyObject* name) {
  bool is_heap = Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE;
  PyObject* attr = is_heap ? class_attr(Py_TYPE(o), name) : type_lookup(Py_TYPE(o), name, nullptr);
  touch(o);
  const bool is_absent = !attr && is_plain_value(o) && top().expect_probing;  // builtin classes never change
  if (is_absent) return;
  if (!attr) return deny("read of " + attr_text(o, name));
  if (is_method_kind(attr)) return;
  bool never_changes = is_plain_value(o) || PySlice_Check(o) || PyCode_Check(o) || PyMethod_Check(o) ||
                       (PyTuple_Check(o) && is_tuple(o)) || PyCFunction_Check(o) || is_named(name, "__class__");
  if (never_changes && !PyFunction_Check(attr)) return Py_IS_TYPE(attr, &PyProperty_Type) ? may_enter_any() : void();
  if (is_heap && PyFunction_Check(attr)) return;
  deny("read of " + attr_text(o, name));
}

void Tracer::load_tensor_attr(PyObject* o, PyObject* name) {
  PyTypeObject* type = Py_TYPE(o);
  PyObject* attr = class_attr(type, name);
  if (attr && (is_method_kind(attr) || PyFunction_Check(attr) || is_named(name, "__class__"))) return;
  std::string_view text = PyUnicode_AsUTF8(name);
  for (std::string_view known : kTensorAttributes)
    if (attr && text == known) return may_enter_any();
  deny("read of " + std::string("Tensor.") + std::string(text));
}

void Tracer::load_function_attr(PyObject* o, PyObject* name) {
  for (const char* fixed : {"__name__", "__qualname__", "__module__", "__doc__", "__get__", "__call__", "__class__"})
    if (is_named(name, fixed)) return;
  if (PyFunction_Check(o) && fresh_.contains(o)) return;
  if (PyFunction_Check(o) && is_named(name, "__code__")) {
    facts_->function((PyFunctionObject*)o, where());
    return;
  }
  deny("read of function " +
       std::string(PyFunction_Check(o) ? PyUnicode_AsUTF8(((PyFunctionObject*)o)->func_name) : "") + "." +
       PyUnicode_AsUTF8(name));
}

void Tracer::load_class_attr(PyObject* o, PyObject* name) {
  auto* type = reinterpret_cast<PyTypeObject*>(o);
  PyObject* meta = type_lookup(Py_TYPE(o), name, nullptr);
  if (meta && Py_TYPE(meta)->tp_descr_set) {
    for (const char* fixed : {"__name__", "__qualname__", "__module__"})
      if (is_named(name, fixed)) return;
    return deny("read of " + attr_text(o, name));
  }
  if (Py_TYPE(o) != &PyType_Type) class_attr(Py_TYPE(o), name);
  PyObject* attr = class_attr(type, name);
  if (!attr) return meta ? void() : deny("read of " + attr_text(o, name));
  if (is_method_kind(attr) || PyFunction_Check(attr) || !Py_TYPE(attr)->tp_descr_get) return;
  if (Py_IS_TYPE(attr, &PyProperty_Type) || Py_IS_TYPE(attr, &PyMemberDescr_Type)) return;  // the descriptor itself
  may_enter_any();
}

void Tracer::load_super_attr(PyObject* o, PyObject* name) {
  auto* super = reinterpret_cast<SuperObject*>(o);
  if (!super->object_type) return deny("read of " + attr_text(o, name));
  PyObject* attr = class_attr(super->object_type, name, super->type);
  if (!attr) return deny("read of " + attr_text(o, name));
  if (Py_IS_TYPE(attr, &PyProperty_Type)) may_enter_any();
}

bool Tracer::plain_getattribute(PyTypeObject* type) {
  static PyObject* name = PyUnicode_InternFromString("__getattribute__");
  PyObject* method = type_lookup(type, name, nullptr);  // dict and other C types have a slot wrapper of their own
  return method && Py_IS_TYPE(method, &PyWrapperDescr_Type) &&
         reinterpret_cast<PyWrapperDescrObject*>(method)->d_wrapped == (void*)PyObject_GenericGetAttr;
}

bool Tracer::descriptor(PyObject* o, PyObject* attr, PyObject* name) {
  if (!attr || !Py_TYPE(attr)->tp_descr_set) return false;
  if (Py_IS_TYPE(attr, &PyProperty_Type) || (Py_TYPE(attr)->tp_flags & Py_TPFLAGS_HEAPTYPE))
    return may_enter_any(), true;
  if (is_named(name, "__class__")) return true;
  if (Py_IS_TYPE(attr, &PyMemberDescr_Type) && fresh_.contains(o)) return true;
  if (PyObject** slot = is_reached(o) ? slot_of(o, attr) : nullptr) {
    note_instance(o);
    const std::string label = names_[o] + "." + PyUnicode_AsUTF8(name);
    found(facts_->read_slot(slot, label, where()), label);
    return true;
  }
  deny("read of " + attr_text(o, name));
  return true;
}

void Tracer::fallback_getattr(PyObject* o, PyObject* name, bool probing) {
  PyObject* hook = class_attr(Py_TYPE(o), intern(PyUnicode_FromString("__getattr__")));
  if (hook && PyFunction_Check(hook)) return may_enter(hook);
  if (!probing || hook) deny("read of " + attr_text(o, name));
}

void Tracer::load_fresh_attr(PyObject* o, PyObject* name, bool probing) {
  PyObject* attr = class_attr(Py_TYPE(o), name);
  if (attr && is_named(name, "__dict__")) {
    if (PyObject* dict = PyObject_GenericGetDict(o, nullptr)) {
      fresh_.insert(dict);
      Py_DECREF(dict);
    }
    return;
  }
  if (descriptor(o, attr, name)) return;
  PyObject** slot = _PyObject_GetDictPtr(o);
  if (slot && *slot && dict_lookup(*slot, name, nullptr)) return;
  if (attr) return Py_TYPE(attr)->tp_descr_get && !PyFunction_Check(attr) ? may_enter_any() : void();
  fallback_getattr(o, name, probing);
}

void Tracer::store_attr(PyObject* o, PyObject* name, PyObject* value) {
  touch(value);
  if (PyFunction_Check(o) && fresh_.contains(o)) return;
  if (!fresh_.contains(o) || !(Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE) || is_tensor(o) || PyType_Check(o))
    return deny("store to " + attr_text(o, name));
  PyObject* hook = class_attr(Py_TYPE(o), intern(PyUnicode_FromString("__setattr__")));
  if (hook && PyFunction_Check(hook)) return may_enter(hook);
  PyObject* attr = class_attr(Py_TYPE(o), name);
  if (attr && Py_TYPE(attr)->tp_descr_set) {
    if (Py_IS_TYPE(attr, &PyMemberDescr_Type)) return;
    may_enter_any();
  }
}

}  // namespace fastjit::observe
#endif
