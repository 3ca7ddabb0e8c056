// The driver: from events to frames and instructions.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>

#include "observe/errors.h"
#include "observe/events/driver.h"
#include "observe/events/opcode_numbers.h"
#include "observe/libraries.h"
#include "support/work.h"

namespace fastjit::observe {
namespace {

thread_local Driver* current_driver = nullptr;

// The garbage collector is off while any thread observes. Under the GIL.
int observing_threads = 0;
bool gc_was_on = false;

void end_gc_pause(int still_observing) {
  if (observing_threads > 0 && still_observing == 0 && gc_was_on) PyGC_Enable();
  observing_threads = still_observing;
}

template <class Frame>
std::string place_in(const Frame& frame) {
  return place_of(frame.code, PyCode_Addr2Line(frame.code, frame.offset * 2));
}

// Once its compiler has been used, torch notes each module that is made and forgets each that dies: no program's result
// depends on it.
bool notes_modules(PyCodeObject* code) {
  constexpr const char* kNames[] = {"GenerationTracker.tag", "_GenerationTracker.tag",  // since torch 2.15
                                    "ExactWeakKeyDictionary.__setitem__.<locals>.<lambda>"};
  const auto is_it = [&](const char* name) { return !PyUnicode_CompareWithASCIIString(code->co_qualname, name); };
  return std::ranges::any_of(kNames, is_it) && owner_of(code) == Owner::Ours;
}

// Where the instruction begins, with what extends its argument.
int start_of(const unsigned char* ops, int offset) {
  while (offset && ops[2 * offset - 2] == k_EXTENDED_ARG) --offset;
  return offset;
}

}  // namespace

bool is_load(int op, int oparg) {
  const bool is_item = op == k_BINARY_SUBSCR || (op == k_BINARY_OP && oparg == kSubscript);
  return is_item || op == k_LOAD_ATTR || op == k_LOAD_GLOBAL || op == k_LOAD_DEREF;
}

bool is_stand_in(PyCodeObject* code) { return !PyUnicode_CompareWithASCIIString(code->co_filename, kStandInFile); }

void after_fork_in_child() { end_gc_pause(current_driver && current_driver->is_active()); }

Driver* Driver::current() { return current_driver; }

bool Driver::begin() {
  if (active_ || tracer_active() || current_driver) return false;
  const bool gc_is_on = PyGC_Disable();
  if (observing_threads++ == 0) gc_was_on = gc_is_on;
  current_driver = this;
  active_ = true;
  return true;
}

bool Driver::begin_events() {
  has_begun_ = start_events();
  if (has_begun_) return true;
  end_observation();
  return false;
}

void Driver::end() {
  if (active_) {
    if (has_begun_ && !stop_events() && reason_.empty()) reason_ = "tracer set during the call";
    end_observation();
  } else if (is_noting_) {
    stop_events();
    current_driver = nullptr;
  }
  is_noting_ = false;
  if (reason_.empty() && !root_entered_) reason_ = "no Python code of the call was seen";
}

void Driver::end_observation() {
  end_gc_pause(observing_threads - 1);
  current_driver = nullptr;
  active_ = false;
}

void Driver::unsound(const std::string& reason) {
  if (!reason_.empty()) return;
  reason_ = reason;
  if (!rehearsal_) pause_events();  // the rest of the call runs unobserved, at full speed
  forget_error();
}

void Driver::tell_unsound() {
  if (reason_.empty() || rehearsal_ || std::exchange(told_unsound_, true)) return;
  if (!interrupted_.empty()) return note_rest();
  if (!host_.on_unsound) return;
  Obstacle met;
  met.in_library = in_library_;
  met.instances = instances();
  for (size_t i = 1; i < frames_.size(); ++i) {
    const Frame& f = frames_[i];
    PyObject* first = f.code->co_nlocals ? local_of(f.frame, 0) : nullptr;
    if (first && PyCell_Check(first)) first = PyCell_GET(first);  // an argument that an inner function reads
    met.open.push_back({(PyObject*)function_of(f.frame), first, f.values_before});
  }
  if (host_.on_unsound(host_.context, met)) note_rest();
}

// The next call may be recorded for good. Which numbers it will find changed says what this one finds in their places.
void Driver::note_rest() {
  if ((current_driver && current_driver != this) || !resume_events()) return;
  current_driver = this;
  is_noting_ = true;
}

void Driver::note_instruction(InterpreterFrame* frame, int offset) {
  if (++instructions_ > host_.max_instructions && host_.max_instructions) {
    is_noting_ = false;
    pause_events();
    if (!active_) current_driver = nullptr;
    return;
  }
  const unsigned char* ops = ops_of(code_of(frame));
  if (!kPrefixEvents && ops[2 * offset] == k_EXTENDED_ARG) return;
  const int first = start_of(ops, offset);
  int oparg = ops[2 * first + 1];
  for (offset = first; ops[2 * offset] == k_EXTENDED_ARG; oparg = oparg << 8 | ops[2 * offset + 1]) ++offset;
  const int op = ops[2 * offset];
  if (!is_load(op, oparg)) return;
  StackView stack(frame);
  if (stack.arrive(first, ops, depths_)) note(frame, op, oparg, stack);
}

// The call settles what it reads: the next one may find it, and no more of this one need be judged.
void Driver::interrupt(const std::string& state) {
  if (!reason_.empty()) return;
  interrupted_ = state + " at " + where();
  deny("state: " + state + " is filled");
}

const unsigned char* Driver::ops_of(PyCodeObject* code) {
  Ref& bytes = ops_[code];
  if (!bytes) {
    bytes = Ref::steal(PyCode_GetCode(code));
    codes_held_.push_back(Ref::share((PyObject*)code));  // the map is by address
  }
  return reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(bytes.get()));
}

