// A Python module around the read observer, for tests: needs Python.h only. The host is a Python object with
// tensor_types, module_types (tuples of classes) and classify(callable) -> "operator" | "pure" | anything else.
#include "observe/events/stack_view.h"
#include "observe/observe.h"

#include <cstring>
#include <vector>

using namespace fastjit::observe;

namespace {

thread_local PyObject* host_tensors = nullptr;
thread_local PyObject* host_modules = nullptr;
thread_local PyObject* host_classify = nullptr;
thread_local std::vector<std::pair<std::string, PyObject*>> seen_tensors;

bool is_tensor(PyObject* o) {
  if (!host_tensors) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(host_tensors); ++i)
    if ((PyObject*)Py_TYPE(o) == PyTuple_GET_ITEM(host_tensors, i)) return true;
  return false;
}

bool is_module(PyObject* o) {
  if (!host_modules) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(host_modules); ++i)
    if (PyObject_TypeCheck(o, (PyTypeObject*)PyTuple_GET_ITEM(host_modules, i))) return true;
  return false;
}

Host::Callee classify(PyObject* callable) {
  if (!host_classify) return Host::Callee::Unknown;
  PyObject* answer = PyObject_CallOneArg(host_classify, callable);
  Host::Callee callee = Host::Callee::Unknown;
  if (answer && PyUnicode_Check(answer)) {
    if (!PyUnicode_CompareWithASCIIString(answer, "operator")) callee = Host::Callee::Operator;
    if (!PyUnicode_CompareWithASCIIString(answer, "pure")) callee = Host::Callee::Pure;
  }
  PyErr_Clear();
  Py_XDECREF(answer);
  return callee;
}

void on_tensor(void*, PyObject* tensor, const char* name) { seen_tensors.emplace_back(name, Py_NewRef(tensor)); }

struct FactsObject {
  PyObject_HEAD ReadSet* facts;
};

void facts_dealloc(PyObject* self) {
  delete ((FactsObject*)self)->facts;
  Py_TYPE(self)->tp_free(self);
}

PyObject* facts_check(PyObject* self, PyObject*) { return PyBool_FromLong(((FactsObject*)self)->facts->check()); }

/// check_many(n): n checks, to time them.
PyObject* facts_check_many(PyObject* self, PyObject* n) {
  long good = 0;
  for (long i = PyLong_AsLong(n); i > 0; --i) good += ((FactsObject*)self)->facts->check();
  return PyLong_FromLong(good);
}

PyObject* facts_failure(PyObject* self, PyObject*) {
  return PyUnicode_FromString(((FactsObject*)self)->facts->first_failure().c_str());
}

PyObject* facts_describe(PyObject* self, PyObject*) {
  PyObject* list = PyList_New(0);
  for (const std::string& line : ((FactsObject*)self)->facts->describe()) {
    PyObject* text = PyUnicode_FromString(line.c_str());
    PyList_Append(list, text);
    Py_DECREF(text);
  }
  return list;
}

/// [(fact, "noticed" | "missed" | "stuck" | "not tried")]
PyObject* facts_mutate(PyObject* self, PyObject*) {
  constexpr const char* kWords[] = {"noticed", "missed", "stuck", "not tried"};
  PyObject* list = PyList_New(0);
  for (const Mutation& one : ((FactsObject*)self)->facts->mutate()) {
    PyObject* pair = Py_BuildValue("ss", one.fact.c_str(), kWords[static_cast<int>(one.seen)]);
    PyList_Append(list, pair);
    Py_DECREF(pair);
  }
  return list;
}

/// [number], or None where the facts hold no more or a program has no room for one.
PyObject* facts_numbers(PyObject* self, PyObject*) {
  ReadSet* facts = ((FactsObject*)self)->facts;
  std::vector<PyObject*> numbers(facts->number_count());
  if (!facts->check() || !facts->numbers(numbers.data())) Py_RETURN_NONE;
  PyObject* list = PyList_New(0);
  for (PyObject* number : numbers) PyList_Append(list, number);
  return list;
}

