// Classes that the call makes: each call has others, so that no fact, key or result may name one.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include "observe/judge/tracer.h"

namespace fastjit::observe {

// Which bases a class of the call's own has the call has said.
void Tracer::note_bases(PyTypeObject* type) {
  if (!fresh_.contains(reinterpret_cast<PyObject*>(type))) facts_->type_order(type, where());
}

// Of names, as values: how it makes the class is its own affair. The class says in which module it was made.
void Tracer::judge_namedtuple(PyObject* callee, Args args) {
  for (PyObject* arg : args)
    if (!holds_values_only(arg) || !readable(arg)) return deny("call of " + callee_text(callee));
  note_function(reinterpret_cast<PyFunctionObject*>(callee));
  read_global(literal("__name__"));
  if (!top().fresh_function) {
    PyFunctionObject* here = function_of(top().frame);
    const std::string label = std::string(PyUnicode_AsUTF8(here->func_name)) + ".__module__";
    found(facts_->read_slot(&here->func_module, label, where()), label);
  }
  top().makes_class = true;
  top().expect = Expect::Inside;
}

void Tracer::take_class(PyObject* made) {
  if (!PyType_Check(made)) return;
  classes_.push_back(Ref::share(made));
  fresh_.insert(made);
  PyObject *name, *member;
  for (Py_ssize_t at = 0; PyDict_Next(type_dict(reinterpret_cast<PyTypeObject*>(made)), &at, &name, &member);) {
    Ref inner = Py_IS_TYPE(member, &PyStaticMethod_Type) || Py_IS_TYPE(member, &PyClassMethod_Type)
                    ? Ref::steal(PyObject_GetAttrString(member, "__func__"))
                    : Ref::share(member);
    if (!inner || !PyFunction_Check(inner.get())) continue;
    const auto* function = reinterpret_cast<PyFunctionObject*>(inner.get());
    fresh_.insert(inner.get());
    if (PyObject* cells = function->func_closure)
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(cells); ++i) fresh_.insert(PyTuple_GET_ITEM(cells, i));
    if (is_named(name, "__new__")) namespaces_.insert(function->func_globals);  // it is made of text, for this class
  }
}

}  // namespace fastjit::observe
#endif
