#pragma once
// The read observer: watches one Python call, opcode by opcode, and returns everything it read that could be different
// next time, as facts that are cheap to check. Needs Python.h only (no torch). Closed world: an opcode, a C function or
// an object that no table row knows makes the call unsound, with a sentence naming the read and file:line.
#include <Python.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fastjit::observe {

/// What the host application (src/dispatch) tells the observer about objects it does not know itself.
struct Host {
  /// True for exact torch.Tensor or Parameter objects: reads on them are the operator recorder's business.
  bool (*is_tensor)(PyObject*) = nullptr;
  /// True for nn.Module instances: attribute reads on them become facts about their dictionaries.
  bool (*is_module)(PyObject*) = nullptr;
  /// Classifies a C callable (PyCFunction, method descriptor, slot wrapper, pybind11 function, type) that the built-in
  /// table lacks. Operator: an operator call, the recorder sees it. Pure: reads only its arguments. Unknown: unsound.
  enum class Callee { Operator, Pure, Unknown };
  Callee (*classify)(PyObject* callable) = nullptr;
  /// What a call of this object calls, borrowed, where that never changes (a compiled function: what it was made of);
  /// null otherwise.
  PyObject* (*unwrap)(PyObject* callable) = nullptr;
  /// A tensor was reached by a read that is a fact (a global, a cell, a module's parameter or buffer).
  void (*on_tensor)(void* context, PyObject* tensor, const char* name) = nullptr;
  /// The instruction about to run has watched scalar `scalar` as an operand beside a tensor, or as an argument of an
  /// Operator. alone: no other operand of it is a number of equal value. forwards: a binary operator, which may hand
  /// the object on to a Python method.
  void (*on_scalar_use)(void* context, size_t scalar, bool alone, bool forwards) = nullptr;
  /// The instruction of the last uses has ended, or (entered) Python code that it called begins.
  void (*on_scalar_use_end)(void* context, bool entered) = nullptr;
  void* context = nullptr;
};

/// One fact, after what it names was changed for a moment.
struct Mutation {
  /// Stuck: the check still fails after the change was undone. NotTried: it cannot be changed from here.
  enum class Seen : uint8_t { Noticed, Missed, Stuck, NotTried };
  std::string fact;
  Seen seen;
};

/// Everything a recorded call read. Checking costs a few ns a fact: dictionary version tags say when to look again.
class ReadSet {
 public:
  virtual ~ReadSet() = default;
  /// True if every fact holds. No Python code runs, nothing is allocated; a dead referent is false. GIL held.
  virtual bool check() noexcept = 0;
  /// The first fact that fails, in words: `global SCALE was 2.0, is 3.0 (model.py:14)`; empty if all hold.
  virtual std::string first_failure() = 0;
  /// One line per fact, for inspect("guards").
  virtual std::vector<std::string> describe() const = 0;
  /// For tests: changes what each fact names, checks, and puts it back. Runs no Python code of the objects.
  virtual std::vector<Mutation> mutate() = 0;
};

struct Observation {
  std::unique_ptr<ReadSet> facts;
  std::string unsound;  // not empty: why, e.g. "read of Box.v at model.py:14"
  std::vector<bool>
      symbolic;  // per object given to watch_scalar: only moved, used beside a tensor or passed to a tensor function
};

/// Observes this thread from start() to stop(). At most one per thread; GC is off meanwhile. start() returns false when
/// another trace or profile function is active (reason: "tracer active").
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void watch_scalar(PyObject* fresh_number) = 0;
  virtual bool start(PyObject* function) = 0;  // the function about to be called on this thread
  virtual Observation stop() = 0;
};
std::unique_ptr<Observer> make_observer(const Host& host);

/// True where this Python version has a read observer (3.11).
bool available();

/// True when sys.settrace / sys.setprofile / a C tracer is active on this thread. A few ns.
bool tracer_active() noexcept;

}  // namespace fastjit::observe
