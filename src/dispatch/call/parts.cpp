#include "dispatch/call/parts.h"

#include <c10/util/SmallVector.h>

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "dispatch/call/function.h"
#include "dispatch/call/spec.h"
#include "dispatch/call/this_thread.h"
#include "dispatch/learn/torch_objects.h"
#include "support/mix.h"

#define FASTJIT_PARTS (FASTJIT_OBSERVES && PY_VERSION_HEX < 0x030C0000)
#if FASTJIT_PARTS
#include "observe/events/layout.h"
#endif

namespace fastjit::dispatch {
namespace {

bool is_dead(const observe::Ref& weak) { return weak && PyWeakref_GET_OBJECT(weak.get()) == Py_None; }

}  // namespace

#if FASTJIT_PARTS
namespace {

using observe::InterpreterFrame;
using observe::is_named;

constexpr size_t kMostParts = 1024;
constexpr size_t kFirstSweep = 16;
constexpr uint32_t kMostDeaths = 4;  // of modules of one class, or of functions of one code, before no more are parts
constexpr uint64_t kWindow = 16;     // calls after which it is asked whether parts pay
constexpr uint64_t kFramesPerOperator = 8;  // what seeing so many calls costs, an operator's dispatch costs too
constexpr uint64_t kPause = 1024;           // calls for which they are not looked for when they do not
constexpr uint64_t kFirstRetry = 8;         // calls of a part that failed before it is tried again; doubles each time

_PyFrameEvalFunction below = _PyEval_EvalFrameDefault;  // what evaluated frames before
int watching = 0;                                       // calls that want to see them, of any thread; under the GIL

// Makes `function` evaluate frames.
void watch(_PyFrameEvalFunction function) {
  if (watching++) return;
  below = _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get());
  _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), function);
}

// Another tool (Dynamo) that came on top stays there, and gives `function` back when it goes.
void unwatch(_PyFrameEvalFunction function) {
  if (--watching == 0 && _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) == function)
    _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), below);
}

// Half of this thread's stack. Python calls Python without the C stack, but not where frames are seen: below this
// address they are not.
const char* deepest() {
  static thread_local const char* const found = [] {
    pthread_attr_t attributes;
    void* low = nullptr;
    size_t size = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
      pthread_attr_getstack(&attributes, &low, &size);
      pthread_attr_destroy(&attributes);
    }
    return static_cast<const char*>(low) + size / 2;
  }();
  return found;
}

bool has_tensor(PyObject* o) {
  if (is_plain_tensor(o)) return true;
  if (PyTuple_Check(o) || PyList_CheckExact(o))
    return PySequence_Fast_GET_SIZE(o) > 0 && is_plain_tensor(PySequence_Fast_ITEMS(o)[0]);
  PyObject *key, *value;
  Py_ssize_t at = 0;
  return PyDict_CheckExact(o) && PyDict_Next(o, &at, &key, &value) && is_plain_tensor(value);
}

bool has_hooks(PyObject* module) {
  for (const char* name : {"_forward_pre_hooks", "_forward_hooks"}) {
    PyObject** dict = _PyObject_GetDictPtr(module);
    PyObject* hooks = dict && *dict ? PyDict_GetItemString(*dict, name) : nullptr;
    if (hooks && PyDict_Check(hooks) && PyDict_GET_SIZE(hooks)) return true;
  }
  return false;
}

bool is_method_of(PyTypeObject* type, const PyFunctionObject* function) {
  return _PyType_Lookup(type, reinterpret_cast<PyCodeObject*>(function->func_code)->co_name) == (PyObject*)function;
}

