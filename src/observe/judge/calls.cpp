// Calls: Python functions are watched, C functions are known by pointer or judged by the host.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>
#include <cstring>
#include <string_view>

#include "observe/judge/tracer.h"
#include "observe/known_functions.h"

namespace fastjit::observe {

bool Tracer::deny_unreadable(PyObject* o, const std::string& callee) {
  const bool is_container = PyList_Check(o) || PyDict_Check(o) || PyAnySet_Check(o);
  deny(is_container && !is_known(o) ? "read of item of " + name_of(o) + " by " + callee
                                    : "read of " + name_of(o) + " by " + callee);
  return false;
}

bool Tracer::readable_args(Args args, PyObject* callee) {
  for (PyObject* arg : args)
    if (!readable(arg)) return deny_unreadable(arg, callee_text(callee));
  return true;
}

bool Tracer::readable_args(Args args, const char* callee) {
  for (PyObject* arg : args)
    if (!readable(arg)) return deny_unreadable(arg, callee);
  return true;
}

// What pybind11 binds its C functions to: the function's own description.
static bool is_pybind_record(PyObject* self) {
  return std::strstr(Py_TYPE(self)->tp_name, "pybind11_detail_function_record") != nullptr;
}

PyObject* bound_to(PyObject* callable) noexcept {
  if (is_method_wrapper(callable)) return reinterpret_cast<WrapperObject*>(callable)->self;
  PyObject* self = PyCFunction_Check(callable) ? PyCFunction_GET_SELF(callable) : nullptr;
  return self && (PyModule_Check(self) || PyType_Check(self) || is_pybind_record(self)) ? nullptr : self;
}

// Methods of immutable builtin types read their arguments only.
static bool is_value_type(PyTypeObject* type) {
  for (PyTypeObject* known : {&PyUnicode_Type, &PyLong_Type, &PyFloat_Type, &PyComplex_Type, &PyTuple_Type,
                              &PyBytes_Type, &PyBool_Type, &PyRange_Type, &PyFrozenSet_Type, &PySlice_Type})
    if (type == known) return true;
  return false;
}

// It may look at the frame that calls it, as globals() does: nobody may stand in for its caller.
bool Tracer::is_foreign(PyObject* callable) {
  if (is_partial(callable)) return is_foreign(reinterpret_cast<PartialObject*>(callable)->function);
  if (PyMethod_Check(callable)) return is_foreign(PyMethod_GET_FUNCTION(callable));
  const bool is_method = Py_IS_TYPE(callable, &PyMethodDescr_Type) || Py_IS_TYPE(callable, &PyWrapperDescr_Type);
  if (!is_method && !PyCFunction_Check(callable)) return false;
  if (const Callee* row = find_callee(callable)) return row->judge == &Tracer::judge_side_effect;
  PyObject* self = is_method ? nullptr : PyCFunction_GET_SELF(callable);
  if (is_value_type(is_method ? PyDescr_TYPE(callable) : self ? Py_TYPE(self) : nullptr)) return false;
  return !host_.classify || host_.classify(callable) == Host::Callee::Unknown;
}

void Tracer::call(PyObject* callable, Args args) {
  if (callable == rehearsal_) {
    top().makes_context = true;
    return may_enter_any();
  }
  if (PyFunction_Check(callable)) {
    auto* f = reinterpret_cast<PyFunctionObject*>(callable);
    if (const Callee* row = find_callee(callable)) return apply(*row, callable, args);  // called again as it is
    return fills_own_cache(f, args) || prepares(f, args) ? void() : call_function(f);
  }
  if (PyMethod_Check(callable)) {
    std::vector<PyObject*> all{PyMethod_GET_SELF(callable)};
    all.insert(all.end(), args.begin(), args.end());
    return call(PyMethod_GET_FUNCTION(callable), all);
  }
  if (PyObject* inner = host_.unwrap ? host_.unwrap(callable) : nullptr) return call(inner, args);
  if (is_partial(callable)) return call_partial(callable, args);
  if (is_cache(callable)) return call_cache(callable, args);
  if (PyWeakref_CheckRefExact(callable) && is_reached(callable)) {
    const std::string label = "the referent of " + names_[callable];
    PyObject** slot = &reinterpret_cast<PyWeakReference*>(callable)->wr_object;
    return static_cast<void>(found(facts_->read_slot(slot, label, where()), label));
  }
  // A new one gives what it was made of, as long as that lives.
  if (PyWeakref_CheckRefExact(callable) && fresh_.contains(callable) && PyWeakref_GET_OBJECT(callable) != Py_None)
    return;
  std::vector<PyObject*> with_self;
  PyObject* self = bound_to(callable);
  if (self) {
    with_self.push_back(self);
    with_self.insert(with_self.end(), args.begin(), args.end());
    args = with_self;
  }
  if (const Callee* row = find_callee(callable)) return apply(*row, callable, args);
  if (calls_numpy(callable, args)) return;
  if (calls_getter(callable, args)) return;
  if (PyType_Check(callable)) return call_type((PyTypeObject*)callable, args);
  if (is_module(callable) || is_instance(callable)) {
    note_instance(callable);
    PyObject* method = class_attr(Py_TYPE(callable), "__call__");
    PyObject* inner = method && host_.unwrap ? host_.unwrap(method) : nullptr;
    if (inner) method = inner;
    if (is_module(callable)) callee_kind_ = CalleeKind::AnyFunction;
    if (method && PyFunction_Check(method)) return may_enter(method);
    return deny("call of " + name_of(callable));
  }
  call_host(callable, args);
}

// These are no operators, whatever their names: they look at metadata. Empty: it is another one.
std::string_view Tracer::name_of_size_reader(PyObject* callable) {
  constexpr std::string_view kNames[] = {"size",          "stride",         "numel",   "nelement",        "contiguous",
                                         "is_contiguous", "storage_offset", "__len__", "broadcast_shapes"};
  const std::string text = callee_text(callable);
  const auto* known = std::ranges::find(kNames, std::string_view(text).substr(text.rfind('.') + 1));
  return known == std::end(kNames) ? std::string_view() : *known;
}

// The class whose method it is, where it is called with `self`; null: it is none.
static PyTypeObject* owner_of_method(PyObject* callable, PyObject* self) {
  if (Py_IS_TYPE(callable, &PyMethodDescr_Type) || Py_IS_TYPE(callable, &PyWrapperDescr_Type))
    return PyDescr_TYPE(callable);
  if (is_method_wrapper(callable)) return PyDescr_TYPE(reinterpret_cast<WrapperObject*>(callable)->descr);
  // Bound: a plain C function that gets a number is no method of numbers.
  if (!self || !PyCFunction_Check(callable) || PyCFunction_GET_SELF(callable) != self) return nullptr;
  const PyMethodDef* method = reinterpret_cast<PyCFunctionObject*>(callable)->m_ml;
  PyObject* found = _PyType_Lookup(Py_TYPE(self), Ref::steal(PyUnicode_InternFromString(method->ml_name)).get());
  const bool is_inherited = found && Py_IS_TYPE(found, &PyMethodDescr_Type) &&
                            reinterpret_cast<PyMethodDescrObject*>(found)->d_method == method;
  return is_inherited ? PyDescr_TYPE(found) : Py_TYPE(self);
}

// An item of a tuple of a class of its own, which it has for good.
bool Tracer::reads_tuple(PyTypeObject* owner, PyObject* callable, Args args) {
  if (owner != &PyTuple_Type || !PyTuple_Check(args[0]) || PyTuple_CheckExact(args[0])) return false;
  const std::string name = callee_text(callable);
  return (name.ends_with("__getitem__") || name.ends_with("__len__")) && readable_args(args.subspan(1), callable);
}

void Tracer::call_host(PyObject* callable, Args args) {
  PyTypeObject* owner = owner_of_method(callable, args.empty() ? nullptr : args[0]);
  const bool is_method = is_value_type(owner) && !args.empty();
  if (is_method && reads_tuple(owner, callable, args)) return;
  if (is_method && (Py_TYPE(args[0]) == owner || (PyObject_TypeCheck(args[0], owner) && acts_as_value(args[0])))) {
    if (!readable_args(args, callable)) return;
    const std::string name = owner == &PyUnicode_Type ? callee_text(callable) : "";
    const bool formats = name == "str.format" || name == "str.format_map";  // "{0.name}" reads attributes
    const auto odd =
        std::ranges::find_if(args, [&](PyObject* arg) { return formats && !is_plain_value(arg) && !is_constant(arg); });
    top().container_result = true;  // of str.split, say
    return odd == args.end() ? may_enter_any() : deny("formatting of " + name_of(*odd));
  }
  if (const Setting* setting = host_.setting_of ? host_.setting_of(callable) : nullptr) {
    if (!readable_args(args, callable)) return;
    facts_->setting(*setting, where());  // whoever changes it must put it back: see Facts::finish()
    top().container_result = true;
    return;
  }
  if (has_data_sizes())
    if (const std::string_view name = name_of_size_reader(callable); !name.empty())
      for (PyObject* arg : args)
        if (is_tensor(arg)) read_sizes_by_call(callable, arg, name, args);
  const Host::Callee judged = host_.classify ? host_.classify(callable) : Host::Callee::Unknown;
  switch (judged) {
    case Host::Callee::Boxed:
      if (rehearsal_) return deny("call of " + callee_text(callable) + ", which may write to its arguments,");
      if (!tagged_.empty()) return deny("call of " + callee_text(callable) + ", which may see attributes of tensors,");
      [[fallthrough]];
    case Host::Callee::Operator:
      if (judged == Host::Callee::Operator) callee_kind_ = CalleeKind::Reader;
      if (writes_before(callable, args)) return;
      for (PyObject* arg : args) {
        const bool takes_list = PyList_CheckExact(arg) && callee_text(callable).find("_foreach_") != std::string::npos;
        if ((takes_list && uses_list(arg)) || takes_functions(arg) || is_size_list(arg)) continue;
        if (judged == Host::Callee::Operator && is_own_generator(arg)) continue;  // others may keep it
        if (!numbers_.contains(arg) && !readable_args({&arg, 1}, callable)) return;
      }
      use_scalars(args, false);
      use_sizes(args);
      tell_lists(args);
      top().gives_walkable = !loop_;
      top().number_result = true;
      top().reads_items = true;
      top().container_result = true;
      top().expect = judged == Host::Callee::Boxed ? Expect::Inside : Expect::Any;
      return;
    case Host::Callee::Pure:
      note_reader(args);
      if (!readable_args(args, callable)) return;
      top().reads_items = true;
      top().container_result = true;
      return may_enter_any();
    case Host::Callee::Unknown:
      break;
  }
  if (reason_.empty()) deny("call of " + callee_text(callable));
}

// A generator function that C code calls: no event tells of it.
void Tracer::call_if_generator(PyFunctionObject* f) {
  if (reinterpret_cast<PyCodeObject*>(f->func_code)->co_flags & CO_GENERATOR) call_function(f);
}

void Tracer::call_function(PyFunctionObject* f) {
  auto* code = reinterpret_cast<PyCodeObject*>(f->func_code);
  if (code->co_flags & (CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE))
    return deny("call of coroutine " + std::string(PyUnicode_AsUTF8(f->func_qualname)));
  bool fresh = fresh_.contains((PyObject*)f);
  if (!fresh) note_function(f);
  if (!(code->co_flags & CO_GENERATOR)) {
    const bool takes_any = code->co_flags & (CO_VARARGS | CO_VARKEYWORDS);
    callee_kind_ = takes_any ? CalleeKind::AnyFunction : CalleeKind::Function;
    return may_enter((PyObject*)f);
  }
  top().fresh_result = true;  // no frame runs yet
  if (!fresh && f->func_closure)
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(f->func_closure); ++i)
      cell_owners_.emplace(PyTuple_GET_ITEM(f->func_closure, i), (PyObject*)f);
}

