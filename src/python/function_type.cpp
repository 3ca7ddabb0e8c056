// The Python type of compiled functions and what it answers. Methods with a leading underscore are the raw form that
// python/fastjit/api.py gives its public names and docstrings.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <structmember.h>

#include "backend/compiler.h"
#include "backend/target.h"
#include "dispatch/call/call.h"
#include "dispatch/call/function.h"
#include "dispatch/call/value_tree.h"
#include "dispatch/learn/compile.h"
#include "dispatch/learn/python_source.h"
#include "ir/in_numbers.h"

namespace fastjit::dispatch {
namespace {

namespace py = pybind11;

FunctionObject* cast(PyObject* self) { return reinterpret_cast<FunctionObject*>(self); }

void set_dynamic(Options& options, py::handle value) {
  if (py::isinstance<py::bool_>(value)) options.dynamic = py::cast<bool>(value) ? Dynamic::All : Dynamic::None;
  if (!py::isinstance<py::dict>(value)) return;
  for (auto [name, dims] : py::reinterpret_borrow<py::dict>(value))
    options.dynamic_dims[py::cast<std::string>(name)] =
        py::isinstance<py::int_>(dims) ? std::vector{py::cast<int64_t>(dims)} : py::cast<std::vector<int64_t>>(dims);
}

void set_option(Options& options, const std::string& name, py::handle value) {
  const std::string text = py::isinstance<py::str>(value) ? py::cast<std::string>(value) : "";
  if (name == "name")
    options.name = text;
  else if (name == "pure")
    options.pure = py::cast<bool>(value);
  else if (name == "numerics")
    options.numerics = ir::parse_numerics(text).value_or(plan::Numerics::Eager);
  else if (name == "on_unsupported")
    options.on_unsupported = text == "error"   ? OnUnsupported::Error
                             : text == "eager" ? OnUnsupported::Eager
                                               : OnUnsupported::Warn;
  else if (name == "max_variants")
    options.max_variants = py::cast<uint32_t>(value);
  else if (name == "dynamic")
    set_dynamic(options, value);
  else if (name == "cache")
    options.cache = text == "readonly" ? runtime::CacheMode::ReadOnly
                    : text == "memory" ? runtime::CacheMode::MemoryOnly
                                       : runtime::CacheMode::On;
  else if (name == "on_miss")
    options.on_miss = text == "background" ? OnMiss::Background : OnMiss::Compile;
  else if (name == "verify")
    options.verify = py::cast<double>(value);
  else if (name == "refused")
    options.refused = text;
  else
    throw py::type_error("unknown option '" + name + "'");
}

// Of a function that was made of another: what that is ("original"), and (script object, paths, update) of what it
// reads of a module in C++ ("slots").
bool set_origin(Function& function, const std::string& name, py::handle value) {
  if (name == "original") {
    function.original = Py_NewRef(value.ptr());
  } else if (name == "slots") {
    const auto [object, paths, update] =
        py::cast<std::tuple<py::object, std::vector<std::pair<int, std::string>>, py::object>>(value);
    std::vector<ScriptSlots::Path> all;
    for (const auto& [parent, attribute] : paths) all.push_back({parent, attribute});
    function.slots = std::make_unique<ScriptSlots>(object.ptr(), std::move(all), update.ptr());
  } else {
    return false;
  }
  return true;
}

// Function(callable, options: dict). Options are checked and spelt out by api.py.
PyObject* type_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *callable, *options;
  if (!PyArg_ParseTuple(args, "OO!", &callable, &PyDict_Type, &options)) return nullptr;
  PyObject* object = type->tp_alloc(type, 0);
  if (!object) return nullptr;
  auto* self = cast(object);
  self->vectorcall = call_function;
  self->function = new Function;
  self->function->callable = Py_NewRef(callable);
  try {
    for (auto [key, value] : py::reinterpret_borrow<py::dict>(options))
      if (!set_origin(*self->function, py::cast<std::string>(key), value))
        set_option(self->function->options, py::cast<std::string>(key), value);
  } catch (py::error_already_set& error) {
    error.restore();
    Py_CLEAR(object);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
    Py_CLEAR(object);
  }
  return object;
}

int visit_variant(const Variant& variant, visitproc visit, void* arg) {
  int stop = variant.key.spec.traverse(visit, arg);
  if (!stop) stop = variant.program.recipe.traverse(visit, arg);
  if (!stop && variant.guards.facts) stop = variant.guards.facts->traverse(visit, arg);
  if (!stop && variant.program.replay) stop = variant.program.replay->traverse(visit, arg);
  return stop;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = cast(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->dict);
  if (!self->function) return 0;
  Py_VISIT(self->function->callable);
  Py_VISIT(self->function->original);
  if (self->function->slots)
    if (const int stop = self->function->slots->traverse(visit, arg)) return stop;
  for (const auto& variant : self->function->variants.all())
    if (const int stop = visit_variant(*variant, visit, arg)) return stop;
  return self->function->parts.traverse(visit, arg);
}

int clear(PyObject* object) {
  auto* self = cast(object);
  Py_CLEAR(self->dict);
  if (!self->function) return 0;
  self->function->variants.take();
  self->function->parts.take();
  Py_CLEAR(self->function->callable);
  Py_CLEAR(self->function->original);
  const auto slots = std::move(self->function->slots);
  return 0;
}

void dealloc(PyObject* object) {
  auto* self = cast(object);
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  if (self->weakrefs) PyObject_ClearWeakRefs(object);
  clear(object);
  delete self->function;
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* descr_get(PyObject* self, PyObject* instance, PyObject*) {
  return instance && instance != Py_None ? PyMethod_New(self, instance) : Py_NewRef(self);
}

PyObject* get_wrapped(PyObject* self, void*) { return Py_NewRef(cast(self)->function->eager()); }
PyObject* get_name(PyObject* self, void*) {
  const std::string& name = cast(self)->function->options.name;
  return PyUnicode_FromStringAndSize(name.data(), static_cast<Py_ssize_t>(name.size()));
}

// Runs `body` and turns C++ exceptions into Python ones.
template <class Body>
PyObject* guarded(Body body) {
  try {
    return body().release().ptr();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

PyObject* stats(PyObject* object, PyObject*) {
  return guarded([&] {
    Function& function = *cast(object)->function;
    settle_ready(function);
    const Stats& s = function.stats;
    py::dict out;
    out["calls"] = s.calls;
    out["hits"] = s.hits;
    out["misses"] = s.misses;
    out["compiles"] = s.compiles;
    out["memory_hits"] = s.memory_hits;
    out["disk_hits"] = s.disk_hits;
    out["fallbacks"] = s.fallbacks;
    int kernels = 0, steps = 0, programs = 0;
    for (const auto& variant : function.variants.recent_first()) {
      if (!variant->reason.empty()) continue;
      // Of the most recently used program.
      if (programs++ == 0) {
        kernels = variant->program.executable->kernel_launches();
        steps = variant->program.executable->steps();
      }
    }
    out["kernels"] = kernels;
    out["steps"] = steps;
    out["variants"] = programs;
    out["operators"] = s.operators + function.parts.operators();
    out["compile_ms"] = s.compile_ms;
    out["record_ms"] = s.record_ms;
    out["verified"] = s.verified;
    out["mismatches"] = s.mismatches;
    return out;
  });
}

// What a hit keeps for its way back, in memory that nobody else sees.
int64_t kept_bytes(const Variant& variant) {
  if (!variant.program.back) return 0;
  const plan::Program& program = variant.program.executable->program;
  int64_t sum = 0;
  for (size_t i = program.outputs.size() - variant.program.back->extras; i < program.outputs.size(); ++i) {
    const plan::Slot& slot = program.slots[program.outputs[i]];
    sum += c10::multiply_integers(slot.sizes) * ir::size_of(slot.dtype);
  }
  return sum;
}

py::dict describe(const Variant& variant) {
  py::dict out;
  out["signature"] = variant.key.spec.signature();
  out["hits"] = variant.hits;
  out["kernels"] = variant.program.executable ? variant.program.executable->kernel_launches() : 0;
  out["steps"] = variant.program.executable ? variant.program.executable->steps() : 0;
  out["reason"] = variant.reason;
  out["compile_ms"] = variant.inspection.compile_ms;
  out["record_ms"] = variant.inspection.record_ms;
  out["bytes"] = variant.bytes;
  out["kept_bytes"] = kept_bytes(variant);
  out["keys"] = variant.inspection.keys;
  return out;
}

PyObject* variants(PyObject* object, PyObject*) {
  return guarded([&] {
    py::list out;
    settle_ready(*cast(object)->function);
    for (const auto& variant : cast(object)->function->variants.recent_first()) out.append(describe(*variant));
    return out;
  });
}

std::string guards_of(const Variant& variant) {
  std::string out = "arguments: " + variant.key.spec.signature() + "\n";
  for (size_t i = 0; i < variant.guards.captured.size(); ++i)
    out += "tensor " + variant.guards.captured.name(i) + ": " + text(variant.guards.captured.spec(i)) + "\n";
  for (const capture::ValueGuard& value : variant.guards.values)
    out += "value " + value.label + ": " + text(value) + "\n";
  if (variant.guards.facts)
    for (const std::string& line : variant.guards.facts->describe()) out += line + "\n";
  if (variant.program.sized)
    for (const std::string& line : variant.program.sized->guards()) out += line + "\n";
  for (const std::string& line : variant.inspection.fixed_sizes) out += line + "\n";
  for (const std::string& line : variant.program.derived.describe()) out += line + "\n";
  if (variant.program.replay)
    for (const std::string& line : variant.program.replay->describe()) out += "effect: " + line + "\n";
  return out;
}

std::string per_kernel(const Variant& variant, const char* what) {
  const backend::Target target{backend::Target::Kind::Cpu, backend::host_isa(), 0};
  std::string out;
  for (const plan::KernelPlan& kernel : variant.program.executable->program.kernels) {
    if (!out.empty()) out += "\n";
    if (std::string_view(what) == "llvm")
      out += backend::llvm_ir(kernel, target);
    else
      out += backend::compile_cpu(kernel, target, true).assembly;
  }
  return out;
}

// _inspect(stage, index): one stage of the index-th most recently used program, as text.
PyObject* inspect(PyObject* object, PyObject* args) {
  const char* stage;
  Py_ssize_t index;
  if (!PyArg_ParseTuple(args, "sn", &stage, &index)) return nullptr;
  return guarded([&]() -> py::object {
    Py_ssize_t seen = 0;
    settle_ready(*cast(object)->function);
    for (const auto& variant : cast(object)->function->variants.recent_first()) {
      if (!variant->reason.empty() || seen++ != index) continue;
      const std::string_view s = stage;
      const auto with_way_back = [&](std::string text, const auto& text_of) {
        if (!variant->program.back) return py::str(text);
        for (const auto& node : variant->program.back->nodes) text += "\n# the way back\n" + text_of(*node);
        return py::str(text);
      };
      if (s == "ir")
        return with_way_back(variant->inspection.ir(), [](const Backward& node) { return ir::print(node.graph); });
      if (s == "ir in numbers") return py::str(ir::print(ir::in_numbers(variant->inspection.captured)));
      if (s == "steps of python") return python_steps(*variant);
      if (s == "plan")
        return with_way_back(plan::text(variant->program.executable->program), [](const Backward& node) {
          return node.is_over ? std::string() : plan::text(node.program(node.whole()).executable->program);
        });
      if (s == "dot") return py::str(plan::dot(variant->inspection.graph, variant->program.executable->program));
      if (s == "guards") return py::str(guards_of(*variant));
      if (s == "llvm" || s == "asm") return py::str(per_kernel(*variant, stage));
      if (s == "passes") {
        py::list out;
        std::vector<pass::PassRecord> records;
        pass::PassContext context = context_for(*cast(object)->function, device_of(*variant));
        context.channels_last &= variant->program.back == nullptr;  // else chosen for both ways
        pass::run(variant->inspection.captured, context, &records);
        for (const pass::PassRecord& record : records) {
          py::dict row;
          row["name"] = record.name;
          row["nodes"] = record.nodes;
          row["ms"] = record.ms;
          row["graph"] = record.graph;
          out.append(row);
        }
        return out;
      }
      throw py::value_error("unknown stage '" + std::string(stage) + "'");
    }
    return py::none();
  });
}

PyObject* explain_call(PyObject* object, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return guarded([&] {
    settle_ready(*cast(object)->function);
    return py::str(explain(*cast(object)->function, args, nargs, kwnames));
  });
}

PyObject* clear_variants(PyObject* object, PyObject*) {
  Function& function = *cast(object)->function;
  auto dropped = function.variants.take();  // released below, when the function no longer names them
  const auto dropped_parts = function.parts.take();
  function.patience = Patience();
  function.unsound_recordings = function.unsound_in_a_row = 0;
  dropped.clear();
  Py_RETURN_NONE;
}

// _parts(): of each part that has a program, (compiled function, the module it is called on or None).
PyObject* parts(PyObject* object, PyObject*) {
  return guarded([&] {
    py::list out;
    for (const Parts::Part* part : cast(object)->function->parts.with_programs()) {
      PyObject* module = part->self ? PyWeakref_GET_OBJECT(part->self.get()) : Py_None;
      out.append(py::make_tuple(py::handle(part->function.get()), py::handle(module)));
    }
    return out;
  });
}

// _unserved(): the calls that were no hits.
PyObject* unserved(PyObject* object, PyObject*) {
  const Stats& stats = cast(object)->function->stats;
  return PyLong_FromUnsignedLongLong(stats.calls - stats.hits);
}

// _expect(): calls that someone asks for come again, whatever earlier ones did.
PyObject* expect(PyObject* object, PyObject*) {
  expect_calls(*cast(object)->function);
  Py_RETURN_NONE;
}

// _wait(): for what is compiled in the background.
PyObject* wait(PyObject* object, PyObject*) {
  return guarded([&] {
    std::vector<std::shared_ptr<runtime::BackgroundJob>> jobs;
    for (const auto& variant : cast(object)->function->variants.all())
      for (const auto& one : {variant->pending, variant->anew})
        if (one) jobs.push_back(one->job);
    {
      const py::gil_scoped_release release;
      for (const auto& job : jobs) runtime::wait_for(*job);
    }
    return py::none();
  });
}

PyMethodDef methods[] = {
    {"_stats", stats, METH_NOARGS, nullptr},
    {"_variants", variants, METH_NOARGS, nullptr},
    {"_inspect", inspect, METH_VARARGS, nullptr},
    {"_explain", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(explain_call)), METH_FASTCALL | METH_KEYWORDS,
     nullptr},
    {"_parts", parts, METH_NOARGS, nullptr},
    {"_clear", clear_variants, METH_NOARGS, nullptr},
    {"_unserved", unserved, METH_NOARGS, nullptr},
    {"_expect", expect, METH_NOARGS, nullptr},
    {"_wait", wait, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef getset[] = {
    {"__wrapped__", get_wrapped, nullptr, "The function as it was given to fastjit.", nullptr},
    {"_name", get_name, nullptr, nullptr, nullptr},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(FunctionObject, vectorcall), READONLY, nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(FunctionObject, dict), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(FunctionObject, weakrefs), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(type_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_descr_get, reinterpret_cast<void*>(descr_get)},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_members, members},
    {0, nullptr},
};

PyType_Spec type_spec = {
    "fastjit._C.Function", sizeof(FunctionObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, slots};

PyTypeObject* function_type = nullptr;

}  // namespace

PyTypeObject* make_function_type(PyObject* module) {
  function_type = reinterpret_cast<PyTypeObject*>(PyType_FromModuleAndSpec(module, &type_spec, nullptr));
  return function_type;
}

PyObject* new_part(PyObject* callable, PyObject* module, const Options& options) {
  PyObject* object = function_type->tp_alloc(function_type, 0);
  if (!object) return nullptr;
  auto* self = cast(object);
  self->vectorcall = call_function;
  self->function = new Function;
  self->function->callable = Py_NewRef(callable);
  self->function->options = options;
  self->function->options.on_unsupported = OnUnsupported::Eager;
  self->function->is_part = true;
  const auto* function = reinterpret_cast<PyFunctionObject*>(callable);
  const auto* code = reinterpret_cast<PyCodeObject*>(function->func_code);
  const bool is_whole = module && !PyUnicode_CompareWithASCIIString(code->co_name, "_call_impl");
  PyObject* name = is_whole ? PyType_GetQualName(Py_TYPE(module)) : Py_NewRef(function->func_qualname);
  if (const char* text = name ? PyUnicode_AsUTF8(name) : nullptr) self->function->options.name = text;
  Py_XDECREF(name);
  PyErr_Clear();
  return object;
}

PyObject* wrapped_callable(PyObject* object) {
  if (!Py_IS_TYPE(object, function_type) || cast(object)->function->slots) return nullptr;
  return cast(object)->function->callable;
}

}  // namespace fastjit::dispatch
