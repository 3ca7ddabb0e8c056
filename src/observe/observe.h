#pragma once
// The read observer: watches one Python call, opcode by opcode, and returns everything it read that could be different
// next time, as facts that are cheap to check. Needs Python.h only (no torch). Closed world: an opcode, a C function or
// an object that no table row knows makes the call unsound, with a sentence naming the read and file:line.
#include <Python.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "observe/ref.h"
#include "support/arithmetic.h"
#include "support/size_use.h"

/// 1 where this version of Python has a read observer. The build may leave it out (cmake -DFASTJIT_OBSERVER=OFF).
#ifdef FASTJIT_NO_OBSERVER
#define FASTJIT_OBSERVES 0
#elif PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030F0000 && !defined(Py_GIL_DISABLED)
#define FASTJIT_OBSERVES 1
#else
#define FASTJIT_OBSERVES 0
#endif

namespace fastjit::observe {

/// The file of functions that only call what they are given, so that the call of a C function is watched like any
/// other.
inline constexpr char kStandInFile[] = "<fastjit>";

/// One setting of the whole process, which nothing but a look tells a change of.
struct Setting {
  const char* name;  // "the recursion limit"
  uint64_t (*now)();
  void (*set)(uint64_t value);
};

/// Where a call turned out unsound.
struct Obstacle {
  struct Open {
    PyObject* function;    // borrowed
    PyObject* first;       // what its first local variable holds now, borrowed; may be null
    size_t values_before;  // read out of tensors when it began
  };
  std::vector<Open> open;              // the functions that it is in, from the outermost that the call has entered
  std::vector<const void*> instances;  // that the call has made: addresses only, some may be gone
  bool in_library = false;             // it is what code of a library does
};

using support::IndexItem;
using support::LoopRange;
using support::SizeOperand;

/// What the host application (src/dispatch) tells the observer about objects it does not know itself.
struct Host {
  /// True for exact torch.Tensor or Parameter objects: reads on them are the operator recorder's business.
  bool (*is_tensor)(PyObject*) = nullptr;
  /// True for nn.Module instances: attribute reads on them become facts about their dictionaries.
  bool (*is_module)(PyObject*) = nullptr;
  /// Classifies a C callable (PyCFunction, method descriptor, slot wrapper, pybind11 function, type) that the built-in
  /// table lacks. Operator: an operator call, the recorder sees it. Pure: reads only its arguments. Unknown: unsound.
  /// Boxed: an operator through torch.ops; Python code that its kernels run is the operator's own, run at each call.
  enum class Callee { Operator, Boxed, Pure, Unknown };
  Callee (*classify)(PyObject* callable) = nullptr;
  /// The setting that this C function reads or changes; null: none.
  const Setting* (*setting_of)(PyObject* callable) = nullptr;
  /// What autograd does beyond its formulas: 0 where it does no more.
  const Setting* (*gradients_under)() = nullptr;
  /// What a call of this object calls, borrowed, where that never changes (a compiled function: what it was made of);
  /// null otherwise.
  PyObject* (*unwrap)(PyObject* callable) = nullptr;
  /// A tensor was reached by a read that is a fact (a global, a cell, a module's parameter or buffer).
  void (*on_tensor)(void* context, PyObject* tensor, const char* name) = nullptr;
  /// The call about to run reads the gradient of this tensor, which facts lead to. Returns the object it will get, or
  /// None, borrowed until the call has ended; null where a program cannot read it.
  PyObject* (*on_grad)(void* context, PyObject* tensor, const char* name) = nullptr;
  /// Whether the call has put there the gradient that this tensor has now, or has taken away the one that it had.
  bool (*is_own_grad)(void* context, PyObject* tensor) = nullptr;
  /// The call is about to set the gradient of a tensor, to which facts lead, to None or to another tensor. False: a
  /// program cannot do that.
  bool (*on_grad_set)(void* context, PyObject* tensor, PyObject* value) = nullptr;
  /// The call is about to go back through autograd's graph from this tuple of tensors and to leave gradients in others.
  /// Not empty: why a program cannot.
  std::string (*on_backward)(void* context, PyObject* tensors) = nullptr;
  /// A call gave this new float. True: it is the value of a tensor that the host knows, and may stay symbolic; it is
  /// the next scalar then, as if watch_scalar() had been called with it.
  bool (*on_number)(void* context, PyObject* number) = nullptr;
  /// A number that the call computed out of watched scalars is the next one, as if watch_scalar() had been called with
  /// it. Without this, such scalars are not symbolic.
  void (*on_derived)(void* context, struct Derivation& how) = nullptr;
  /// The call read this number where vary() says that numbers differ: it is the next one, as if watch_scalar() had been
  /// called with it, and ReadSet::numbers() finds it again. True: an int that is watched as sizes are. Without this, no
  /// such number is symbolic.
  bool (*on_found_number)(void* context, PyObject* number, const char* name) = nullptr;
  /// The call about to run reads all elements of a tensor without an operator that shows them.
  void (*on_contents_read)(void* context, PyObject* tensor) = nullptr;
  /// The call seeds a generator with `operand`, has just got its state, the tensor `operand`, or sets it to that one;
  /// or it seeds all of torch's (`generator` is null); or it is about to use one that it has made, for the first time
  /// or again. False: a program cannot do it.
  enum class OnState : uint8_t { Seed, Got, Set, SeedAll, Made };
  bool (*on_generator)(void* context, OnState what, PyObject* generator, PyObject* operand) = nullptr;
  /// The call read `data` as the attribute of that name of a tensor. False: a program cannot have it.
  bool (*on_data)(void* context, PyObject* tensor, PyObject* data) = nullptr;
  /// The call has gone into a checkpoint (torch.utils.checkpoint), whose hooks for saved tensors are set. draws_others:
  /// where autograd runs its operators again, random numbers are others.
  void (*on_checkpoint)(void* context, bool draws_others) = nullptr;
  /// A checkpoint is about to save this tensor, which it was given.
  void (*on_checkpoint_saves)(void* context, PyObject* tensor) = nullptr;
  /// The call is about to leave it. Not empty: why a program cannot run it again.
  std::string (*on_checkpoint_end)(void* context) = nullptr;
  /// Gradients are about to be computed, and to be left nowhere. Not empty: why a program cannot do that.
  std::string (*on_gradients)(void* context) = nullptr;
  /// Whether an operator of this call made the tensor; in a rehearsal, and its memory, since that began.
  bool (*is_made)(void* context, PyObject* tensor) = nullptr;
  /// The same, and how often it was written follows from what this call does.
  bool (*counts_own_writes)(void* context, PyObject* tensor) = nullptr;
  /// The call about to run lets this tensor require grad, or no longer. False: a program cannot have it.
  bool (*on_leaf)(void* context, PyObject* tensor) = nullptr;
  /// Whether `data` is what the tensor's .data holds already, in every call.
  bool (*is_own_data)(void* context, PyObject* tensor, PyObject* data) = nullptr;
  /// A call made this tensor of numbers without an operator. False: a program cannot have it.
  bool (*on_constant)(void* context, PyObject* tensor) = nullptr;
  /// The elements of an array of numpy that was there before are facts from now on.
  void (*on_array_read)(void* context) = nullptr;
  /// A call made this tensor of an array of numpy; where it begins at `data`, it shares memory with it. is_new: so does
  /// nobody else.
  void (*on_array)(void* context, PyObject* tensor, const void* data, bool is_new) = nullptr;
  /// The instruction about to run makes a tensor of the values of those in this list or tuple, and of nothing else;
  /// on_scalar_use_end says when it has.
  void (*on_stack)(void* context, PyObject* tensors) = nullptr;
  /// The instruction about to run looks at size `dim` of a tensor; negative: at any of them.
  void (*on_size_read)(void* context, PyObject* tensor, int dim) = nullptr;
  /// Whether data decides sizes of these two tensors, and both have the same ones whatever it says.
  bool (*same_sizes)(void* context, PyObject* a, PyObject* b) = nullptr;
  /// It takes a slice of the tensor, from the beginning to `stop`: whether size `dim` is at most that decides which
  /// operators run. dim -1: it asks whether the tensor has no elements, and `stop` is 0.
  void (*on_slice)(void* context, PyObject* tensor, int dim, int64_t stop) = nullptr;
  /// It asks for the tensor with its elements in this order (a memory format of torch's, or null): whether they lie so,
  /// and the tensor is given back, or a copy, sizes may decide.
  void (*on_contiguous)(void* context, PyObject* tensor, PyObject* format) = nullptr;
  /// It gives sizes of the tensor as ints. Which one the host calls the tensor where these may differ from call to
  /// call, else -1.
  int64_t (*on_sizes)(void* context, PyObject* tensor) = nullptr;
  /// The same where data decides such sizes: -1 where they are to be facts, see on_size_read. dim: as there.
  int64_t (*on_found_sizes)(void* context, PyObject* tensor, int dim) = nullptr;
  /// `number`, an object of the call's own that is watched from now on, is what that tensor has as this size;
  /// dim -1: as the count of its elements.
  void (*on_size)(void* context, int64_t tensor, int dim, PyObject* number) = nullptr;
  /// The instruction about to run indexes the tensor with these. False: the host does not follow it.
  bool (*on_index)(void* context, PyObject* tensor, const std::vector<IndexItem>& items) = nullptr;
  /// The Operator about to be called is given these ints, in lists or not, in the order of its parameters; some are
  /// sizes. on_scalar_use_end says when it has run.
  void (*on_sizes_used)(void* context, const std::vector<SizeOperand>& ints) = nullptr;
  /// A loop of Python begins, of as many rounds as this range says, which ends at a size or begins there. What the host
  /// calls it; -1: it follows no loops.
  int64_t (*on_loop)(void* context, const LoopRange& range) = nullptr;
  /// All parts of a tensor along a dim, one behind the other. tensor: as on_sizes says it, -1: they are something else.
  struct Parts {
    int64_t event = -1, tensor = -1;  // event: what the host calls the operator that gave them
    int dim = 0;
  };
  /// Whether the last operator gave these tensors so.
  Parts (*on_parts)(void* context, PyObject* parts) = nullptr;
  /// Each round of the loop is given one of the parts that `event` gave.
  void (*on_walk)(void* context, int64_t loop, int64_t event) = nullptr;
  /// A round of it begins, with `index`, an object of the call's own that is watched as sizes are from now on; null: it
  /// has none.
  void (*on_round)(void* context, int64_t loop, PyObject* index) = nullptr;
  /// It has ended. Rounds from this number on are alike: as far as Python can tell, each does what the others do, with
  /// tensors that these handed on, and in another call so do more or fewer of them. -1: they may not be. last_differs:
  /// the last one takes another path.
  void (*on_loop_end)(void* context, int64_t loop, int64_t alike_from, bool last_differs) = nullptr;
  /// Whether the round that runs, or the one before, has made tensor `b`, and Python can tell it from `a` only by its
  /// values and by which object it is.
  bool (*is_next)(void* context, PyObject* a, PyObject* b) = nullptr;
  /// The Operator about to be called is given this list, of `before` tensors, and behind these as many of each round of
  /// the loop; reversed: those of the last round come first. on_scalar_use_end says when it has run.
  void (*on_rounds_used)(void* context, int64_t loop, size_t before, PyObject* list, bool reversed) = nullptr;
  /// Each round of the loop is given an item of this list: rounds of a loop before have put them there.
  void (*on_walk_list)(void* context, int64_t loop, PyObject* list) = nullptr;
  /// Whether the call has made a tensor whose sizes depend on data.
  bool (*has_data_sizes)(void* context) = nullptr;
  /// The instruction about to run has watched scalar `scalar` as an operand beside a tensor, or as an argument of an
  /// Operator. alone: no other operand of it is a number of equal value. forwards: a binary operator, which may hand
  /// the object on to a Python method. element: its place in a list that the operator is given, -1: it is in none.
  void (*on_scalar_use)(void* context, size_t scalar, bool alone, bool forwards, int element) = nullptr;
  /// The instruction of the last uses has ended, or (entered) Python code that it called begins.
  void (*on_scalar_use_end)(void* context, bool entered) = nullptr;
  /// How many values the call has read out of tensors so far.
  size_t (*values_read)(void* context) = nullptr;
  /// The call turned out unsound, for good: nothing more of it is watched. No instruction is being judged,
  /// but one may run where give_up() was called. True: the next call may be another matter, and nobody else watches
  /// the rest of this one, so that Observation::numbers may tell of it too.
  bool (*on_unsound)(void* context, const struct Obstacle& met) = nullptr;
  /// A part of the call that later calls leave out is about to run unwatched, or (ended) has run. True: it ran no
  /// operator, and left modes and arguments as they were.
  bool (*on_unwatched)(void* context, bool ended) = nullptr;
  /// Past max_instructions (0: any number) the rest of the call is not observed; `reason` says so and where.
  void (*on_limit)(void* context, const std::string& reason) = nullptr;
  uint64_t max_instructions = 0;
  std::string filled_before;  // Observation::state of the call before, where that was interrupted
  void* context = nullptr;
};

/// A place in which calls find numbers, or tuples with numbers in them: an item of a dictionary (an attribute, a
/// global) or of a list, a cell, or an instance's slot.
struct NumberPlace {
  const void* container;  // an address only: another one may be there by now
  Ref key;                // of an item of a dictionary
  Py_ssize_t index = -1;  // of a list's
  Ref was = {};  // the number, or the form of tuples, that an earlier call found there: this one may find the same
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
  /// For the garbage collector: visits each reference that is held, as tp_traverse does.
  virtual int traverse(visitproc visit, void* arg) const = 0;
  /// The objects that facts look into: instances, dictionaries, lists, tensors with attributes. Addresses only.
  virtual std::vector<const void*> looked_into() const = 0;
  /// Numbers of which any serves that has the type of the recorded one: how many, and which they are now (borrowed, in
  /// the order of the reads). After check(); false: a program has no room for one of them.
  virtual size_t number_count() const noexcept = 0;
  virtual bool numbers(PyObject** out) const noexcept = 0;
  /// The n-th of these is a fact by value after all. Not empty: the call gave the place another value, "self.h at
  /// model.py:14", so that the facts fail from now on.
  virtual std::string fix_number(size_t which) = 0;
  /// Adds the places of these numbers, and of those whose value a fact names and another number of its type took.
  virtual void varying(std::vector<NumberPlace>& out) = 0;
  /// For tests: changes what each fact names, checks, and puts it back. Runs no Python code of the objects.
  virtual std::vector<Mutation> mutate() = 0;
};

/// What the call did to something that existed before it, such that a later call can do it again.
struct SideEffect {
  enum class Kind : uint8_t {
    SetItem,   // target, a dictionary: [key] = value. Attributes and globals are items too
    SetIndex,  // target, a list: [place] = value
    Append,    // target, a list: one item more
    SetCell,   // target, a cell
    SetSlot,   // target, an instance with __slots__: at byte `place`
    Print,     // target, builtins.print: called with the tuple `value` and the keywords `key`
    // `value`: (category, text, file, line). place 0: target are the globals of the code that is warned of; else
    // warnings.warn, called with this stack level above the call, and the file and line are not used.
    Warn,
    Call,  // target: called with the tuple `value`
  };
  static constexpr bool stores(Kind kind) { return kind < Kind::Print; }
  explicit SideEffect(Kind k) : kind(k) {}
  Kind kind;
  bool symbolic = false;  // value is a number that the call was given: another call may store another one
  bool adds = false;      // value, a number, is added to what is there
  // The target is an argument that the call's key describes, or is part of one: another object in each call. With
  // SetItem an instance or a tensor, and `key` the name of an attribute.
  bool of_argument = false;
  Py_ssize_t place = 0;
  Ref target, key, value;
  std::string label, where;  // "self.h", "model.py:14"
  std::string text() const;  // "self.h = Tensor (model.py:14)"
};

/// Numbers, strings, None and tuples of them: compared by type and bits.
bool is_constant(PyObject* o);

/// An object in a few words: `2.0`, `Tensor`.
std::string words(PyObject* object);

/// Whether a program takes the number, an exact float or int: it has 64 bits for it, and room for a carry.
bool fits_program(PyObject* number) noexcept;
/// Subclasses of tuple that hold nothing but items: named tuples, torch.Size, torch.return_types; and tuple.
bool holds_only_items(PyTypeObject* type) noexcept;
/// A set or an OrderedDict with nothing in it: no other of either is compared by content. Runs no Python code.
bool is_empty_container(PyObject* o) noexcept;
/// Whether Python has one object for all ints of this value.
bool is_shared(PyObject* number);
/// A new object of equal value, also of ints that Python shares, so that its address tells it from all others. Null
/// with an exception set.
PyObject* own_copy(PyObject* number);

/// True if print() runs no Python code: sys.stdout is a stream written in C.
bool plain_stdout() noexcept;

/// Who answers a call that each hit makes again.
enum class Asked : uint8_t {
  No,
  Clock,
  Random,       // the generator behind the functions of Python's module random
  NumpyRandom,  // the one behind those of numpy.random
  Torch,        // a setting of the process or of a stream
};

/// Why warnings of this category cannot be given from C now: a filter may make errors of them, or code of the user
/// shows them. Null where they can.
const char* why_no_warning(PyObject* category) noexcept;

/// A number that the call computed out of watched ones, by Python's own operator or a function in C, or that it asked
/// for: in another call the same operation gives it. No Python code runs.
struct Derivation {
  static constexpr size_t kUnwatched = SIZE_MAX;
  struct Operand {
    int scalar = -1;  // a watched number; negative: `value` in every call
    Ref value;        // in the recorded call
  };
  size_t scalar = 0;  // which watched number it is; the operands are earlier ones. kUnwatched: its value is a guard
  Ref number;         // in the recorded call
  Asked asked = Asked::No;       // it is what `function` answered
  bool of_asked = false;         // it is such an answer or follows from some: it is computed at each hit, in this order
  bool of_clock = false;         // of a clock's
  bool after_operators = false;  // the host may say so: it was asked for when operators had run
  int comparison = -1;           // Py_LT ...: whether that holds of the two operands
  PyObject* (*binary)(PyObject*, PyObject*) = nullptr;
  PyObject* (*unary)(PyObject*) = nullptr;
  Ref function;            // called where both are null
  bool of_tensor = false;  // it follows from a value that was read out of a tensor: the program computes it
  bool of_size = false;    // it follows from sizes: the host knows what it is in another call
  std::optional<support::Arithmetic> arithmetic;   // what programs can run
  std::optional<support::IntArithmetic> integers;  // the same of ints that are sizes
  std::optional<support::Test> test;               // what they can ask of it: kUnwatched, without `number`
  std::string text;                                // "+", "sqrt"; the host may put the whole expression here
  std::string where;
  std::vector<Operand> operands;
  /// The number for these operands, a new reference; null with an exception set where the operation raises.
  PyObject* compute(PyObject* const* operands) const;
};

/// A place in which the call read a tensor, or a tuple with tensors in it, and then left another one: the next call
/// finds that. Which object is there is no fact, only its class, and of a tuple its form.
struct Replaced {
  PyObject* tensor;            // that the recorded call found, and that facts lead to nowhere else
  SideEffect::Kind kind;       // as of a SideEffect
  PyObject* target = nullptr;  // borrowed: facts lead to it. SetSlot: the address of the slot itself
  Ref key;
  Py_ssize_t place = 0;
  std::vector<Py_ssize_t> way;  // to the tensor, in the tuple of tuples that is there; empty: it is there itself
};

struct Observation {
  std::vector<Replaced> replaced;
  std::vector<Ref> tagged;      // tensors that the call made and then gave attributes
  std::vector<Ref> classes;     // that the call made: no other call has these
  std::vector<PyObject*> bare;  // argument tensors that have no attributes of their own, which the call relied on
  // Pairs of tensors that the call knew apart; twice the same: an argument that facts lead to as well.
  std::vector<std::pair<PyObject*, PyObject*>> identities;
  std::unique_ptr<ReadSet> facts;   // null where the call replaced what it had looked into: see `state`
  std::string unsound;              // not empty: why, e.g. "read of Box.v at model.py:14"
  std::vector<SideEffect> effects;  // in order
  // Not empty: what the call read and then gave another value, "self.h at model.py:14": the facts fail from now on.
  std::string state;
  bool in_library = false;         // unsound for what code of a library does, which may be its first use in the process
  bool interrupted = false;        // unsound, and `state` is what the call filled, which the next one may find
  bool state_is_constant = false;  // the new value is a number, a string, None ...: another call may come back to it
  std::vector<bool>
      symbolic;  // per object given to watch_scalar: only moved, used beside a tensor or passed to a tensor function
  std::vector<Derivation> derivations;  // of watched numbers, in order
  std::vector<Ref> watched;             // these numbers, held
  std::vector<Py_ssize_t> references;   // to each of them, the observer's own left out
  std::vector<size_t> found_numbers;    // those of them that ReadSet::numbers() gives, in its order
  std::vector<NumberPlace> numbers;     // for the next call's vary(), with what this one was told
};

/// Observes this thread from start() to stop(). At most one per thread; GC is off meanwhile. start() returns false when
/// another trace or profile function is active (reason: "tracer active").
class Observer {
 public:
  virtual ~Observer() = default;
  /// `original`, kept alive by the caller, is what the caller of the function passed in its place. `is_size`: an int
  /// that is watched as sizes are.
  virtual void watch_scalar(PyObject* fresh_number, PyObject* original = nullptr, bool is_size = false) = 0;
  /// What the call finds there are numbers that differ from call to call, unless they are what they were.
  virtual void vary(std::vector<NumberPlace> places) = 0;
  /// The call's key says what class and attributes this argument has; which object it is must not matter.
  virtual void describe(PyObject* instance) = 0;
  /// An object that the caller passes: it is an argument even where it is a parameter's default, too.
  virtual void pass(PyObject* argument) = 0;
  /// Why a call of this object, which is no Python function, is not worth watching, or "".
  virtual std::string refuses(PyObject* callable) = 0;
  /// The rest of the call runs unobserved, and is unsound for this reason. GIL held.
  virtual void give_up(const std::string& reason) = 0;
  /// Before start(): a call of this C function runs Python code that the caller will run again, the methods of an
  /// autograd.Function. It is stopped, by a RuntimeError, before it does what it would leave behind.
  virtual void watch_rehearsal(PyObject* callable) = 0;
  virtual bool start(PyObject* function) = 0;  // the function about to be called on this thread
  virtual Observation stop() = 0;
};
std::unique_ptr<Observer> make_observer(const Host& host);

/// What these functions of torch.nn.Module read is known to the observer, which need not watch their instructions:
/// a dictionary of their code by name (python/fastjit/_known_frames.py). Those of the last call count. GIL held.
void know_frames(PyObject* codes);

/// True where this Python version has a read observer.
bool available();

/// True when sys.settrace / sys.setprofile / a C tracer is active on this thread. A few ns.
bool tracer_active() noexcept;

/// To be called in a child of fork(): the threads that observed in its parent are not there.
void after_fork_in_child();

}  // namespace fastjit::observe
