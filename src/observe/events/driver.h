#pragma once
// The driver of the observer: sees every instruction before it runs, with its operands on the value stack. Events come
// from a trace function (3.11, settrace.cpp) or from sys.monitoring (3.12 and later, monitor.cpp).
#include <climits>
#include <string>
#include <unordered_map>
#include <vector>

#include "observe/events/stack_view.h"
#include "observe/observe.h"
#include "observe/ref.h"

namespace fastjit::observe {

inline constexpr char kGiven[] = ", which was given to fastjit";

inline constexpr char kStopped[] = "stopped by fastjit, which calls it again later";

/// Whether it is code of fastjit's own that calls what is no Python function.
bool is_stand_in(PyCodeObject* code);

/// Whether the instruction leaves on the stack what it reads in a place.
bool is_load(int op, int oparg);

/// Keeps the frames of the call that runs on this thread, and why it was given up. What instructions mean a judge says,
/// who is told when a frame begins, when an instruction is about to run and when it has ended.
class Driver : public Observer {
 public:
  explicit Driver(const Host& host) : host_(host) {}
  void give_up(const std::string& reason) override { unsound(reason), tell_unsound(); }

  // What the source of events calls.
  static Driver* current();  // the one that observes this thread
  bool listens() const { return is_noting_ || (active_ && (reason_.empty() || rehearsal_)); }
  /// What runs is to be stopped, by an exception.
  bool stops() const { return active_ && rehearsal_ && !reason_.empty(); }
  bool is_active() const { return active_; }
  bool enter(InterpreterFrame* frame, int offset);  // whether its instructions are to be watched
  void instruction(InterpreterFrame* frame, int offset);
  void leave(InterpreterFrame* frame);
  void raised(PyObject* type);
  void unsound(const std::string& reason);
  void tell_unsound();  // tells the host, once; the rest of the call may be worth a look

 protected:
  enum class Expect : uint8_t { None, One, Any, Inside, Hash };  // Inside: any, unwatched; Hash: one, unwatched, often
  struct Frame {
    InterpreterFrame* frame;
    PyCodeObject* code;
    const unsigned char* ops;
    StackView stack;
    int made_cell = -1;              // of these locals, the instruction makes a cell
    size_t values_before = 0;        // Obstacle::Open
    bool fresh_function;             // the function was made in this call
    bool is_noted = false;           // what it reads was noted ahead: its instructions are not watched
    bool probing = false;            // an AttributeError raised here is caught by hasattr() or getattr() with a default
    int offset = 0;                  // code unit of the instruction that runs now
    bool fresh_result = false;       // its result is a new object
    std::vector<PyObject*> sources;  // of a new iterator: what it walks
    bool container_result = false;   // its result is new if it is a list, a dictionary or a set
    bool number_result = false;      // it may be a float read out of a tensor
    PyObject* data_of = nullptr;     // it reads .data of this tensor
    PyObject* state_of = nullptr;    // it reads the state of this generator
    const void* array_data = nullptr;  // it may make a tensor on the memory of an array, which begins there
    bool array_is_new = false;         // the call has made that memory
    bool constant_result = false;      // a tensor made without an operator, of data that is all facts
    bool derived_result = false;       // it follows from watched numbers as derivation_ says
    int64_t sizes_of = -1;             // it gives sizes of the tensor that the host calls so
    int size_dim = 0;                  // which: see Host::on_size; kAllDims: a torch.Size
    static constexpr int kAllDims = INT_MIN;
    bool gives_index = false;        // it begins a round of a loop that is watched, and gives its index
    bool gives_walkable = false;     // it may give what a loop walks: see walks.cpp
    std::vector<PyObject*> walks;    // of these it makes an iterator
    PyObject* reversed = nullptr;    // it gives a copy of this list, the other way round
    PyObject* compared = nullptr;    // of this tensor the instruction at `compared_at` reads no sizes, though it gives
    int compared_at = 0;             // them: see same_sizes.cpp
    size_t found_number = SIZE_MAX;  // it reads a number that differs from call to call: which of the facts'
    int new_list_at = 0;             // it makes a list and leaves it there on the stack
    bool nested_result = false;      // its result is new if it is a container, and so are the containers in it
    bool constructs = false;         // it makes an instance: the first argument of __init__ is that new object
    bool may_stop = false;           // it calls next(): StopIteration is its answer
    bool fills_cache = false;        // it calls a function that a cache has no result of yet: see fill_
    bool makes_class = false;        // its result is a new class
    bool sets_hooks = false;         // it sets those of a checkpoint for saved tensors
    bool draws_others = false;       // where that runs again, random numbers are others
    bool makes_context = false;      // it runs an autograd.Function, whose methods are given a new object first
    Expect expect = Expect::None;    // Python frames it may enter
    bool expect_probing = false;
    bool reads_items = false;      // a C function consumes what generators and callbacks give it
    bool reads_pairs = false;      // it makes a dictionary of them: of each pair it reads the key
    PyObject* expected = nullptr;  // the function, for Expect::One and Hash
    PyObject* kwnames = nullptr;
  };

