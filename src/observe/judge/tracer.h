#pragma once
// The judge of the observer: what each instruction reads and does, and which facts follow. opcodes_31x.def names the
// method that judges each opcode; the methods live in the files of this folder, the same for all versions.
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "observe/events/driver.h"
#include "observe/facts/facts.h"
#include "observe/judge/instruction.h"
#include "observe/judge/places_of_numbers.h"
#include "observe/judge/watched_numbers.h"
#include "observe/known_functions.h"
#include "support/flat.h"

namespace fastjit::observe {

/// Dictionaries of an nn.Module whose items are facts and whose items' names are those of its attributes, in the order
/// in which its __getattr__ looks.
inline constexpr const char* kModuleParts[] = {"_parameters", "_buffers", "_modules"};

class Tracer final : public Driver {
 public:
  explicit Tracer(const Host& host);
  ~Tracer() override;
  void watch_scalar(PyObject* fresh_number, PyObject* original = nullptr, bool is_size = false) override;
  void vary(std::vector<NumberPlace> places) override { varying_.add(std::move(places)); }
  void describe(PyObject* instance) override { described_.insert(instance); }
  void pass(PyObject* argument) override { passed_.insert(argument); }
  std::string refuses(PyObject* callable) override;
  void watch_rehearsal(PyObject* callable) override { rehearsal_ = callable; }
  bool start(PyObject* function) override;
  Observation stop() override;

  using Effect = void (Tracer::*)(int oparg);
  struct Row {
    const char* name = nullptr;
    Effect effect = nullptr;
  };
  static const Row* rows();  // 256 of them; no effect = unsound

  /// How calls of a known C function are judged.
  enum class Rule : uint8_t {
    Pure,     // reads its arguments and what is in them
    Fresh,    // the same, and the result is a new object
    Ignore,   // reads nothing that can change (types, modes that the call key compares)
    Mutate,   // changes its first argument, which must be new
    Special,  // a method of Tracer judges
  };
  using Judge = void (Tracer::*)(PyObject* callee, Args args);
  struct Callee {
    const char* name;  // "module:name" or "module:Class.name"
    Rule rule;
    Judge judge;
  };
  static const Callee* find_callee(PyObject* callable);
  static void know(PyObject* codes);  // see know_frames()

 private:
  // tracer.cpp: from the driver's events to what is judged
  bool entered(InterpreterFrame* frame, bool is_start, bool is_plain_call) override;
  void given_to(InterpreterFrame* frame) override;
  void ended(bool entered) override { end_scalar_use(entered); }
  void conclude() override;
  void judge() override;
  const std::vector<const void*>& instances() const override { return instances_; }
  void end_scalar_use(bool entered);
  bool is_stand_in_root() const;  // the call began with a function made for it
  void note_function(PyFunctionObject* function);
  void forget_emptied();
  void enter_root(InterpreterFrame* frame);
  void enter_function(InterpreterFrame* frame);
  void add_argument(PyObject* o, const std::string& label, int depth);
  void add_fresh(PyObject* o);
  void add_fresh_lists(PyObject* o);

  // known_frames.cpp: functions of torch.nn.Module
  struct KnownFrame;
  static std::span<KnownFrame> known_frames();
  bool notes_ahead();
  bool notes_getattr();
  bool notes_call();
  bool notes_call_impl();
  bool notes_globals();
  Facts::Id plain_node(PyObject* module);
  PyObject* note_own(Facts::Id own, PyObject* module, PyObject* name);
  std::string attr_label(PyObject* module, PyObject* name);
  PyObject* argument(int i);

  // instructions.cpp: one method per kind of instruction
  void move(int oparg);
  void give(int oparg);
  void never(int oparg);
  void load_global(int oparg);
  void read_global(PyObject* name);
  void load_deref(int oparg);
  void load_attr_op(int oparg);
  void store_attr_op(int oparg);
  void delete_attr_op(int oparg);
  void store_global(int oparg);
  void store_deref(int oparg);
  void delete_global(int oparg);
  void delete_deref(int oparg);
  void build(int oparg);
  void build_map(int oparg);
  void build_const_map(int oparg);
  void build_slice(int oparg);
  void make_function(int oparg);
  void compare(int oparg);
  void is_op(int oparg);
  void contains(int oparg);
  static constexpr int kComparison = -1;  // in the place of BINARY_OP's argument
  void binary(int oparg);
  bool joins_lists(PyObject* left, PyObject* right);
  bool is_own_addition(PyObject* left);
  void unary(int oparg);
  void truth_op(int oparg);
  void subscript(int oparg);
  void store_subscript(int oparg);
  void store_item(PyObject* container, PyObject* index, PyObject* value);
  void delete_subscript(int oparg);
  void get_iter(int oparg);
  void get_iter_of(PyObject* o);
  void for_iter(int oparg);
  void iterate_top(int oparg);
  void append(int oparg);
  void map_add(int oparg);
  void format_value(int oparg);
  void import_name(int oparg);
  std::string importing_package(long level, const std::string& name);
  void import_from(int oparg);
  void before_with(int oparg);
  void with_exception(int oparg);
  void enters_with(const char* method);
  void kw_names(int oparg);
  void call_op(int oparg);
  void call_below(int above, int oparg);
  void call_ex(int oparg);
  bool takes_any(PyObject* callable);
  PyObject* unpacked_keywords(int oparg);
  void raise_op(int oparg);
  void reraise(int oparg);
  void match_exception(int oparg);
  void get_len(int oparg);
  void match_class(int oparg);
  void match_type(int oparg);
  void send(int oparg);