// Whether a program could take the place of a call of this function: a plain one, or a module's with its hooks. `first`
// is its first argument, `module` the same where the function is a method of that module.
bool may_be_part(const PyFunctionObject* function, PyObject* first, PyObject** module) {
  const auto* code = reinterpret_cast<const PyCodeObject*>(function->func_code);
  if (code->co_flags & observe::kRunsLater || !(code->co_flags & CO_OPTIMIZED)) return false;
  if (PyUnicode_READ_CHAR(code->co_name, 0) == '<' && !is_named(code->co_name, "<lambda>")) return false;
  const bool of_module = code->co_argcount && first && is_module_class(Py_TYPE(first));
  *module = of_module && is_method_of(Py_TYPE(first), function) ? first : nullptr;
  // A module's call is _call_impl's, within which forward() is the same part unless hooks stand around it.
  if (!*module) return true;
  return !is_named(code->co_name, "_wrapped_call_impl") && !(is_named(code->co_name, "forward") && !has_hooks(first));
}

// Of the call that begins now: it is a module's, or it has tensors.
bool may_be_part(const InterpreterFrame* frame, PyObject** module) {
  const int count = observe::argument_count(frame->code);
  if (!count || !may_be_part(frame->func, frame->localsplus[0], module)) return false;
  if (*module && is_named(frame->code->co_name, "_call_impl")) return true;
  return std::any_of(frame->localsplus, frame->localsplus + count, [](PyObject* o) { return o && has_tensor(o); });
}

// The arguments of a call that begins now, as vectorcall takes them.
struct Arguments {
  c10::SmallVector<PyObject*, 16> values;
  observe::Ref names;  // of the last of them; null: none
};

// False: an exception is set.
bool gather(const InterpreterFrame* frame, Arguments& args) {
  const PyCodeObject* code = frame->code;
  PyObject* const* locals = frame->localsplus;
  const int plain = code->co_argcount, named = code->co_kwonlyargcount;
  args.values.append(locals, locals + plain);
  int next = plain + named;
  PyObject* rest = code->co_flags & CO_VARARGS ? locals[next++] : nullptr;
  for (Py_ssize_t i = 0; rest && i < PyTuple_GET_SIZE(rest); ++i) args.values.push_back(PyTuple_GET_ITEM(rest, i));
  PyObject* keywords = code->co_flags & CO_VARKEYWORDS ? locals[next] : nullptr;
  const Py_ssize_t count = named + (keywords ? PyDict_GET_SIZE(keywords) : 0);
  if (!count) return true;
  args.names = observe::Ref::steal(PyTuple_New(count));
  if (!args.names) return false;
  Py_ssize_t place = 0;
  const auto add = [&](PyObject* name, PyObject* value) {
    PyTuple_SET_ITEM(args.names.get(), place++, Py_NewRef(name));
    args.values.push_back(value);
  };
  for (int i = plain; i < plain + named; ++i) add(PyTuple_GET_ITEM(code->co_localsplusnames, i), locals[i]);
  PyObject *key, *value;
  for (Py_ssize_t at = 0; keywords && PyDict_Next(keywords, &at, &key, &value);) add(key, value);
  return true;
}

bool is_local(const PyFunctionObject* function) {
  const char* name = PyUnicode_AsUTF8(function->func_qualname);
  return !name || std::strstr(name, "<locals>");
}

bool is_of(const observe::Ref& weak, const void* object) {
  return weak ? PyWeakref_GET_OBJECT(weak.get()) == object : object == nullptr;
}

}  // namespace