PyMethodDef facts_methods[] = {{"numbers", facts_numbers, METH_NOARGS, nullptr},
                               {"mutate", facts_mutate, METH_NOARGS, nullptr},
                               {"check", facts_check, METH_NOARGS, nullptr},
                               {"check_many", facts_check_many, METH_O, nullptr},
                               {"first_failure", facts_failure, METH_NOARGS, nullptr},
                               {"describe", facts_describe, METH_NOARGS, nullptr},
                               {nullptr, nullptr, 0, nullptr}};
PyTypeObject FactsType{};

PyObject* none_if_null(PyObject* o) { return o ? o : Py_NewRef(Py_None); }

/// observe(host, scalars, function, args, kwargs, varying=None): `varying`, facts of an earlier call, say which numbers
/// differ -> None if it does not start, else (result, error, unsound, symbolic,
/// tensors, facts, effects, state)
PyObject* observe_call(PyObject*, PyObject* all) {
  PyObject *host, *scalars, *function, *args, *kwargs, *varying = Py_None;
  if (!PyArg_ParseTuple(all, "OOOOO|O", &host, &scalars, &function, &args, &kwargs, &varying)) return nullptr;
  host_tensors = host == Py_None ? nullptr : PyObject_GetAttrString(host, "tensor_types");
  host_modules = host == Py_None ? nullptr : PyObject_GetAttrString(host, "module_types");
  host_classify = host == Py_None ? nullptr : PyObject_GetAttrString(host, "classify");
  PyErr_Clear();
  Host callbacks;
  callbacks.is_tensor = is_tensor;
  callbacks.is_module = is_module;
  callbacks.classify = classify;
  callbacks.on_tensor = on_tensor;
  if (varying != Py_None) {
    callbacks.on_derived = [](void*, Derivation&) {};
    callbacks.on_found_number = [](void*, PyObject*, const char*) { return false; };
  }
  std::unique_ptr<Observer> observer = make_observer(callbacks);
  if (varying != Py_None) {
    std::vector<NumberPlace> places;
    ((FactsObject*)varying)->facts->varying(places);
    observer->vary(std::move(places));
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(scalars); ++i) observer->watch_scalar(PyTuple_GET_ITEM(scalars, i));
  bool started = observer->start(function);
  if (!started) Py_RETURN_NONE;
  PyObject* result = PyObject_Call(function, args, kwargs == Py_None ? nullptr : kwargs);
  PyObject *type, *error = nullptr, *trace;
  PyErr_Fetch(&type, &error, &trace);
  if (type) PyErr_NormalizeException(&type, &error, &trace);
  Observation seen = observer->stop();
  PyObject* symbolic = PyList_New(0);
  for (bool flag : seen.symbolic) PyList_Append(symbolic, flag ? Py_True : Py_False);
  PyObject* tensors = PyList_New(0);
  for (auto& [name, tensor] : seen_tensors) {
    PyObject* pair = Py_BuildValue("sN", name.c_str(), tensor);
    PyList_Append(tensors, pair);
    Py_DECREF(pair);
  }
  seen_tensors.clear();
  PyObject* facts =
      seen.facts ? reinterpret_cast<PyObject*>(PyObject_New(FactsObject, &FactsType)) : Py_NewRef(Py_None);
  if (seen.facts) reinterpret_cast<FactsObject*>(facts)->facts = seen.facts.release();
  Py_XDECREF(type);
  Py_XDECREF(trace);
  Py_CLEAR(host_tensors);
  Py_CLEAR(host_modules);
  Py_CLEAR(host_classify);
  PyObject* effects = PyList_New(0);
  for (const SideEffect& effect : seen.effects) {
    PyObject* text = PyUnicode_FromString(effect.text().c_str());
    PyList_Append(effects, text);
    Py_DECREF(text);
  }
  return Py_BuildValue("NNsNNNNs", none_if_null(result), none_if_null(error), seen.unsound.c_str(), symbolic, tensors,
                       facts, effects, seen.state.c_str());
}

PyObject* call_it(PyObject*, PyObject* function) { return PyObject_CallOneArg(function, function); }
PyMethodDef caller{"caller", call_it, METH_O, nullptr};