  // instructions_312.cpp: those that came later
  void make_cell(int oparg);
  void binary_slice(int oparg);
  void store_slice(int oparg);
  PyObject* slice_of(PyObject* start, PyObject* stop);
  void load_super_attr_op(int oparg);
  void intrinsic(int oparg);
  void call_kw(int oparg);
  void format_simple(int oparg);
  void format_with_spec(int oparg);
  void load_special(int oparg);

  // values.cpp: what may be read without a fact
  bool is_tensor(PyObject* o) { return host_.is_tensor && host_.is_tensor(o); }
  bool is_module(PyObject* o);
  bool is_plain_value(PyObject* o);  // number, string, None, dtype, device ...
  bool is_tuple(PyObject* o);        // its items cannot change and are read as a tuple's
  bool holds_no_facts(PyObject* o) const { return fresh_.contains(o) || described_.contains(o); }  // an instance
  bool is_own(PyObject* o) const {
    return fresh_.contains(o) || lent_.contains(o) || filled_.contains(o);
  }  // what it holds the call knows
  bool is_known(PyObject* o) const { return is_own(o) || arguments_.contains(o); }
  bool is_reached(PyObject* o) const { return names_.contains(o) && !is_known(o); }  // facts lead to it
  void tensor_method(PyObject* tensor, const char* name);
  bool writes_before(PyObject* tensor);
  bool writes_before(PyObject* callable, Args args);
  bool is_instance(PyObject* o);  // of a Python class: new, or reached, or an nn.Module
  static bool is_namespace(PyObject* o);
  static bool is_union(PyObject* o);  // int | float: it never changes
  bool open(PyObject* container);     // makes the items of a reached list or dictionary facts
  std::string item_label(PyObject* container, PyObject* key);
  PyObject* pooled(PyObject* key);            // one object for equal keys, as long as the recording; borrowed
  bool readable(PyObject* o, int depth = 0);  // all that can be read from it is determined; touches scalars
  bool readable_dict(PyObject* dict, bool values, int depth);
  bool hashable(PyObject* o);  // its hash and equality are determined
  bool holds_scalars_only(PyObject* o, int depth = 0);
  bool holds_tensors_only(PyObject* o);  // a list or a tuple
  bool is_plain_index(PyObject* index);  // of a tensor: no lists of tensors
  bool readable_index(PyObject* index);  // of a tensor: the same as readable(), and arrays of numpy
  bool keyable(PyObject* o);             // the same, also of tensors and members of enums
  bool is_fresh_iterator(PyObject* o);
  static bool is_generator(PyObject* o);                 // of random numbers, of torch
  static bool is_opaque(PyObject* o);                    // an operator of torch gave it, and Python cannot look into it
  bool readable_sources(PyObject* iterator, int depth);  // everything that it may give
  bool iterable(PyObject* o, const char* verb);          // notes what iterating reads; false after deny()
  void truth(PyObject* o);
  void length(PyObject* o, bool gives_it = false);
  bool fill_empty(PyObject* dict);
  void subscript_of(PyObject* container, PyObject* index);
  bool notes_slices(PyObject* tensor, PyObject* index);
  bool asks_of_slices(PyObject* tensor, std::span<PyObject* const> items);
  void read_dict_item(Facts::Id id, PyObject* dict, PyObject* index);
  void read_list_item(Facts::Id id, PyObject* list, PyObject* index);
  PyObject* intern(PyObject* name);     // borrowed
  PyObject* literal(const char* name);  // the same of a string that lives as long as the process
  std::string name_of(PyObject* o);
  /// A fact read gave `value`; `label`, a string or a function that makes one, is its name if it is new.
  template <class Label>
  PyObject* found(PyObject* value, const Label& label);
  void found_new(PyObject* value, const std::string& label);
  static bool leads_nowhere(PyObject* value);  // no other object is found with it
  bool is_again(PyObject* value);              // found before: nothing is left to note
  bool met(PyObject* value);                   // the same, of one that a fact names that holds
  // What a fact that is there says of a place that is read again; false: the long way. `value` may be null: nothing.
  bool read_again(Facts::Id dict, PyObject* name, PyObject** value);
  bool find_again(PyObject* function, PyObject* cell);
  void found_inside(PyObject* value, const std::string& label);
  bool acts_as_dict(PyObject* o, std::initializer_list<const char*> methods);
  bool opens_subclass(PyObject* o);
  bool reads_subclass_item(PyObject* o, PyObject* key);
  void open_dict(Facts::Id id, PyObject* dict);
  void type_method(PyObject* o, const char* name);  // an implicit call of a method of o's type
  PyObject* metaclass_method(PyObject* type, const char* name);
  bool dict_node(PyObject* d, Facts::Id* id);       // the node of a dictionary reached by facts
  bool dict_base_node(PyObject* d, Facts::Id* id);  // also of a subclass, for dict's own methods
  bool list_node(PyObject* l, Facts::Id* id);       // the same of a list
  std::string_view label_of(PyObject* o);           // the name that facts found it under, until the next; or its class
  void note_instance(PyObject* o);                  // its class is a fact, unless it is new
  PyObject* class_attr(PyTypeObject* type, PyObject* name, PyTypeObject* after = nullptr);
  PyObject* class_attr(PyTypeObject* type, const char* name) { return class_attr(type, literal(name)); }

