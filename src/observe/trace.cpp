// The driver: events of the interpreter to frames and instructions.
#include "observe/observe.h"

#if PY_VERSION_HEX < 0x030C0000
#include <cstring>

#include "observe/tracer.h"

namespace fastjit::observe {
namespace {

thread_local Tracer* current = nullptr;
constexpr int kExtendedArg = 144, kResume = 151, kForIter = 93, kSend = 123;

std::string place_of(PyCodeObject* code, int offset) {
  std::string file = PyUnicode_AsUTF8(code->co_filename);
  size_t slash = file.rfind('/');
  return (slash == std::string::npos ? file : file.substr(slash + 1)) + ":" +
         std::to_string(PyCode_Addr2Line(code, offset * 2));
}

}  // namespace

const Tracer::Row* Tracer::rows() {
  static const auto table = [] {
    std::vector<Row> all(256);
#define OP(name, number, method) all[number] = {#name, &Tracer::method};
#include "observe/opcodes_311.def"
#undef OP
    return all;
  }();
  return table.data();
}

Tracer::Tracer(const Host& host) : host_(host), facts_(std::make_unique<Facts>()) {}

Tracer::~Tracer() {
  if (active_) stop();
}

void Tracer::watch_scalar(PyObject* fresh_number) {
  scalars_[fresh_number] = symbolic_.size();
  symbolic_.push_back(true);
  scalar_refs_.push_back(Ref::share(fresh_number));
}

bool Tracer::start(PyObject* function) {
  if (active_ || tracer_active() || current) return false;
  resolve_callees();
  function_ = Ref::share(function);
  gc_was_on_ = PyGC_Disable();
  current = this;
  active_ = true;
  if (is_module(function)) {
    names_[function] = "self";
    class_attr(Py_TYPE(function), intern(PyUnicode_FromString("__call__")));
  }
  PyEval_SetTrace(&Tracer::on_event, nullptr);
  return true;
}

Observation Tracer::stop() {
  Observation result;
  if (active_) {
    bool ours = PyThreadState_Get()->c_tracefunc == &Tracer::on_event;
    if (ours) PyEval_SetTrace(nullptr, nullptr);
    if (!ours && reason_.empty()) reason_ = "tracer set during the call";
    if (gc_was_on_) PyGC_Enable();
    current = nullptr;
    active_ = false;
  }
  if (reason_.empty() && !contexts_are_restored()) reason_ = "the call changes a context variable";
  if (reason_.empty()) {
    std::string changed = facts_->finish();
    if (!changed.empty()) reason_ = "the call itself changes " + changed;
  }
  result.unsound = reason_;
  result.symbolic = symbolic_;
  if (!reason_.empty()) result.symbolic.assign(symbolic_.size(), false);
  result.facts = std::move(facts_);
  return result;
}

void Tracer::unsound(const std::string& reason) {
  if (!reason_.empty()) return;
  reason_ = reason;
  PyEval_SetTrace(nullptr, nullptr);  // the rest of the call runs unobserved, at full speed
  PyErr_Clear();
}

const unsigned char* Tracer::ops_of(PyCodeObject* code) {
  Ref& bytes = ops_[code];
  if (!bytes) {
    bytes = Ref::steal(PyCode_GetCode(code));
    names_held_.push_back(Ref::share((PyObject*)code));  // the map is by address
  }
  return reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(bytes.get()));
}

const std::string& Tracer::where() {
  static const std::string kNowhere = "the call";
  if (frames_.empty()) return kNowhere;
  auto key = top().ops + 2 * top().offset;
  auto [it, is_new] = places_.try_emplace(key);
  if (!is_new) return it->second;
  return it->second = place_of(top().code, top().offset);
}

// The place, and for code of torch also the user's line that led there.
void Tracer::deny(const std::string& what) {
  auto of_torch = [](const Frame& f) {
    return std::strstr(PyUnicode_AsUTF8(f.code->co_filename), "/torch/") != nullptr;
  };
  std::string text = what + " at " + where();
  if (!frames_.empty() && of_torch(top()))
    for (size_t i = frames_.size(); i-- > 0;)
      if (!of_torch(frames_[i])) {
        text += " (called at " + place_of(frames_[i].code, frames_[i].offset) + ")";
        break;
      }
  unsound(text);
}

int Tracer::on_event(PyObject*, PyFrameObject* f, int what, PyObject* arg) noexcept {
  Tracer* self = current;
  if (!self || !self->active_ || !self->reason_.empty()) return 0;
  try {
    self->event(f, what, arg);
  } catch (const std::exception& e) {
    self->unsound(std::string("the observer failed: ") + e.what());
  }
  PyErr_Clear();
  return 0;
}