void Tracer::call_type(PyTypeObject* type, Args args) {
  if (type->tp_flags & Py_TPFLAGS_HEAPTYPE) return call_class(type, args);
  if (PyType_IsSubtype(type, (PyTypeObject*)PyExc_BaseException)) {
    top().fresh_result = true;
    return;
  }
  call_host((PyObject*)type, args);
}

// Instances of Python classes: __new__ and __init__ are watched, the result is new if object.__new__ makes it.
void Tracer::call_class(PyTypeObject* type, Args args) {
  if (call_metaclass(type, args)) return;
  if (Py_TYPE(type)->tp_call != PyType_Type.tp_call) return call_host((PyObject*)type, args);
  construct(type, args);
}

// As type.__call__ does.
void Tracer::construct(PyTypeObject* type, Args args) {
  PyObject* make = class_attr(type, "__new__");
  PyObject* init = class_attr(type, "__init__");
  bool made_by_c = make && PyCFunction_Check(make);
  if (made_by_c) {
    static PyTypeObject* const partial = type_named("functools", "partial");
    PyObject* base = PyCFunction_GET_SELF(make);
    if (base == (PyObject*)partial && !args.empty() && is_partial(args[0]) && !note_partial(args[0])) return;
    bool known = base == (PyObject*)&PyBaseObject_Type || base == (PyObject*)&PyTuple_Type ||
                 base == (PyObject*)&PyDict_Type || base == (PyObject*)&PyList_Type ||
                 base == (PyObject*)&PyProperty_Type || base == (PyObject*)partial ||
                 (PyType_Check(base) && PyType_IsSubtype((PyTypeObject*)base, (PyTypeObject*)PyExc_BaseException));
    if (!known) return call_host((PyObject*)type, args);
    bool has_init = init && PyFunction_Check(init);
    if (!has_init && base != (PyObject*)&PyBaseObject_Type && !readable_args(args, type->tp_name)) return;
    top().fresh_result = true;
    top().constructs = true;
  }
  may_enter_any();
}