  // attributes.cpp, modules.cpp
  void load_attr(PyObject* o, PyObject* name, bool probing = false);
  void load_value_attr(PyObject* o, PyObject* name);
  void load_tensor_attr(PyObject* o, PyObject* name, bool probing);
  void load_own_tensor_attr(PyObject* o, PyObject* name, bool probing);
  void store_tensor_attr(PyObject* o, PyObject* name, PyObject* value);
  void store_described_attr(PyObject* o, PyObject* name, PyObject* value, bool hooked);
  bool is_tagged(PyObject* tensor) const;
  bool reads_grad(PyObject* tensor);
  bool stores_grad(PyObject* tensor, PyObject* name, PyObject* value);
  bool has_graph(PyObject* tensor);
  void load_function_attr(PyObject* o, PyObject* name, bool probing);
  void load_method_attr(PyObject* o, PyObject* name, bool probing);
  void load_class_attr(PyObject* o, PyObject* name, bool probing);
  void store_class_attr(PyTypeObject* type, PyObject* name);
  bool is_set_for_a_while(PyTypeObject* type, PyObject* name, PyTypeObject* after = nullptr);
  void note_own_key(PyTypeObject* type, PyObject* name, const std::string& where);
  std::string lasting_class_set();
  void load_super_attr(PyObject* o, PyObject* name);
  void load_fresh_attr(PyObject* o, PyObject* name, bool probing);
  void load_dictless_attr(PyObject* o, PyObject* attr, PyObject* name, bool probing);
  void load_python_module_attr(PyObject* o, PyObject* name, bool probing);
  bool reads_module_again(PyObject* o, PyObject* attr, PyObject* name, bool probing);
  void load_module_attr(PyObject* o, PyObject* name, bool probing);  // as object.__getattribute__ does
  void found_in_module(const std::string& owner, PyObject* name, PyObject* value);
  bool descriptor(PyObject* o, PyObject* attr, PyObject* name);  // a class attribute found first; true if it decides
  void fallback_getattr(PyObject* o, PyObject* name, bool probing);
  bool plain_getattribute(PyTypeObject* type);
  void note_descriptor(PyObject* attr);
  void own_getattribute(PyObject* o, PyObject* name);
  void load_plain_attr(PyObject* o, PyObject* name, bool probing);
  bool replaces_parts(PyObject* o, PyObject* name, PyObject* value);
  bool stores_own_data(PyObject* tensor, PyObject* name, PyObject* value);
  void store_attr(PyObject* o, PyObject* name, PyObject* value);
  void delete_attr(PyObject* o, PyObject* name);
  void store_reached_attr(PyObject* o, PyObject* name, PyObject* value, bool hooked);
  std::string attr_text(PyObject* o, PyObject* name);