const std::string& Driver::where() {
  static const std::string kNowhere = "the call";
  if (frames_.empty()) return kNowhere;
  if (is_stand_in(top().code)) return kNowhere;
  const auto* key = top().ops + 2 * top().offset;
  if (key == place_) return *place_text_;
  auto [it, is_new] = places_.try_emplace(key);
  if (is_new) it->second = place_in(top());
  place_ = key;
  return *(place_text_ = &it->second);
}

// The place, and for code of a library also the line that led there: the user's, or the one nearest to the user.
std::string Driver::placed(const std::string& what) {
  const Frame* nearest = frames_.empty() ? nullptr : &top();
  if (nearest && is_stand_in(nearest->code)) return what + kGiven;
  for (size_t i = frames_.size(); i-- > 0;)
    if (owner_of(frames_[i].code) < owner_of(nearest->code)) nearest = &frames_[i];
  const bool is_elsewhere = nearest && nearest != &top();
  return what + " at " + where() + (is_elsewhere ? " (called at " + place_in(*nearest) + ")" : "");
}

void Driver::deny(const std::string& what) {
  if (!reason_.empty()) return;
  const Owner owner = frames_.empty() ? Owner::User : owner_of(top().code);
  in_library_ = owner != Owner::User && owner != Owner::Generated;
  unsound(placed(what));
}

// A generator of this call that is dropped before its end, at any instruction, runs what is left of it.
bool Driver::is_closed(InterpreterFrame* frame) const {
  const auto known = generators_.find(frame);
  return known != generators_.end() && known->second == code_of(frame);
}

bool Driver::enter(InterpreterFrame* frame, int offset) {
  if (is_noting_) return true;
  if (inside_) return false;
  ended(true);
  const bool is_root = frames_.empty();
  if (!is_root && notes_modules(code_of(frame))) {
    inside_ = frame;
    return false;
  }
  if (is_root && std::exchange(root_entered_, true)) {
    unsound("Python code ran outside the call: " + std::string(PyUnicode_AsUTF8(code_of(frame)->co_qualname)));
    return false;
  }
  if (!is_root && !is_foreseen(frame)) return false;
  const bool is_plain_call = !is_root && top().expect == Expect::None && !top().reads_items;
  push(frame, offset);
  if (!PyDict_CheckExact(frame->globals) || !PyDict_CheckExact(frame->builtins)) {
    deny("globals that are not a plain dictionary");
    return false;
  }
  const bool is_start = top().ops[2 * offset] == k_RESUME && top().ops[2 * offset + 1] == 0;
  top().is_noted = entered(frame, is_start, is_plain_call);
  return !top().is_noted;
}