/// rehearse(entry, function): entry(caller, function) under an observer for which caller(function), which calls
/// function(function), is a rehearsal -> (error, unsound)
PyObject* rehearse(PyObject*, PyObject* args) {
  PyObject *entry, *function;
  if (!PyArg_ParseTuple(args, "OO", &entry, &function)) return nullptr;
  static PyObject* const called = PyCFunction_New(&caller, nullptr);
  std::unique_ptr<Observer> observer = make_observer({});
  observer->watch_rehearsal(called);
  if (!observer->start(entry)) Py_RETURN_NONE;
  Py_XDECREF(PyObject_CallFunctionObjArgs(entry, called, function, nullptr));
  PyObject *type, *error = nullptr, *trace;
  PyErr_Fetch(&type, &error, &trace);
  if (type) PyErr_NormalizeException(&type, &error, &trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  const Observation seen = observer->stop();
  return Py_BuildValue("Ns", none_if_null(error), seen.unsound.c_str());
}

PyObject* is_available(PyObject*, PyObject*) { return PyBool_FromLong(available()); }
PyObject* is_tracer_active(PyObject*, PyObject*) { return PyBool_FromLong(tracer_active()); }

/// The opcode table: {name: (number, whether it may run)}.
PyObject* opcode_rows(PyObject*, PyObject*) {
  PyObject* rows = PyDict_New();
#define OP(name, number, method)                                                                   \
  {                                                                                                \
    PyObject* value = Py_BuildValue("iN", number, PyBool_FromLong(std::strcmp(#method, "never"))); \
    PyDict_SetItemString(rows, #name, value);                                                      \
    Py_DECREF(value);                                                                              \
  }
#include "observe/events/opcodes.def"
#undef OP
  return rows;
}

#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030E0000
/// stack_depths(code): the depth of the value stack before each code unit, -1 where none is known.
PyObject* stack_depths_of(PyObject*, PyObject* code) {
  PyObject* ops = PyCode_GetCode((PyCodeObject*)code);
  PyObject* list = PyList_New(0);
  for (int depth : stack_depths((PyCodeObject*)code, (const unsigned char*)PyBytes_AS_STRING(ops))) {
    PyObject* value = PyLong_FromLong(depth);
    PyList_Append(list, value);
    Py_DECREF(value);
  }
  Py_DECREF(ops);
  return list;
}
#endif

#if PY_VERSION_HEX >= 0x030E0000
/// take_dict_watchers(): takes those that are free; how many that were.
PyObject* take_dict_watchers(PyObject*, PyObject*) {
  long taken = 0;
  while (PyDict_AddWatcher([](PyDict_WatchEvent, PyObject*, PyObject*, PyObject*) { return 0; }) >= 0) ++taken;
  PyErr_Clear();
  return PyLong_FromLong(taken);
}
#endif

PyMethodDef methods[] = {{"observe", observe_call, METH_VARARGS, nullptr},
                         {"rehearse", rehearse, METH_VARARGS, nullptr},
                         {"available", is_available, METH_NOARGS, nullptr},
                         {"tracer_active", is_tracer_active, METH_NOARGS, nullptr},
                         {"opcode_rows", opcode_rows, METH_NOARGS, nullptr},
#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030E0000
                         {"stack_depths", stack_depths_of, METH_O, nullptr},
#endif
#if PY_VERSION_HEX >= 0x030E0000
                         {"take_dict_watchers", take_dict_watchers, METH_NOARGS, nullptr},
#endif
                         {nullptr, nullptr, 0, nullptr}};
PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "fj_observe_test", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_fj_observe_test() {
  Py_SET_REFCNT(reinterpret_cast<PyObject*>(&FactsType), 1);
  FactsType.tp_name = "fj_observe_test.Facts";
  FactsType.tp_basicsize = sizeof(FactsObject);
  FactsType.tp_flags = Py_TPFLAGS_DEFAULT;
  FactsType.tp_methods = facts_methods;
  FactsType.tp_dealloc = facts_dealloc;
  if (PyType_Ready(&FactsType) < 0) return nullptr;
  return PyModule_Create(&module);
}