  // numbers.cpp: watched numbers, and those that follow from them
  void close_number(size_t which);
  void touch(PyObject* o);                         // scalars in it are no longer symbolic
  void touch_inside(PyObject* o, int depth = 0);   // nor are those in lists and dictionaries
  void keep(PyObject* value);                      // a container of the call gets it
  void use_scalars(Args operands, bool forwards);  // an operator reads these
  bool uses_list(PyObject* list);
  bool derives(Derivation how, Args operands);
  bool runs_in_program(Derivation& how);
  bool is_read_from_tensor(PyObject* o) const;
  void note_operator(PyObject* tensor, int oparg);
  bool computes_in_python(PyObject* left, PyObject* right, int oparg);
  bool takes_functions(PyObject* o);
  bool meets_tensors(PyObject* o, int oparg);
  bool derives_by_operator(int oparg, PyObject* left, PyObject* right);
  bool derives_by_call(PyObject* callee, Args args);
  static std::string_view comparison_text(int comparison);
  bool compares_read(int comparison, PyObject* left, PyObject* right);
  bool tests_read(support::Test test, std::string text, Args operands);
  bool tests_read_by_call(PyObject* callee, Args args);
  bool derives_by_minus(PyObject* o);
  void take_derived(PyObject* number);
  // asked.cpp: numbers that the call asks for and that follow from such ones
  void ask(Asked whom, PyObject* callee, PyObject* self, Args args);
  bool compares_open(int comparison, PyObject* left, PyObject* right);
  // size_numbers.cpp
  bool is_size(PyObject* o) const;
  void read_sizes(PyObject* tensor, int dim, bool gives_it);
  void read_length(PyObject* tensor, bool gives_it);
  void watch_sizes(int64_t tensor, int dim);
  int64_t found_sizes(PyObject* tensor, int dim, bool gives_it);
  bool compares_same_sizes(PyObject* tensor);  // same_sizes.cpp
  bool has_data_sizes() const { return host_.has_data_sizes && host_.has_data_sizes(host_.context); }
  static std::string_view name_of_size_reader(PyObject* callable);
  void read_sizes_by_call(PyObject* callable, PyObject* tensor, std::string_view name, Args args);
  void take_sizes(int64_t tensor, int dim);
  PyObject* own_size(int64_t tensor, int dim, PyObject* number);
  static long rank_of(PyObject* tensor);
  bool tells_slices(PyObject* tensor, Args items);
  bool is_size_list(PyObject* o) const;
  bool is_in_unread_message(int place);
  void use_sizes(Args args);
  bool compares_sizes(int comparison, Derivation how, Args operands);
  bool compares_size_lists(int comparison, PyObject* left, PyObject* right);
  void close_sizes(Args operands);
  // walks.cpp: what a loop may walk whose rounds are as many as a size says
  struct Walkable {
    LoopRange range{};                 // of the indices
    std::vector<Host::Parts> parts{};  // of which each round is given one of each
    std::vector<PyObject*> lists{};    // and so of these, which rounds of a loop before have filled
    int64_t count = 0;                 // of rounds
    std::vector<size_t> numbers{};     // that say how many there are: watched ones
    enum class Index : uint8_t { None, Alone, First } index = Index::None;  // First: of two that a round is given
  };
  struct Followed {
    Ref object;
    Walkable what;
  };
  static constexpr int64_t kFewestAlike = 5;  // rounds, of a loop that is followed
  bool note_range(Args args);
  void note_walkable(PyObject* given, const std::vector<PyObject*>& walked);
  std::optional<Walkable> what_is(PyObject* given);
  bool gives_to_c(const Row& row) const;
  std::optional<Walkable> walked_by(PyObject* iterator);
  std::optional<Walkable> list_of_rounds(Args list) const;
  std::optional<Walkable> parts_of(PyObject* iterator);
  std::optional<Walkable> enumerated(PyObject* arguments);
  std::optional<Walkable> side_by_side(Args iterators);
  void walk_on(PyObject* o);
  void begin_walk();
  bool begin_parts(Walkable& walked);
  void close_walked(const Row& row, int op, int oparg);
  void close_walkable(PyObject* o);
  void close_numbers(const std::vector<size_t>& numbers);

  // rounds.cpp: their rounds
  struct Loop {
    int64_t id = 0;               // the host's
    std::vector<size_t> numbers;  // the watched ones that say how many rounds there are
    LoopRange range;
    InterpreterFrame* frame = nullptr;
    size_t depth = 0;               // of that frame
    int offset = 0;                 // of its FOR_ITER
    PyObject* iterator = nullptr;   // that this walks
    PyObject* below = nullptr;      // what lies below it on the stack: the list that a comprehension makes
    int64_t count = 0, round = -1;  // of rounds; the one that runs
    int64_t alike_from = 0;         // rounds from this number on are alike, as far as they have run
    bool is_regular = true;         // each appends to the same lists
    bool last_differs = false;      // the last one takes another path
    Walkable::Index index = Walkable::Index::None;
    size_t values_read = 0, numbers_before = 0;  // when the round began
    uint64_t path = 0, path_before = 0;          // hashes of the instructions of this round, and of the one before
    std::vector<Ref> state;                      // its frame's local variables, when the round began
    struct Stored {
      Ref list, items;
    };
    bool stores_in(PyObject* list) const;
    std::vector<Stored> stored;  // lists that were there before and in which rounds replace items; those of then
    FlatSet<PyObject*> made;     // lists, in this round
    std::vector<PyObject*> appended, appended_before;  // the lists, in this round and in the one before
    PyObject* walked = nullptr;                        // GET_ITER has just been applied to it
    std::vector<PyObject*> iterators;                  // that rounds have made
  };
  /// A list to which each round of a loop appends tensors: how long it is only operators may see.
  struct Grown {
    int64_t loop;
    std::vector<size_t> numbers;
    LoopRange range;    // of that loop
    Py_ssize_t before;  // its length before the first round
    Ref list;
    bool reversed = false;  // what the rounds have put into it lies the other way round
    Py_ssize_t each = 0;    // what a round puts into it; 0: the loop has not ended
  };
  /// What an instruction calls. AnyFunction: a Python function that gets its arguments in a tuple. Reader: a C function
  /// that reads them. TakesList: an operator that is given a list of all rounds.
  enum class CalleeKind : uint8_t { Unknown, Function, AnyFunction, Reader, Append, TakesList };
  void judge_range(PyObject* callee, Args args);
  void arrive_at_round();
  void take_index();
  std::vector<Ref> state_of_loop() const;
  void compare_rounds();
  bool is_same_state(PyObject* a, PyObject* b, int depth = 0);
  void differ();
  void leave_loop(bool at_its_end);
  bool is_held_by_locals(const Grown& grown, const Loop& loop) const;
  const Grown* find_grown(PyObject* list) const;
  bool reverses_grown(PyObject* list, PyObject* copy);
  bool reads_last_of_grown(PyObject* list, PyObject* index);
  bool replaces_item(PyObject* list, PyObject* index);
  bool is_filled_by_loop(PyObject* list) const;
  void grow(PyObject* list, Args items, bool in_front = false);
  void grow_by(PyObject* list, PyObject* more);
  void tell_lists(Args args);
  static bool calls_by_name(const Row& row);
  static bool is_call(const Row& row);
  static constexpr int kMostOperands = 4;
  int operands_of(const Row& row, int op, int oparg);
  PyObject* operand(int n) const { return frames_.back().stack.on_stack(n, frames_.back().code); }
  bool reads_grown(const Row& row, int op, int oparg);
  void close_grown();
  bool is_state_of_loop(int cell);
  bool is_repeatable(const Row& row, int op, int oparg);
  void watch_rounds(const Row& row, int op, int oparg);
  void watched_rounds(const Row& row, int op, int oparg);
  void note_reader(Args args);
  void guard_number(Derivation how, PyObject* number);
  void guard_asked(size_t scalar);
  void judge_clock(PyObject* callee, Args args);
  void judge_setting(PyObject* callee, Args args);
  void judge_random(PyObject* callee, Args args);
  void judge_numpy_random(PyObject* callee, Args args);