  /// A frame of the call has begun: the topmost. is_start: at its start, not in the middle of a generator.
  /// is_plain_call: an instruction of the frame above called it. True: all that it reads is noted.
  virtual bool entered(InterpreterFrame* frame, bool is_start, bool is_plain_call) = 0;
  /// The instruction that runs in the topmost frame is about to enter this one.
  virtual void given_to(InterpreterFrame* frame) = 0;
  /// The last instruction has ended, by an exception or not, or (entered) calls Python code.
  virtual void ended(bool entered) = 0;
  /// It has ended in the same frame: what it left is on the stack.
  virtual void conclude() = 0;
  /// The topmost frame's instruction is about to run.
  virtual void judge() = 0;
  /// A frame of an unsound call is about to run this instruction, which reads something: is it a number's place?
  virtual void note(InterpreterFrame* frame, int op, int oparg, const StackView& stack) = 0;
  /// Obstacle::instances.
  virtual const std::vector<const void*>& instances() const = 0;

  bool begin();                        // false: this thread is observed already
  bool begin_events();                 // false: there are none to be had
  void end();                          // the call has ended; why it is unsound, if it is, is known
  void deny(const std::string& what);  // unsound, with the place
  std::string placed(const std::string& what);
  void interrupt(const std::string& state);
  const std::string& where();
  Frame& top() { return frames_.back(); }
  PyObject* at(int n) { return top().stack.at(n); }  // 1: top of the value stack
  PyObject* local(int i) { return local_of(top().frame, i); }
  PyObject* name_at(int i) { return PyTuple_GET_ITEM(top().code->co_names, i); }
  void may_enter(PyObject* function) { top().expect = Expect::One, top().expected = function; }
  void may_enter_any() {
    if (top().expect != Expect::Hash) top().expect = Expect::Any;
  }

  Host host_;
  std::string reason_;
  PyObject* rehearsal_ = nullptr;  // see Observer::watch_rehearsal(): what runs may leave nothing behind
  bool in_library_ = false;        // reason_ is what code of a library does
  std::string interrupted_;        // reason_, where the next call may be another matter: what this one settled
  const InterpreterFrame* inside_ = nullptr;  // the outermost frame of an operator's own Python code, while it runs
  bool raising_ = false;                      // an exception that Python code raised is on its way to a handler
  uint64_t instructions_ = 0;                 // judged so far
  std::vector<Frame> frames_;
  std::unordered_map<InterpreterFrame*, PyCodeObject*> generators_;  // entered in this call, by address

 private:
  // events/settrace.cpp, events/monitor.cpp: the source of events
  bool start_events();
  bool stop_events();  // false if someone else took over
  void pause_events();
  bool resume_events();  // after pause_events()

  void end_observation();
  bool is_foreseen(InterpreterFrame* frame);
  void push(InterpreterFrame* frame, int offset);
  bool is_closed(InterpreterFrame* frame) const;
  void pass_limit();
  void note_rest();
  void note_instruction(InterpreterFrame* frame, int offset);
  const unsigned char* ops_of(PyCodeObject* code);

  bool active_ = false, root_entered_ = false, told_unsound_ = false;
  bool is_noting_ = false;                      // the rest of an unsound call is looked at: see note()
  bool hears_ = false;                          // wants events
  bool has_begun_ = false;                      // there are events to end: not where memory ran out before
  std::unordered_map<PyCodeObject*, Ref> ops_;  // plain bytecode of each code object
  std::vector<Ref> codes_held_;                 // its keys
  StackDepths depths_;
  std::unordered_map<const void*, std::string> places_;  // file:line by instruction
  const void* place_ = nullptr;                          // the one that was asked for last, and its text
  const std::string* place_text_ = nullptr;
};

}  // namespace fastjit::observe