/// While it lives, this thread's calls of Python functions are looked at for parts; with null parts they are not.
struct Parts::Watch {
  Watch(Parts* p, const Options* o) : parts(p), options(o), outer(this_thread().watch) {
    this_thread().watch = this;
    if (parts) watch(evaluate);
  }
  ~Watch() {
    this_thread().watch = outer;
    if (parts) unwatch(evaluate);
    if (!outer) MadeHere::clear();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  Parts* parts;
  const Options* options;
  bool entered = false;  // the function whose parts they are has begun
  void* outer;           // the thread's watch before
};

size_t Parts::HashCallee::operator()(const Callee& callee) const noexcept {
  return support::mix(reinterpret_cast<uintptr_t>(callee.function), reinterpret_cast<uintptr_t>(callee.module));
}

bool Parts::available() { return true; }

PyObject* Parts::evaluate(PyThreadState* thread, _PyInterpreterFrame* frame, int throws) {
  if (static_cast<const char*>(__builtin_frame_address(0)) < deepest()) {
    _PyInterpreterState_SetEvalFrameFunc(thread->interp, below);
    PyObject* result = below(thread, frame, throws);
    if (watching) _PyInterpreterState_SetEvalFrameFunc(thread->interp, evaluate);
    return result;
  }
  const ThisThread& here = this_thread();
  auto* watch = static_cast<Watch*>(here.watch);
  if (!watch || !watch->parts || throws || here.recording) return below(thread, frame, throws);
  if (!std::exchange(watch->entered, true)) return below(thread, frame, throws);
  return watch->parts->enter(thread, frame, *watch->options);
}

PyObject* Parts::call(PyObject* callable, const Options& options, PyObject* const* args, size_t nargsf,
                      PyObject* kwnames) {
  if (!pays()) return PyObject_Vectorcall(callable, args, nargsf, kwnames);
  const Watch watch(this, &options);
  return PyObject_Vectorcall(callable, args, nargsf, kwnames);
}

std::shared_ptr<void> Parts::watch_rest(Function& function, const std::vector<observe::Obstacle::Open>& failed,
                                        const std::vector<const void*>& made) {
  Parts* parts = &function.parts;
  const Options* options = &function.options;
  if (function.is_part) {  // those of the function that it is a part of; its own call is looked at no more
    const auto* none = static_cast<const Watch*>(this_thread().watch);
    const auto* whole = none ? static_cast<const Watch*>(none->outer) : nullptr;
    if (!whole || !whole->parts) return nullptr;
    parts = whole->parts;
    options = whole->options;
  }
  for (const auto& call : failed) parts->look_through(call);
  auto watch = std::make_shared<Watch>(parts, options);
  watch->entered = true;
  MadeHere::note(made);
  return watch;
}

PyObject* Parts::enter(PyThreadState* thread, _PyInterpreterFrame* evaluated, const Options& options) {
  ++frames_;
  const auto* frame = reinterpret_cast<const InterpreterFrame*>(evaluated);
  PyObject* module = nullptr;
  std::shared_ptr<Part> part;
  Arguments args;
  try {
    if (frame->code->co_argcount && is_named(frame->code->co_name, "__init__")) MadeHere::note(frame->localsplus[0]);
    if (may_be_part(frame, &module)) part = find(frame->func, module);
    if (part && !part->function && (part->first_call != calls_ || !is_local(frame->func))) {
      part->function = observe::Ref::steal(new_part((PyObject*)frame->func, module, options));
      PyErr_Clear();
    }
    if (!part || part->calls++ < part->next || !part->function) return below(thread, evaluated, 0);
    if (!part->is_plain && !gather(frame, args)) return nullptr;
  } catch (const std::exception&) {  // no memory
    return below(thread, evaluated, 0);
  }
  const Watch none(nullptr, nullptr);
  if (part->is_plain) return below(thread, evaluated, 0);
  const observe::Ref object = observe::Ref::share(part->function.get());
  const Function& function = *part->get()->function;
  const uint64_t hits = function.stats.hits, eager = function.stats.fallen;
  const size_t names = args.names ? static_cast<size_t>(PyTuple_GET_SIZE(args.names.get())) : 0;
  PyObject* result =
      PyObject_Vectorcall(object.get(), args.values.data(), args.values.size() - names, args.names.get());
  if (function.stats.hits == hits) judge(*part, function.stats.fallen > eager);
  return result;
}

// After a call that was no hit. One operator may be many: a cell of an LSTM is.
void Parts::judge(Part& part, bool ran_eagerly) {
  constexpr int kFewSteps = 3;
  const Function& function = *part.get()->function;
  const auto& all = function.variants.all();
  part.is_plain = !all.empty() && std::ranges::all_of(all, [](const auto& variant) {
    const HitProgram& program = variant->program;
    return program.executable && program.operators < 2 && program.executable->steps() < kFewSteps;
  });
  if (!ran_eagerly) return void(part.failures = 0);
  fail(part);
}

// Null where it is to be none. A function made inside another one is often made anew for each call: it must come in a
// second one. So are some modules: where those of a class die, no more of them are parts.
std::shared_ptr<Parts::Part> Parts::find(PyFunctionObject* function, PyObject* module) {
  const auto known = by_callee_.find({function, module});
  if (known != by_callee_.end() && is_of(known->second->of, function) && is_of(known->second->self, module))
    return known->second;
  if (known != by_callee_.end() || all_.size() >= sweep_at_) drop_dead();
  const void* kind = module ? static_cast<const void*>(Py_TYPE(module)) : function->func_code;
  if (all_.size() >= kMostParts || deaths_[kind] >= kMostDeaths) return nullptr;
  auto part = std::make_shared<Part>();
  part->of = observe::Ref::steal(PyWeakref_NewRef((PyObject*)function, nullptr));
  if (module) part->self = observe::Ref::steal(PyWeakref_NewRef(module, nullptr));
  part->kind = kind;
  part->first_call = calls_;
  PyErr_Clear();
  all_.push_back(part);
  by_callee_[{function, module}] = part;
  return part;
}

void Parts::fail(Part& part) { part.next = part.calls + (kFirstRetry << std::min(part.failures++, 20u)); }

void Parts::look_through(const observe::Obstacle::Open& call) {
  auto* function = reinterpret_cast<PyFunctionObject*>(call.function);
  PyObject* module = nullptr;
  if (!may_be_part(function, call.first, &module)) return;
  const std::shared_ptr<Part> part = find(function, module);
  const bool serves = part && part->function && part->get()->function->stats.hits > 0;
  if (part && !serves && part->calls >= part->next) fail(*part);
}

void Parts::drop_dead() {
  const auto is_gone = [](const auto& part) { return is_dead(part->of) || is_dead(part->self); };
  std::vector<std::shared_ptr<Part>> gone;  // released last: what they hold may have finalisers
  std::ranges::copy_if(all_, std::back_inserter(gone), is_gone);
  for (const auto& part : gone) ++deaths_[part->kind];
  std::erase_if(by_callee_, [&](const auto& entry) { return is_gone(entry.second); });
  std::erase_if(all_, is_gone);
  sweep_at_ = 2 * all_.size() + kFirstSweep;
}

bool Parts::pays() {
  if (++calls_ < resumes_) return false;
  if (calls_ % kWindow) return true;
  const uint64_t ran = operators() - operators_before_, seen = frames_ - frames_before_;
  operators_before_ += ran;
  frames_before_ += seen;
  if (ran * kFramesPerOperator <= seen) resumes_ = calls_ + kPause;  // also where there is nothing to see
  return true;
}
#else
bool Parts::available() { return false; }

std::shared_ptr<void> Parts::watch_rest(Function&, const std::vector<observe::Obstacle::Open>&,
                                        const std::vector<const void*>&) {
  return nullptr;
}

PyObject* Parts::call(PyObject* callable, const Options&, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  return PyObject_Vectorcall(callable, args, nargsf, kwnames);
}
#endif

std::vector<const Parts::Part*> Parts::with_programs() const {
  std::vector<const Part*> found;
  for (const auto& part : all_)
    if (!is_dead(part->self) && part->function && !part->is_plain && part->get()->function->variants.last())
      found.push_back(part.get());
  return found;
}

uint64_t Parts::operators() const {
  uint64_t sum = 0;
  for (const auto& part : all_)
    if (part->function) sum += part->get()->function->stats.operators;
  return sum;
}

std::vector<std::shared_ptr<Parts::Part>> Parts::take() {
  by_callee_.clear();
  resumes_ = 0;
  return std::exchange(all_, {});
}

int Parts::traverse(visitproc visit, void* arg) const {
  for (const auto& part : all_) {
    Py_VISIT(part->function.get());
    Py_VISIT(part->of.get());
    Py_VISIT(part->self.get());
  }
  return 0;
}

}  // namespace fastjit::dispatch