  // side_effects.cpp: what is done to objects that existed before the call
  void store_key(Facts::Id dict, PyObject* key, PyObject* value, const std::string& label);
  void store_place(SideEffect::Kind kind, PyObject* target, PyObject** place, PyObject* value,
                   const std::string& label);
  void store_list_item(Facts::Id list, PyObject* index, PyObject* value);
  void log_of_argument(SideEffect effect, PyObject* argument, PyObject* value, const std::string& place);
  void store_to_argument(PyObject* o, PyObject* name, PyObject* value);
  bool stores_in_argument(PyObject* container, PyObject* index, PyObject* value);
  void log(SideEffect effect);
  bool looked_into(PyObject* o) { return o && !is_constant(o) && !is_tensor(o); }
  // found_numbers.cpp: numbers that differ from call to call
  bool reads_place();
  bool is_taken_apart_next();
  bool gives_back_next(const Instruction& call);
  bool varies(const void* container, PyObject* key, Py_ssize_t index, PyObject* now, Ref* form);
  bool opens_key(Facts::Id dict, PyObject* name, const std::string& label);
  bool opens_item(Facts::Id list, Py_ssize_t index, const std::string& label);
  bool opens_place(PyObject* place, Node::Kind kind, const std::string& label);
  bool opens(size_t which, const std::string& label);
  PyObject* own_number(size_t which);
  void take_found(size_t which);
  void note_counter(const SideEffect& old, const SideEffect& next);
  void settle_found();
  std::vector<size_t> found_numbers() const;
  // noted_numbers.cpp
  void note(InterpreterFrame* frame, int op, int oparg, const StackView& stack) override;
  void note_place(const void* container, PyObject* key, Py_ssize_t index, PyObject* number);
  void note_item(PyObject* container, PyObject* index);
  void note_attribute(PyObject* o, PyObject* name);
  std::vector<NumberPlace> numbers_for_next();
  // additions.cpp: `place += constant`
  bool counts_key(Facts::Id dict, PyObject* name, const std::string& label);
  bool counts_place(PyObject* place, Node::Kind kind, const std::string& label);
  bool find_sum();
  bool is_unpacked_next() const;
  bool takes_sum(PyObject* container, PyObject* name, PyObject* value, SideEffect& effect);
  void enters_setattr(PyObject* hook, PyObject* value);
  void follow_sum();
  void drop_sum();