// Whether the instruction that runs in the frame above may enter this one, and is watched there.
bool Driver::is_foreseen(InterpreterFrame* frame) {
  Frame& caller = top();
  const PyCodeObject* code = code_of(frame);
  const bool is_one = caller.expect == Expect::One || caller.expect == Expect::Hash;
  const bool is_none = caller.expect == Expect::None && !is_closed(frame);
  if (is_none || (is_one && caller.expected != reinterpret_cast<PyObject*>(function_of(frame)))) {
    deny("unforeseen call of " + std::string(PyUnicode_AsUTF8(code->co_qualname)) + " by C code or a finaliser");
    return false;
  }
  if (caller.expect == Expect::One) caller.expect = Expect::None;
  if (caller.expect == Expect::Inside || caller.expect == Expect::Hash) {
    inside_ = frame;
    return false;
  }
  given_to(frame);
  return true;
}

void Driver::push(InterpreterFrame* frame, int offset) {
  Frame f{};
  f.frame = frame;
  f.code = code_of(frame);
  f.stack = StackView(frame);
  f.ops = ops_of(f.code);
  f.probing = !frames_.empty() && (top().expect_probing || top().probing);
  f.offset = offset;
  if (host_.values_read) f.values_before = host_.values_read(host_.context);
  if (f.code->co_flags & CO_GENERATOR) generators_[frame] = f.code;
  frames_.push_back(std::move(f));
}

void Driver::leave(InterpreterFrame* frame) {
  if (is_noting_) return;
  if (inside_) {
    if (frame == inside_) inside_ = nullptr;
    return;
  }
  ended(false);
  if (!frames_.empty() && top().frame == frame) return frames_.pop_back();
  unsound("an unknown frame returned at " + where());
}

void Driver::raised(PyObject* type) {
  if (is_noting_ || inside_) return;
  ended(false);
  if (frames_.empty()) return;
  int op = top().ops[2 * top().offset];
  bool stops = type && PyErr_GivenExceptionMatches(type, PyExc_StopIteration);
  if (stops && (op == k_FOR_ITER || op == k_SEND)) return;
  if (stops && top().may_stop) raising_ = true;
  // A generator that any() or a loop left before its end is closed; what it does then is watched like the rest.
  if ((top().code->co_flags & CO_GENERATOR) && type && PyErr_GivenExceptionMatches(type, PyExc_GeneratorExit)) return;
  if (raising_ || (top().probing && type && PyErr_GivenExceptionMatches(type, PyExc_AttributeError))) return;
  deny(std::string(type && PyType_Check(type) ? ((PyTypeObject*)type)->tp_name : "exception") + " raised");
}

// Watching costs many times what running does: a call that goes on and on is not kept waiting for it.
void Driver::pass_limit() {
  const std::string reason =
      "recording limit (" + std::to_string(host_.max_instructions) + " instructions) reached at " + where();
  unsound(reason);
  if (host_.on_limit) host_.on_limit(host_.context, reason);
}

void Driver::instruction(InterpreterFrame* frame, int offset) {
  if (is_noting_) return note_instruction(frame, offset);
  if (inside_) return;
  ended(false);
  if (frames_.empty() || top().frame != frame) return unsound("an unknown frame ran at " + where());
  Frame& f = top();
  if (f.is_noted) return;
  // 3.11 gives no event for the instruction behind EXTENDED_ARG: it is judged there. Later versions give both.
  if (++instructions_ > host_.max_instructions && host_.max_instructions) return pass_limit();
  if (!kPrefixEvents && f.ops[2 * offset] == k_EXTENDED_ARG) return;
  offset = start_of(f.ops, offset);
  if (!f.stack.arrive(offset, f.ops, depths_)) return deny("unknown stack depth");
  conclude();
  if (!reason_.empty()) return;
  raising_ = false;
  f.expect = Expect::None;
  f.expect_probing = false;
  f.constructs = false;
  f.makes_context = false;
  f.may_stop = false;
  f.reads_items = false;
  f.reads_pairs = false;
  f.offset = offset;
  judge();
}

}  // namespace fastjit::observe
#endif