// Reads its arguments and what is in them; what it calls of them is known or watched.
void Tracer::apply_reader(const Callee& row, PyObject* callee, Args args) {
  if (!readable_args(args, callee)) return;
  const bool shows = callee == (PyObject*)&PyUnicode_Type || !std::strcmp(row.name, "builtins:repr") ||
                     !std::strcmp(row.name, "builtins:format");
  for (PyObject* arg : args) {
    note_names(arg);
    const bool is_key = is_callable(arg) && !(PyType_Check(arg) && shows);
    if (is_key && !called_in_c(arg)) return deny("call of " + callee_text(arg) + " by " + callee_text(callee));
  }
  top().fresh_result = row.rule == Rule::Fresh;
  if (args.size() == 1 && is_tensor(args[0]))
    for (const char* name : {"__float__", "__int__", "__index__", "__abs__", "__round__"})
      class_attr(Py_TYPE(args[0]), name);
  top().number_result = callee == (PyObject*)&PyFloat_Type && args.size() == 1 && is_tensor(args[0]);
  top().reads_items = true;
  may_enter_any();
}

// Of those that are judged by a method of their own.
bool Tracer::only_reads(Judge judge) {
  return judge == &Tracer::judge_len || judge == &Tracer::judge_isinstance || judge == &Tracer::judge_getattr ||
         judge == &Tracer::judge_hasattr || judge == &Tracer::judge_type || judge == &Tracer::judge_super ||
         judge == &Tracer::judge_callable || judge == &Tracer::judge_bool || judge == &Tracer::judge_range ||
         judge == &Tracer::judge_container || judge == &Tracer::judge_walking || judge == &Tracer::judge_iter ||
         judge == &Tracer::judge_dict_view || judge == &Tracer::judge_dict_read;
}

void Tracer::apply(const Callee& row, PyObject* callee, Args args) {
  switch (row.rule) {
    case Rule::Ignore:
      return note_reader(args);
    case Rule::Pure:
      note_reader(args);
      if (args.size() == 1 && callee == (PyObject*)Py_TYPE(args[0]) && numbers_.contains(args[0]))
        return;  // float() and int() of such an object give that object
      if (tests_read_by_call(callee, args) || derives_by_call(callee, args)) return;
      [[fallthrough]];
    case Rule::Fresh:
      note_reader(args);
      return apply_reader(row, callee, args);
    case Rule::Mutate:
      return mutate(callee, args);
    case Rule::Special:
      if (only_reads(row.judge)) note_reader(args);
      return (this->*row.judge)(callee, args);
  }
}

}  // namespace fastjit::observe
#endif