  // calls.cpp, callees.cpp, torch_functions.cpp, functions.cpp
  void call(PyObject* callable, Args args);
  void call_function(PyFunctionObject* f);
  void call_if_generator(PyFunctionObject* f);
  void call_type(PyTypeObject* type, Args args);
  void call_class(PyTypeObject* type, Args args);
  void construct(PyTypeObject* type, Args args);
  void call_host(PyObject* callable, Args args);
  static bool is_itemgetter(PyObject* o);
  bool calls_getter(PyObject* callable, Args args);
  bool reads_tuple(PyTypeObject* owner, PyObject* callable, Args args);
  bool is_foreign(PyObject* callable);
  bool call_metaclass(PyTypeObject* type, Args args);
  void call_partial(PyObject* callable, Args args);
  bool is_partial(PyObject* o);
  bool note_partial(PyObject* o);
  PyObject* unwrapped(PyObject* o);
  bool compares_as_value(PyObject* o);
  bool comparable(PyObject* o);
  bool compares_as_tuple(PyObject* o);
  bool compares_as_union(PyObject* o);
  bool is_enumerator(PyObject* o);
  bool compares_in_python(PyObject* o);
  bool compares_items_in_python(PyObject* o);
  bool acts_as_value(PyObject* o);
  // arrays.cpp
  bool calls_numpy(PyObject* callable, Args args);
  bool is_numpy_number(PyTypeObject* type);
  bool reads_array(PyObject* o);  // its elements are facts from now on
  bool is_known_array(PyObject* o);
  bool reads_array_attr(PyObject* o, PyObject* name);
  bool reads_elements(PyObject* array, PyObject* index);
  bool computes_array(Args operands);
  bool has_new_memory(PyObject* array);
  std::string text_of_array(PyObject* o);
  bool makes_array(PyObject* o, int depth = 0);
  void judge_new_array(PyObject* callee, Args args);
  void note_comparisons(PyTypeObject* type);
  bool is_method_of_argument(PyObject* o);
  // generators.cpp
  bool is_own_generator(PyObject* o);  // the call has made it, and a program can have it
  void judge_new_generator(PyObject* callee, Args args);
  void judge_generator(PyObject* callee, Args args);
  void judge_seed_all(PyObject* callee, Args args);
  void judge_seed_sequence(PyObject* callee, Args args);
  void judge_seed_state(PyObject* callee, Args args);
  // decimals.cpp
  static bool is_decimal(PyObject* o);
  void judge_decimal(PyObject* callee, Args args);
  void expect_raised_flags();
  // caches.cpp
  static bool is_cache(PyObject* callable);
  bool is_cached_by(PyObject* argument, int depth = 0);
  void call_cache(PyObject* callable, Args args);
  bool holds_sizes(PyObject* o, int depth = 0) const;
  bool runs_uncached(PyObject* callable, Args args);
  void read_cache(PyObject* callable, const Ref& key, const std::string& label);
  std::optional<std::vector<Ref>> picture_of_changes();
  bool keeps(PyObject* result, const std::vector<Ref>& changes);
  bool add_to(std::vector<Ref>& picture, PyObject* o, int depth = 0);
  void fill_cache(PyObject* callable, Ref key, std::string label);
  bool fills_own_cache(PyFunctionObject* f, Args args);
  bool prepares(PyFunctionObject* f, Args args);
  void read_own_cache(PyFunctionObject* f, const Ref& key, const std::string& label);
  void cache_filled();
  std::string name_of_cache(PyObject* callable);
  // classes.cpp: classes that the call makes
  void note_bases(PyTypeObject* type);
  void judge_namedtuple(PyObject* callee, Args args);
  void take_class(PyObject* made);
  // locks.cpp
  static bool is_lock(PyObject* o);
  void judge_lock(PyObject* callee, Args args);
  bool locks_are_given_back() const;
  int filter_regions_ = 0;  // catch_warnings() that are open
  // container_calls.cpp, builtin_containers.cpp
  bool is_own_container(PyObject* callee, Args args);
  static bool is_callable(PyObject* o);
  static bool is_immutable(PyObject* o) { return !PyList_Check(o) && !PyDict_Check(o) && !PySet_Check(o); }
  bool called_in_c(PyObject* o);
  bool holds_nan(PyObject* o, int depth = 0);
  void note_names(PyObject* class_or_function);
  // identity.cpp
  void compare_identity(PyObject* a, PyObject* b);           // which of these two is which is seen
  void find_identical(PyObject* container, PyObject* item);  // the same for a search, which compares by identity first
  void meet_argument(PyObject* reached, const std::string& label);  // facts lead to it
  bool holds_argument_tensor(PyObject* o, int depth = 0);
  void know_apart(PyObject* o, int depth = 0);
  void judge_flatten(PyObject* callee, Args args);
  bool is_searched(PyObject* list, PyObject* number, bool right);
  void judge_bisect(PyObject* callee, Args args);
  void judge_search(PyObject* callee, Args args);
  bool readable_pair(PyObject* o);
  bool readable_source(PyObject* o);
  bool moves(PyObject* source);
  static bool only_reads(Judge judge);
  void apply(const Callee& row, PyObject* callee, Args args);
  void apply_reader(const Callee& row, PyObject* callee, Args args);
  bool readable_args(Args args, PyObject* callee);
  bool readable_args(Args args, const char* callee);
  bool deny_unreadable(PyObject* arg, const std::string& callee);  // false
  void judge_len(PyObject*, Args args);
  void judge_isinstance(PyObject*, Args args);
  void judge_real_instance(PyObject* callee, Args args);
  void judge_callable(PyObject*, Args args);
  void judge_getattr(PyObject*, Args args);
  void judge_hasattr(PyObject*, Args args);
  void judge_getattribute(PyObject*, Args args);
  void judge_setattr(PyObject*, Args args);
  void judge_delattr(PyObject*, Args args);
  void judge_object_setattr(PyObject*, Args args);
  bool lends(Facts::Id list);
  void settle_lent();
  void judge_append(PyObject* callee, Args args);
  void judge_insert(PyObject* callee, Args args);
  void judge_reverse(PyObject* callee, Args args);
  void mutate(PyObject* callee, Args args);
  void judge_fill(PyObject* callee, Args args);
  void judge_count(PyObject* callee, Args args);
  void judge_key_change(PyObject* callee, Args args);
  bool keeps_as_it_is(std::string_view change, Args args);
  void judge_ordered_change(PyObject* callee, Args args);
  void judge_print(PyObject* callee, Args args);
  void judge_warn(PyObject* callee, Args args);
  void judge_filters_kept(PyObject* callee, Args args);
  void judge_filters_restored(PyObject* callee, Args args);
  void judge_filter(PyObject* callee, Args args);
  void judge_iter(PyObject*, Args args);
  void judge_next(PyObject*, Args args);
  void judge_send(PyObject*, Args args);
  void judge_type(PyObject*, Args args);
  void judge_super(PyObject*, Args args);
  void judge_subclasses(PyObject*, Args args);
  void judge_new(PyObject* callee, Args args);
  void judge_bool(PyObject*, Args args);
  void judge_container(PyObject* callee, Args args);
  void judge_walking(PyObject* callee, Args args);
  void judge_fromkeys(PyObject* callee, Args args);
  bool maps_in_c(PyObject* callable);
  void judge_defaultdict(PyObject* callee, Args args);
  void judge_sorted(PyObject* callee, Args args);
  void judge_type_call(PyObject* callee, Args args);
  void judge_function_apply(PyObject* callee, Args args);
  void judge_grouping(PyObject* callee, Args args);
  void judge_method(PyObject* callee, Args args);
  void judge_reduce(PyObject* callee, Args args);
  void judge_new_reference(PyObject* callee, Args args);
  bool is_copying();
  void judge_vars(PyObject* callee, Args args);
  void judge_dir(PyObject* callee, Args args);
  bool note_class_names(PyTypeObject* type);
  void list_names_of(PyObject* o);
  void judge_dumps(PyObject* callee, Args args);
  void judge_data(PyObject* callee, Args args);
  bool holds_values_only(PyObject* o, int depth = 0);
  void reverse(PyObject* o);
  void judge_dict_read(PyObject* callee, Args args);
  void judge_dict_view(PyObject*, Args args);
  bool keys_node(PyObject* d, Facts::Id* id);
  std::vector<PyObject*> few_numbers_in(PyObject* container);
  bool is_asked_of_each(PyObject* container, PyObject* item);
  void judge_contains(PyObject*, Args args);
  void judge_side_effect(PyObject* callee, Args args);
  void judge_exit(PyObject* callee, Args args);
  void judge_leaf(PyObject* callee, Args args);
  bool may_require_grad(PyObject* tensor, PyObject* needed);
  void judge_backward(PyObject* callee, Args args);
  void judge_autograd_compiler(PyObject* callee, Args args);

