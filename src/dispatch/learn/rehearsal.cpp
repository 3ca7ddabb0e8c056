#include "dispatch/learn/rehearsal.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/record_function.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>

#include <algorithm>
#include <exception>
#include <set>
#include <span>

#include "dispatch/call/this_thread.h"
#include "dispatch/learn/stand_in.h"
#include "dispatch/learn/torch_objects.h"

namespace fastjit::dispatch {
namespace {

class Both final : public observe::ReadSet {
 public:
  Both(std::unique_ptr<ReadSet> call, std::shared_ptr<ReadSet> rehearsal)
      : call_(std::move(call)), rehearsal_(std::move(rehearsal)) {}
  bool check() noexcept override { return call_->check() && rehearsal_->check(); }
  std::string first_failure() override {
    const std::string failure = call_->first_failure();
    return failure.empty() ? rehearsal_->first_failure() : failure;
  }
  std::vector<std::string> describe() const override {
    std::vector<std::string> out = call_->describe();
    for (std::string& line : rehearsal_->describe())
      if (std::ranges::find(out, line) == out.end()) out.push_back(std::move(line));
    return out;
  }
  int traverse(visitproc visit, void* arg) const override { return call_->traverse(visit, arg); }
  std::vector<const void*> looked_into() const override {
    std::vector<const void*> out = call_->looked_into();
    for (const void* object : rehearsal_->looked_into()) out.push_back(object);
    return out;
  }
  size_t number_count() const noexcept override { return call_->number_count(); }
  bool numbers(PyObject** out) const noexcept override { return call_->numbers(out); }
  std::string fix_number(size_t which) override { return call_->fix_number(which); }
  void varying(std::vector<observe::NumberPlace>& out) override { call_->varying(out); }
  std::vector<observe::Mutation> mutate() override {
    std::vector<observe::Mutation> out = call_->mutate();
    for (observe::Mutation& one : rehearsal_->mutate()) out.push_back(std::move(one));
    return out;
  }