void Tracer::event(PyFrameObject* f, int what, PyObject* arg) {
  if (std::exchange(using_scalars_, false)) host_.on_scalar_use_end(host_.context, what == PyTrace_CALL);
  switch (what) {
    case PyTrace_CALL:
      return enter(f);
    case PyTrace_OPCODE:
      return opcode(f);
    case PyTrace_RETURN:
      return leave(f);
    case PyTrace_EXCEPTION:
      return raised(arg);
    default:
      return;
  }
}

void Tracer::enter(PyFrameObject* object) {
  auto* view = reinterpret_cast<FrameObject*>(object);
  InterpreterFrame* frame = view->frame;
  view->trace_opcodes = 1;
  view->trace_lines = 0;
  auto* function = reinterpret_cast<PyObject*>(frame->func);
  bool is_root = frames_.empty(), probing = false;
  if (!is_root) {
    Frame& caller = top();
    if (caller.expect == Expect::None || (caller.expect == Expect::One && caller.expected != function))
      return deny("a finaliser or signal handler ran " + std::string(PyUnicode_AsUTF8(frame->code->co_qualname)));
    if (caller.expect == Expect::One) caller.expect = Expect::None;
    probing = caller.expect_probing || caller.probing;
    bool is_init = caller.constructs && frame->code->co_argcount > 0 && frame->localsplus[0];
    if (is_init && PyUnicode_CompareWithASCIIString(frame->func->func_name, "__init__") == 0) {
      PyObject* self = frame->localsplus[0];
      fresh_.insert(PyCell_Check(self) ? PyCell_GET(self) : self);
    }
    caller.constructs = false;
  } else if (std::exchange(root_entered_, true)) {
    return unsound("Python code ran outside the call: " + std::string(PyUnicode_AsUTF8(frame->code->co_qualname)));
  }
  Frame f{};
  f.frame = frame;
  f.code = frame->code;
  f.ops = ops_of(frame->code);
  f.fresh_function = fresh_.contains(function);
  f.probing = probing;
  f.offset = static_cast<int>(frame->prev_instr - reinterpret_cast<_Py_CODEUNIT*>(frame->code->co_code_adaptive));
  frames_.push_back(f);
  if (!PyDict_CheckExact(frame->globals) || !PyDict_CheckExact(frame->builtins))
    return deny("globals that are not a plain dictionary");
  if (!f.fresh_function) facts_->function(frame->func, where());
  bool first = f.ops[2 * f.offset] == kResume && f.ops[2 * f.offset + 1] == 0;
  if (!first) return;
  enter_function(frame);
  if (is_root) enter_root(frame);
}

// The start of a function: what its call made, and what its definition brings along.
void Tracer::enter_function(InterpreterFrame* frame) {
  PyCodeObject* code = frame->code;
  if (code->co_flags & CO_VARKEYWORDS) {
    int index = code->co_argcount + code->co_kwonlyargcount + !!(code->co_flags & CO_VARARGS);
    PyObject* kwargs = frame->localsplus[index];
    if (kwargs && PyCell_Check(kwargs)) kwargs = PyCell_GET(kwargs);
    if (kwargs) fresh_.insert(kwargs);
  }
  const char* kinds = PyBytes_AS_STRING(code->co_localspluskinds);
  for (int i = 0; code->co_ncellvars && i < code->co_nlocalsplus - code->co_nfreevars; ++i)
    if ((kinds[i] & kLocalIsCell) && frame->localsplus[i]) fresh_.insert(frame->localsplus[i]);
  if (top().fresh_function) return;
  auto* function = reinterpret_cast<PyObject*>(frame->func);
  const std::string owner = PyUnicode_AsUTF8(frame->func->func_name);
  if (PyObject* defaults = frame->func->func_defaults)
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(defaults); ++i)
      found(PyTuple_GET_ITEM(defaults, i), "default " + std::to_string(i) + " of " + owner);
  if (PyObject* defaults = frame->func->func_kwdefaults) {
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(defaults, &at, &key, &value);)
      found(value, std::string("default ") + PyUnicode_AsUTF8(key) + " of " + owner);
  }
  if (frame->func->func_closure)
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(frame->func->func_closure); ++i)
      cell_owners_.emplace(PyTuple_GET_ITEM(frame->func->func_closure, i), function);
}