  // checkpoints.cpp: torch.utils.checkpoint
  void judge_saved_hooks(PyObject* callee, Args args);
  void judge_saved_hooks_end(PyObject* callee, Args args);
  void judge_saved_tensor(PyObject* callee, Args args);
  void begin_checkpoint(bool draws_others);
  size_t effects_so_far() const { return logged_ + numbers_.asked(); }
  void judge_contents(PyObject* callee, Args args);
  void judge_identity(PyObject*, Args args);
  void judge_partial(PyObject*, Args args);
  void judge_proxy(PyObject*, Args args);
  void judge_proxy_read(PyObject* callee, Args args);
  void judge_recursion_limit(PyObject*, Args args);
  void judge_abc(PyObject* callee, Args args);
  void judge_capturing(PyObject* callee, Args args);
  void judge_exchange_device(PyObject* callee, Args args);
  void judge_eval_frame(PyObject* callee, Args args);
  void judge_context_get(PyObject*, Args args);
  void judge_context_set(PyObject*, Args args);
  void judge_context_reset(PyObject*, Args args);
  bool contexts_are_restored();
  void judge_tensor(PyObject*, Args args);

  // A number that was loaded from a place for its sum with a constant, until the store to the same place.
  struct Sum {
    InterpreterFrame* frame = nullptr;  // null: none
    int load = 0, store = 0;            // instructions
    bool in_setattr = false;            // nn.Module.__setattr__ has the sum now
    PyObject* container = nullptr;
    PyObject* name = nullptr;
    Facts::Id dict = -1;  // else a place of kind `kind`
    Node::Kind kind = Node::Kind::Cell;
    PyObject* value = nullptr;  // in_setattr: the sum
    Ref constant;               // what is added
  };

  // A call of functools.lru_cache, or of a function with a cache of its own, that runs the function behind it.
  struct Fill {
    PyObject* cache = nullptr;
    Ref key;
    std::string label;
    std::vector<Ref> changes;  // picture_of_changes() before it runs
  };
  bool leaves_alone(const Fill& fill, PyObject* result);

  /// A number of the facts: its place among the watched ones and the call's own object.
  struct OwnNumber {
    size_t watched;
    PyObject* own;
    std::string label;
  };