 private:
  const std::unique_ptr<ReadSet> call_;
  const std::shared_ptr<ReadSet> rehearsal_;  // which nodes of autograd's ask too
};

// What the C function of a rehearsal runs.
struct Running {
  const std::function<void()>* go;
  std::exception_ptr thrown;
};
thread_local Running* running = nullptr;

PyObject* run_it(PyObject*, PyObject*) {
  try {
    (*running->go)();
  } catch (const python_error& error) {
    if (PyErr_GivenExceptionMatches(error.type, PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();  // the caller's
    running->thrown = std::current_exception();
  } catch (...) {
    running->thrown = std::current_exception();
  }
  PyErr_Clear();
  Py_RETURN_NONE;
}

PyObject* autograd_function() {
  static PyMethodDef method{"autograd", run_it, METH_NOARGS, nullptr};
  static PyObject* const function = PyCFunction_New(&method, nullptr);
  return function;
}

// What a tuple or a slice holds; nothing: it is neither.
std::vector<PyObject*> parts_of(PyObject* o) {
  if (PyTuple_Check(o)) return {PySequence_Fast_ITEMS(o), PySequence_Fast_ITEMS(o) + PyTuple_GET_SIZE(o)};
  if (!PySlice_Check(o)) return {};
  const auto* slice = reinterpret_cast<PySliceObject*>(o);
  return {slice->start, slice->stop, slice->step};
}

// Of these no second run finds anything else, and they hold nothing that could be changed.
bool is_unchanging(PyObject* o) {
  if (PyTuple_Check(o) || PySlice_Check(o)) return std::ranges::all_of(parts_of(o), is_unchanging);
  return o == Py_None || o == Py_Ellipsis || PyBool_Check(o) || PyLong_CheckExact(o) || PyFloat_CheckExact(o) ||
         PyUnicode_CheckExact(o) || PyBytes_CheckExact(o) || PyComplex_CheckExact(o) || PyType_Check(o) ||
         PyFunction_Check(o) || PyCFunction_Check(o) || PyModule_Check(o) || THPDtype_Check(o) || THPDevice_Check(o) ||
         THPLayout_Check(o) || THPMemoryFormat_Check(o);
}

bool is_set(PyTypeObject* type, const char* name) {
  PyObject* text = PyUnicode_InternFromString(name);
  PyObject* value = text ? _PyType_Lookup(type, text) : nullptr;
  Py_XDECREF(text);
  return value && value != Py_False && value != Py_None && PyBool_Check(value);
}

// What the program does not know of may be given to another backward than the recorded one.
class Context {
 public:
  Context(Recording& recording, PyObject* context) : recording_(recording), context_(context) {}

  std::string why_not() const {
    const std::string name = Py_TYPE(context_)->tp_name;
    if (is_set(Py_TYPE(context_), "clear_saved_tensors_on_access"))
      return name + " drops saved tensors as it reads them";
    PyObject** dict = _PyObject_GetDictPtr(context_);
    PyObject *key, *value;
    for (Py_ssize_t at = 0; dict && *dict && PyDict_Next(*dict, &at, &key, &value);) {
      const std::string what = "ctx." + std::string(PyUnicode_Check(key) ? PyUnicode_AsUTF8(key) : "?");
      if (is_plain_tensor(value)) {
        if (is_shared(unpack(value)))
          return what + " of " + name + " is a tensor that others have, which ctx.save_for_backward() would watch";
      } else if (!is_unchanging(value)) {
        return what + " of " + name + " is of type " + Py_TYPE(value)->tp_name;
      }
    }
    return "";
  }

  // Numbers that the call was given, or found, and that backward reads here: they are the same in every call.
  void fix_numbers() const {
    PyObject** dict = _PyObject_GetDictPtr(context_);
    PyObject *key, *value;
    for (Py_ssize_t at = 0; dict && *dict && PyDict_Next(*dict, &at, &key, &value);) fix(value);
  }

 private:
  void fix(PyObject* value) const {
    for (PyObject* part : parts_of(value)) fix(part);
    for (size_t i = 0; i < recording_.numbers.size(); ++i)
      if (recording_.numbers[i] == value) recording_.observation.symbolic[i] = false;
  }

  bool is_shared(const at::Tensor& tensor) const {
    const auto shares = [&](const at::Tensor& result) { return result.is_alias_of(tensor); };
    return !recording_.recorder->counts_own_writes(tensor) || std::ranges::any_of(recording_.results, shares);
  }

  Recording& recording_;
  PyObject* context_;
};

// Torch's stream of random numbers, as it was.
class KeptGenerator {
 public:
  KeptGenerator() : generator_(at::detail::getDefaultCPUGenerator()), state_(now()) {}
  ~KeptGenerator() {
    const at::DisableRecordFunctionGuard unseen;
    if (!now().equal(state_)) generator_.set_state(state_);
  }

 private:
  at::Tensor now() const {
    const at::DisableRecordFunctionGuard unseen;
    return generator_.get_state();
  }
  at::Generator generator_;
  const at::Tensor state_;
};

// The last who asks may be a node of autograd's, on any thread.
void drop(observe::ReadSet* facts) {
  if (!Py_IsInitialized()) return;
  const pybind11::gil_scoped_acquire gil;
  delete facts;
}

// "ClipBackward", as torch calls the contexts of a Function of that name.
std::string names_of(const std::vector<PyObject*>& contexts) {
  std::set<std::string> names;
  for (PyObject* context : contexts) names.insert(Py_TYPE(context)->tp_name);
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

std::string why_not_kept(Recording& recording, observe::Observation& seen, const std::vector<PyObject*>& contexts) {
  const auto stores = [](const observe::SideEffect& effect) { return observe::SideEffect::stores(effect.kind); };
  const std::string name = names_of(contexts);
  if (std::ranges::any_of(recording.observation.effects, stores)) return "the call stores what " + name + " may read";
  if (!seen.unsound.empty()) return name + " cannot be called twice: " + seen.unsound;
  const bool leaves = !seen.effects.empty() || !seen.state.empty() || !seen.derivations.empty() ||
                      !seen.classes.empty() || !seen.tagged.empty() || !seen.replaced.empty();
  return leaves || !seen.facts ? name + " leaves something behind" : "";
}

}  // namespace

std::string rehearse(Recording& recording, const std::vector<PyObject*>& contexts, const std::function<void()>& go) {
  if (recording.function.options.pure)
    return "with pure=True the Python code of " + names_of(contexts) + " is not watched";
  for (PyObject* context : contexts)
    if (std::string why = Context(recording, context).why_not(); !why.empty()) return why;
  const KeptGenerator generator;
  observe::Host host = host_of(recording);
  host.is_made = [](void* context, PyObject* tensor) {
    return is_plain_tensor(tensor) && static_cast<Recording*>(context)->recorder->made_going_back(unpack(tensor));
  };
  const std::unique_ptr<observe::Observer> observer = observe::make_observer(host);
  PyObject* entry = stand_in(0, nullptr);
  observer->watch_rehearsal(autograd_function());
  if (!entry || !observer->start(entry)) return "a tracer is active";
  Running now{&go, nullptr};
  running = &now;
  PyObject* none = PyObject_CallOneArg(entry, autograd_function());
  running = nullptr;
  Py_XDECREF(none);
  PyErr_Clear();
  observe::Observation seen = observer->stop();
  if (std::string why = why_not_kept(recording, seen, contexts); !why.empty()) return why;
  if (now.thrown) std::rethrow_exception(now.thrown);
  for (PyObject* context : contexts) Context(recording, context).fix_numbers();
  require(recording.variant->key.spec, seen);
  recording.rehearsed = {seen.facts.release(), drop};
  return "";
}

std::unique_ptr<observe::ReadSet> both(std::unique_ptr<observe::ReadSet> call,
                                       std::shared_ptr<observe::ReadSet> rehearsal) {
  return std::make_unique<Both>(std::move(call), std::move(rehearsal));
}

}  // namespace fastjit::dispatch
