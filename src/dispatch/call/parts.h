#pragma once
// No all or nothing: where a function cannot be one program and runs eagerly, the modules and functions that it calls
// are compiled functions of their own, its *parts*. The outermost come first: what a call of theirs enters is looked at
// only where they cannot be one program themselves. Calls are seen where Python evaluates frames (PEP 523), so nothing
// of the user's is replaced. CPython 3.11 only.
#include <Python.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "observe/observe.h"
#include "observe/ref.h"

namespace fastjit::dispatch {

struct Function;
struct FunctionObject;
struct Options;

class Parts {
 public:
  /// True where this version of Python has them.
  static bool available();

  /// Calls `callable`, the function whose parts these are, which runs eagerly. GIL held; no tracer is active.
  PyObject* call(PyObject* callable, const Options& options, PyObject* const* args, size_t nargsf, PyObject* kwnames);

  /// The same for the rest of a call of `function` that was being recorded, for as long as the result lives; null where
  /// there are no parts. `failed`: functions that the obstacle is in, so that they would meet it again; what they call
  /// is looked at, as if they had been tried. `made`: the instances that the call has made.
  static std::shared_ptr<void> watch_rest(Function& function, const std::vector<observe::Obstacle::Open>& failed,
                                          const std::vector<const void*>& made);

  struct Part {
    observe::Ref function;         // a compiled function; null: seen once
    observe::Ref of, self;         // weak references: to what it was made of, and to the module it is called on
    const void* kind = nullptr;    // the module's class, or the function's code
    uint64_t first_call = 0;       // of the function that it is a part of
    uint64_t calls = 0, next = 0;  // not tried before call `next`: what it calls is
    uint32_t failures = 0;         // in a row
    bool is_plain = false;         // its program does no more than one operator: it runs as it is
    const FunctionObject* get() const { return reinterpret_cast<const FunctionObject*>(function.get()); }
  };
  /// Those that have a program, in the order in which they were found; borrowed.
  std::vector<const Part*> with_programs() const;
  /// Operators that hits of parts stood for.
  uint64_t operators() const;
  /// Gives all away: the caller releases them.
  std::vector<std::shared_ptr<Part>> take();
  int traverse(visitproc visit, void* arg) const;

 private:
  struct Watch;
  static PyObject* evaluate(PyThreadState* thread, struct _PyInterpreterFrame* frame, int throws);
  PyObject* enter(PyThreadState* thread, struct _PyInterpreterFrame* frame, const Options& options);
  std::shared_ptr<Part> find(PyFunctionObject* function, PyObject* module);
  void look_through(const observe::Obstacle::Open& call);
  void drop_dead();
  static void judge(Part& part, bool ran_eagerly);
  static void fail(Part& part);
  bool pays();

  std::vector<std::shared_ptr<Part>> all_;
  struct Callee {
    const void *function, *module;
    bool operator==(const Callee&) const = default;
  };
  struct HashCallee {
    size_t operator()(const Callee& callee) const noexcept;
  };
  std::unordered_map<Callee, std::shared_ptr<Part>, HashCallee> by_callee_;
  std::unordered_map<const void*, uint32_t> deaths_;  // by Part::kind
  uint64_t calls_ = 0, frames_ = 0, frames_before_ = 0, operators_before_ = 0;
  size_t sweep_at_ = 0;
  uint64_t resumes_ = 0;  // the call from which parts are looked for again
};

}  // namespace fastjit::dispatch