  std::unique_ptr<Facts> facts_;
  PlacesOfNumbers varying_;             // what vary() was told
  std::vector<OwnNumber> own_numbers_;  // in the order of the facts' numbers
  std::vector<NumberPlace> counters_;   // that will hold another number in the next call
  PlacesOfNumbers notes_;               // see note()
  std::vector<SideEffect> effects_;
  std::set<PyObject*> filled_;       // see fill_empty()
  size_t logged_ = 0;                // effects, those too that another one took the place of
  std::vector<size_t> checkpoints_;  // that the call is in: effects_so_far() when they began
  std::map<std::tuple<PyObject*, Py_ssize_t, Py_hash_t>, std::vector<size_t>> effects_at_;  // by target, place, key
  FlatSet<PyObject*> stored_;                                                               // values that effects_ hold
  Sum sum_;
  Fill fill_;
  bool has_prepared_ = false;                 // see prepares()
  PyObject* noted_globals_ = nullptr;         // of torch.nn.modules.module: what _call_impl reads there is noted
  std::unordered_set<PyObject*> predicates_;  // functions whose answer C code takes as true or false
  bool using_scalars_ = false;
  bool walks_in_c_ = false;  // an iterator of the call has C code look at what it comes to
  Ref function_;
  std::unordered_map<PyObject*, std::vector<PyObject*>> sources_;  // of new iterators
  FlatSet<PyObject*> contexts_;            // of autograd.Functions: the rehearsed call is not the only one to find them
  FlatSet<PyObject*> fresh_;               // made in this call. Addresses only: a fact read of one removes it
  std::vector<const void*> instances_;     // on which __init__ was called in this call
  FlatSet<PyObject*> arguments_;           // containers and tensors reachable from the arguments
  FlatSet<PyObject*> passed_;              // the arguments themselves
  FlatSet<PyObject*> described_;           // instances among them that the key describes
  FlatMap<PyObject*, std::string> names_;  // objects reached by facts
  FlatSet<PyObject*> found_;               // those among them of which all is noted
  // What was read of a class, as long as its version tag is that one.
  struct ClassRead {
    PyTypeObject* type;
    PyObject* name;
    PyTypeObject* after;
    bool operator==(const ClassRead&) const = default;
  };
  struct HashClassRead {
    static ClassRead empty() noexcept { return {nullptr, nullptr, nullptr}; }
    size_t operator()(const ClassRead& read) const noexcept;
  };
  struct ClassValue {
    unsigned int tag;
    PyObject* value;
  };
  FlatMap<ClassRead, ClassValue, HashClassRead> class_reads_;
  FlatMap<const char*, PyObject*> literals_;
  FlatSet<PyObject*> interned_;                   // in names_held_
  FlatMap<PyObject*, std::string> module_dicts_;  // dictionaries of nn.Modules whose items are facts; name of the owner
  FlatMap<PyObject*, PyObject*> cell_owners_;     // cells of functions that exist outside this call
  FlatMap<PyTypeObject*, int> type_flags_;
  WatchedNumbers numbers_;
  std::optional<Loop> loop_;
  std::unordered_map<PyObject*, Followed> walkables_;  // by address
  Walkable next_walkable_;                             // the object that the instruction at hand gives
  bool walks_on_ = false;                              // and what it reads of them it makes an iterator of, or walks
  std::vector<Grown> grown_;
  CalleeKind callee_kind_ = CalleeKind::Unknown;
  bool gives_grown_ = false;                            // the instruction at hand has a list of rounds as an operand
  bool takes_grown_ = false;                            // and may: what it does with it is known for any number of them
  std::unordered_map<PyObject*, PyObject*> originals_;  // what the caller passed in place of a scalar
  FlatSet<PyObject*> told_;                             // tensors the host knows about
  FlatSet<PyObject*> gradients_;                        // those of tensors that facts lead to
  FlatSet<PyObject*> known_apart_;  // tensors of which the call asked which object it is, or what belongs to that one
  FlatSet<PyObject*> lent_;         // see lends()
  struct Lent {
    Ref list;
    struct Item {
      Ref value;
      std::string where;
    };
    std::vector<Item> appended;
  };
  std::vector<Lent> lent_lists_;
  std::unordered_map<PyObject*, std::vector<Ref>> context_sets_;  // values of context variables: before, then each set
  FlatSet<PyObject*> opened_;                                     // containers all of whose items are facts
  Ref keys_;                                                      // keys of dictionaries that are no names
  std::vector<Ref> names_held_;
  std::vector<Ref> slices_held_;     // see slice_of(); they hold numbers, so none is left when references are counted
  FlatSet<PyObject*> array_owners_;  // of arrays whose elements are facts; held
  std::vector<Ref> tagged_;          // see Observation
  std::vector<Ref> classes_;         // see Observation
  FlatSet<PyObject*> namespaces_;    // globals of functions in these classes
  std::vector<PyObject*> bare_;      // see Observation
  std::vector<std::pair<PyObject*, PyObject*>> identities_;  // see Observation
  std::set<std::pair<PyObject*, PyObject*>> compared_;       // those among them that the code compared
  Derivation derivation_;                                    // of the result of the instruction that runs now
  std::unordered_map<PyObject*, int> locks_;                 // how often the call holds each
  // Attributes of classes that the call sets: what they were before.
  struct ClassSet {
    Ref before;
    bool was_inherited;
    std::string where, store;  // "store to class Mode.on at model.py:9"
  };
  std::map<std::pair<PyTypeObject*, PyObject*>, ClassSet> class_sets_;
  PyObject* unpacked_names_ = nullptr;  // of the keywords behind ** in the call that is judged
  PyObject* plain_callee_ = nullptr;    // what the instruction that runs now calls with positional arguments
  PyObject* called_ = nullptr;          // by the instruction at hand, which gives what that gives
};

template <class Label>
PyObject* Tracer::found(PyObject* value, const Label& label) {
  if (!value || stored_.contains(value)) return value;
  fresh_.erase(value);  // what existed before the call is not new, whatever had this address
  if (PyLong_CheckExact(value) || PyUnicode_CheckExact(value) || value == Py_None || is_again(value)) return value;
  if constexpr (std::is_invocable_v<const Label&>)
    found_new(value, label());
  else
    found_new(value, label);
  return value;
}

}  // namespace fastjit::observe