void Tracer::enter_root(InterpreterFrame* frame) {
  PyCodeObject* code = frame->code;
  int n = code->co_argcount + code->co_kwonlyargcount + !!(code->co_flags & CO_VARARGS) +
          !!(code->co_flags & CO_VARKEYWORDS);
  for (int i = 0; i < n; ++i) {
    PyObject* o = frame->localsplus[i];
    if (o && PyCell_Check(o)) o = PyCell_GET(o);
    if (!o) continue;
    bool is_default = false;  // a default is not part of the call's arguments: the key does not describe it
    if (PyObject* defaults = frame->func->func_defaults)
      for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(defaults); ++k) is_default |= PyTuple_GET_ITEM(defaults, k) == o;
    if (PyObject* defaults = frame->func->func_kwdefaults) {
      PyObject *key, *value;
      for (Py_ssize_t at = 0; PyDict_Next(defaults, &at, &key, &value);) is_default |= value == o;
    }
    if (is_default) continue;
    names_.emplace(o, PyUnicode_AsUTF8(PyTuple_GET_ITEM(code->co_localsplusnames, i)));
    add_argument(o, 0);
  }
}

void Tracer::add_argument(PyObject* o, int depth) {
  if (depth > 16) return;
  if (is_tensor(o)) {
    arguments_.insert(o);
  } else if (PyTuple_CheckExact(o) || PyList_CheckExact(o)) {
    if (PyList_CheckExact(o)) arguments_.insert(o);
    PyObject** items = PySequence_Fast_ITEMS(o);
    for (Py_ssize_t i = 0; i < Py_SIZE(o); ++i) add_argument(items[i], depth + 1);
  } else if (PyDict_CheckExact(o)) {
    arguments_.insert(o);
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(o, &at, &key, &value);) add_argument(value, depth + 1);
  }
}

void Tracer::leave(PyFrameObject* object) {
  if (!frames_.empty() && top().frame == reinterpret_cast<FrameObject*>(object)->frame) return frames_.pop_back();
  unsound("an unknown frame returned at " + where());
}

void Tracer::raised(PyObject* arg) {
  if (frames_.empty()) return;
  PyObject* type = arg && PyTuple_Check(arg) ? PyTuple_GET_ITEM(arg, 0) : nullptr;
  int op = top().ops[2 * top().offset];
  bool stops = type && PyErr_GivenExceptionMatches(type, PyExc_StopIteration);
  if (stops && (op == kForIter || op == kSend)) return;
  // A generator that any() or a loop left before its end is closed; what it does then is watched like the rest.
  if ((top().code->co_flags & CO_GENERATOR) && type && PyErr_GivenExceptionMatches(type, PyExc_GeneratorExit)) return;
  if (raising_ || (top().probing && type && PyErr_GivenExceptionMatches(type, PyExc_AttributeError))) return;
  deny(std::string(type && PyType_Check(type) ? ((PyTypeObject*)type)->tp_name : "exception") + " raised");
}

void Tracer::opcode(PyFrameObject* object) {
  InterpreterFrame* frame = reinterpret_cast<FrameObject*>(object)->frame;
  if (frames_.empty() || top().frame != frame) return unsound("an unknown frame ran at " + where());
  Frame& f = top();
  if (std::exchange(f.fresh_result, false))
    if (PyObject* result = at(1); result && !arguments_.contains(result)) fresh_.insert(result);
  if (std::exchange(f.container_result, false))
    if (PyObject* o = at(1); PyList_CheckExact(o) || PyDict_CheckExact(o) || PySet_CheckExact(o))
      if (!arguments_.contains(o)) fresh_.insert(o);
  raising_ = false;
  f.expect = Expect::None;
  f.expect_probing = false;
  f.constructs = false;
  f.reads_items = false;
  f.offset = static_cast<int>(frame->prev_instr - reinterpret_cast<_Py_CODEUNIT*>(f.code->co_code_adaptive));
  int op = f.ops[2 * f.offset], oparg = f.ops[2 * f.offset + 1];
  // 3.11 gives no event for the instruction behind EXTENDED_ARG: it is judged here.
  while (op == kExtendedArg) {
    ++f.offset;
    op = f.ops[2 * f.offset];
    oparg = oparg << 8 | f.ops[2 * f.offset + 1];
  }
  const Row& row = rows()[op];
  if (!row.effect) return deny("opcode " + std::to_string(op));
  (this->*row.effect)(oparg);
}

}  // namespace fastjit::observe
#endif
