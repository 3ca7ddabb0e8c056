// Between the driver and the judges: where a frame begins, what the last instruction left, which judge is next.
#include "observe/judge/tracer.h"

#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>

#include "observe/events/opcode_numbers.h"
#include "support/work.h"

namespace fastjit::observe {

const Tracer::Row* Tracer::rows() {
  static const auto table = [] {
    std::vector<Row> all(256);
#define OP(name, number, method) all[number] = {#name, &Tracer::method};
#include "observe/events/opcodes.def"
#undef OP
    return all;
  }();
  return table.data();
}

Tracer::Tracer(const Host& host) : Driver(host), facts_(std::make_unique<Facts>()) {}

Tracer::~Tracer() { end(); }

std::string Tracer::refuses(PyObject* callable) {
  resolve_known_functions();
  return is_foreign(callable) ? "call of " + callee_text(callable) + kGiven : "";
}

bool Tracer::start(PyObject* function) {
  if (!begin()) return false;
  resolve_known_functions();
  function_ = Ref::share(function);
  if (!PyFunction_Check(function) && !PyMethod_Check(function)) {  // an instance, whose class says what a call runs
    names_[function] = "self";
    class_attr(Py_TYPE(function), "__call__");
  }
  return begin_events();
}

void Tracer::forget_emptied() {
  const auto emptied = facts_->put_back_empty([&](PyObject* dict) {
    return std::ranges::count_if(
        effects_, [&](const SideEffect& effect) { return effect.target.get() == dict || effect.value.get() == dict; });
  });
  for (PyObject* dict : filled_)
    if (std::ranges::none_of(emptied, [&](const Facts::Emptied& one) { return one.was.get() == dict; }))
      reason_ = "state: what " + names_[dict] + " keeps is read and written";
  std::erase_if(effects_, [&](const SideEffect& effect) {
    return std::ranges::any_of(emptied, [&](const Facts::Emptied& one) {
      const bool fills = effect.target.get() == one.was.get();
      return fills || (effect.target.get() == one.holder && effect.value.get() == one.now.get());
    });
  });
}

Observation Tracer::stop() {
  Observation result;
  support::count_work(instructions_);
  end();
  if (reason_.empty() && !contexts_are_restored()) reason_ = "the call changes a context variable";
  if (reason_.empty()) reason_ = lasting_class_set();
  if (reason_.empty() && !locks_are_given_back()) reason_ = "the call keeps a lock that it took";
  if (reason_.empty() && filter_regions_ > 0) reason_ = "the call keeps filters of warnings that it set";
  if (reason_.empty()) settle_lent();
  if (reason_.empty()) {
    drop_sum();
    settle_found();
    forget_emptied();
    facts_->follow_lists(1);  // the effect's
    // What a place holds again that a fact says it held before needs no store.
    std::erase_if(effects_, [&](const SideEffect& effect) {
      if (effect.kind != SideEffect::Kind::SetItem || effect.adds || effect.symbolic) return false;
      const Facts::Id id = facts_->find(effect.target.get(), Node::Kind::Dict);
      using Kind = Expected::Kind;
      return id >= 0 && std::ranges::any_of(facts_->node(id).keys, [&](const Key& key) {
               const bool is_value =
                   key.expect.kind != Kind::Absent && key.expect.kind != Kind::Present && !key.expect.is_open();
               return is_value && same_bits(key.name.get(), effect.key.get()) && key.expect.holds(effect.value.get());
             });
    });
    result.replaced = facts_->replaced_tensors([&](PyObject* o) {
      return is_tensor(o) && !arguments_.contains(o) && !gradients_.contains(o) && !known_apart_.contains(o);
    });
    expect_raised_flags();
    std::string changed = facts_->finish();
    if (!changed.empty()) reason_ = "the call itself changes " + changed;
    if (!changed.empty() && has_prepared_) interrupted_ = changed;  // the next call may be another
  }
  if (reason_.empty() && facts_) {
    result.effects = std::move(effects_);
    result.state = facts_->state();
    result.state_is_constant = facts_->state_is_constant();
  }
  result.unsound = reason_;
  result.in_library = in_library_;
  result.interrupted = !interrupted_.empty();
  if (result.interrupted) result.state = interrupted_;
  if (loop_) leave_loop(false);
  grown_.clear();
  walkables_.clear();
  slices_held_.clear();
  numbers_.tell(result);
  result.found_numbers = found_numbers();
  result.bare = bare_;
  result.tagged = std::move(tagged_);
  result.classes = std::move(classes_);
  result.identities = identities_;
  if (!reason_.empty()) result.symbolic.assign(numbers_.size(), false);
  result.numbers = numbers_for_next();
  if (!facts_->abandoned()) result.facts = std::move(facts_);
  return result;
}

void Tracer::end_scalar_use(bool entered) {
  if (std::exchange(using_scalars_, false)) host_.on_scalar_use_end(host_.context, entered);
}

bool Tracer::is_stand_in_root() const { return !frames_.empty() && is_stand_in(frames_[0].code); }

bool Tracer::entered(InterpreterFrame* frame, bool is_start, bool is_plain_call) {
  top().fresh_function = fresh_.contains(reinterpret_cast<PyObject*>(function_of(frame)));
  if (!top().fresh_function) note_function(function_of(frame));
  if (!is_start) return false;
  enter_function(frame);
  if (frames_.size() == 1) enter_root(frame);
  return is_plain_call && notes_ahead();
}

// What C code makes and hands to the Python code that it calls is new.
void Tracer::given_to(InterpreterFrame* frame) {
  Frame& caller = top();
  const PyCodeObject* code = code_of(frame);
  const bool is_init = caller.constructs && code->co_argcount > 0 && local_of(frame, 0);
  if (is_init && PyUnicode_CompareWithASCIIString(function_of(frame)->func_name, "__init__") == 0) {
    PyObject* self = local_of(frame, 0);
    if (PyCell_Check(self)) self = PyCell_GET(self);
    fresh_.insert(self);
    instances_.push_back(self);
    caller.constructs = false;
  }
  const bool is_context = caller.makes_context && code->co_argcount > 0 && local_of(frame, 0);
  if (is_context) {
    PyObject* name = function_of(frame)->func_name;
    if (is_named(name, "apply") && rehearsal_) contexts_.insert(local_of(frame, 0)), fresh_.insert(local_of(frame, 0));
    if (is_named(name, "forward") || is_named(name, "setup_context")) {
      const bool is_class_method = PyType_Check(local_of(frame, 0)) && code->co_argcount > 1 && local_of(frame, 1);
      PyObject* context = local_of(frame, is_class_method);
      if (!is_tensor(context)) fresh_.insert(PyCell_Check(context) ? PyCell_GET(context) : context);
    }
  }
}

void Tracer::note_function(PyFunctionObject* function) {
  if (facts_->find(reinterpret_cast<PyObject*>(function), Node::Kind::Function) < 0)
    facts_->function(function, where());
}

// The start of a function: what its call made, and what its definition brings along.
void Tracer::enter_function(InterpreterFrame* frame) {
  PyCodeObject* code = code_of(frame);
  if (code->co_flags & CO_VARKEYWORDS) {
    PyObject* kwargs = local_of(frame, argument_count(code) - 1);
    if (kwargs && PyCell_Check(kwargs)) kwargs = PyCell_GET(kwargs);
    if (kwargs) fresh_.insert(kwargs);
  }
  const char* kinds = PyBytes_AS_STRING(code->co_localspluskinds);
  for (int i = 0; code->co_ncellvars && i < code->co_nlocalsplus - code->co_nfreevars; ++i)
    if ((kinds[i] & kLocalIsCell) && local_of(frame, i)) fresh_.insert(local_of(frame, i));
  if (top().fresh_function) return;
  const PyFunctionObject* defined = function_of(frame);
  auto* function = reinterpret_cast<PyObject*>(function_of(frame));
  if (PyObject* defaults = defined->func_defaults) know_apart(defaults);
  if (PyObject* defaults = defined->func_defaults)
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(defaults); ++i)
      found(PyTuple_GET_ITEM(defaults, i),
            [&] { return "default " + std::to_string(i) + " of " + PyUnicode_AsUTF8(defined->func_name); });
  if (PyObject* defaults = defined->func_kwdefaults) {
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(defaults, &at, &key, &value);)
      found(value, [&] {
        return std::string("default ") + PyUnicode_AsUTF8(key) + " of " + PyUnicode_AsUTF8(defined->func_name);
      });
  }
  if (defined->func_closure)
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(defined->func_closure); ++i)
      cell_owners_.emplace(PyTuple_GET_ITEM(defined->func_closure, i), function);
}

void Tracer::enter_root(InterpreterFrame* frame) {
  PyCodeObject* code = code_of(frame);
  const PyFunctionObject* defined = function_of(frame);
  const int n = argument_count(code);
  for (int i = 0; i < n; ++i) {
    PyObject* o = local_of(frame, i);
    if (o && PyCell_Check(o)) o = PyCell_GET(o);
    if (!o) continue;
    if (i == 0 && is_stand_in(code)) {  // what was given to fastjit is no argument of the call
      found(o, PyUnicode_AsUTF8(PyTuple_GET_ITEM(code->co_localsplusnames, i)));
      continue;
    }
    bool is_default = false;  // a default is not part of the call's arguments: the key does not describe it
    if (PyObject* defaults = defined->func_defaults)
      for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(defaults); ++k) is_default |= PyTuple_GET_ITEM(defaults, k) == o;
    if (PyObject* defaults = defined->func_kwdefaults) {
      PyObject *key, *value;
      for (Py_ssize_t at = 0; PyDict_Next(defaults, &at, &key, &value);) is_default |= value == o;
    }
    if (is_default && !passed_.contains(o)) continue;
    if (is_default && is_tensor(o)) identities_.emplace_back(o, o);  // code that reads the default sees which one it is
    const std::string label = PyUnicode_AsUTF8(PyTuple_GET_ITEM(code->co_localsplusnames, i));
    names_.emplace(o, label);
    add_argument(o, label, 0);
  }
}

// What the call's key describes, and names for what it compares by identity.
void Tracer::add_argument(PyObject* o, const std::string& label, int depth) {
  if (depth > 16) return;
  PyObject* entries = PyDict_CheckExact(o) ? o : nullptr;
  if (is_tensor(o) || PyList_CheckExact(o) || entries || is_empty_container(o)) {
    arguments_.insert(o);
  } else if (described_.contains(o)) {
    arguments_.insert(o);
    if (PyObject** slot = _PyObject_GetDictPtr(o)) entries = *slot;
    if (entries) arguments_.insert(entries);
  } else if (Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE) {
    names_.emplace(o, label);
  }
  // The key goes into tuples that hold nothing but items; of others it says which object they are.
  const bool is_keyed = holds_only_items(Py_TYPE(o));
  if (PyTuple_Check(o) && !is_keyed) {
    found(o, label);
  } else if (PyTuple_Check(o) || PyList_CheckExact(o)) {
    PyObject** items = PySequence_Fast_ITEMS(o);
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
      add_argument(items[i], label + "[" + std::to_string(i) + "]", depth + 1);
  }
  PyObject *key, *value;
  for (Py_ssize_t at = 0; entries && PyDict_Next(entries, &at, &key, &value);)
    add_argument(value, entries == o ? label + "[" + words(key) + "]" : label + "." + words(key), depth + 1);
}

void Tracer::add_fresh_lists(PyObject* o) {
  PyObject *key, *value;
  if (PyDict_CheckExact(o) || (is_array(o) && !is_reached(o))) fresh_.insert(o);
  for (Py_ssize_t at = 0; PyDict_CheckExact(o) && PyDict_Next(o, &at, &key, &value);) add_fresh_lists(value);
  if (!PyList_CheckExact(o) && !PyTuple_CheckExact(o)) return;
  if (PyList_CheckExact(o)) fresh_.insert(o);
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i) add_fresh_lists(PySequence_Fast_ITEMS(o)[i]);
}

void Tracer::add_fresh(PyObject* o) {
  fresh_.insert(o);
  if (loop_ && PyList_CheckExact(o)) loop_->made.insert(o);
}

void Tracer::conclude() {
  Frame& f = top();
  if (std::exchange(f.fresh_result, false))
    if (PyObject* result = at(1); result && !arguments_.contains(result)) {
      add_fresh(result);
      if (!sources_.empty()) sources_.erase(result);
      if (!f.sources.empty()) sources_[result] = std::move(f.sources);
    }
  f.sources.clear();
  if (std::exchange(f.container_result, false))
    if (PyObject* o = at(1); PyList_CheckExact(o) || PyDict_CheckExact(o) || PySet_CheckExact(o) || is_opaque(o))
      if (!arguments_.contains(o)) fresh_.insert(o);
  if (const int cell = std::exchange(f.made_cell, -1); cell >= 0) fresh_.insert(local_of(f.frame, cell));
  if (const int place = std::exchange(f.new_list_at, 0))
    if (PyObject* o = f.stack.at_or_null(place); o && PyList_CheckExact(o) && Py_REFCNT(o) == 1) add_fresh(o);
  if (std::exchange(f.nested_result, false)) add_fresh_lists(at(1));
  if (std::exchange(f.number_result, false))
    if (PyObject* o = at(1); PyFloat_CheckExact(o) && !numbers_.contains(o) && host_.on_number)
      if (host_.on_number(host_.context, o)) numbers_.watch(o, WatchedNumbers::From::Tensor);
  if (std::exchange(f.derived_result, false)) take_derived(at(1));
  if (const int64_t tensor = std::exchange(f.sizes_of, -1); tensor >= 0) take_sizes(tensor, f.size_dim);
  if (std::exchange(f.gives_index, false) && loop_) take_index();
  if (std::exchange(f.gives_walkable, false)) note_walkable(at(1), std::exchange(f.walks, {}));
  if (PyObject* list = std::exchange(f.reversed, nullptr); list && !reverses_grown(list, at(1))) close_grown();
  if (const size_t which = std::exchange(f.found_number, SIZE_MAX); which != SIZE_MAX) take_found(which);
  if (std::exchange(f.makes_class, false)) take_class(at(1));
  if (std::exchange(f.sets_hooks, false)) begin_checkpoint(f.draws_others);
  if (std::exchange(f.fills_cache, false)) cache_filled();
  if (PyObject* tensor = std::exchange(f.data_of, nullptr))
    if (!host_.on_data || !host_.on_data(host_.context, tensor, at(1))) return deny("read of Tensor.data");
  if (PyObject* generator = std::exchange(f.state_of, nullptr))
    if (!host_.on_generator(host_.context, Host::OnState::Got, generator, at(1)))
      return deny("read of the state of a generator");
  if (const void* data = std::exchange(f.array_data, nullptr))
    if (is_tensor(at(1))) host_.on_array(host_.context, at(1), data, f.array_is_new);
  if (std::exchange(f.constant_result, false))
    if (PyObject* o = at(1); is_tensor(o) && host_.on_constant && !host_.on_constant(host_.context, o))
      return deny("tensor made of data");
}

void Tracer::judge() {
  Frame& f = top();
  if (sum_.frame) follow_sum();
  int op = f.ops[2 * f.offset], oparg = f.ops[2 * f.offset + 1];
  while (op == k_EXTENDED_ARG) {
    ++f.offset;
    op = f.ops[2 * f.offset];
    oparg = oparg << 8 | f.ops[2 * f.offset + 1];
  }
  const Row& row = rows()[op];
  if (!row.effect) return deny("opcode " + std::to_string(op));
  const bool has_rounds = loop_ || !grown_.empty() || !walkables_.empty();
  if (has_rounds) watch_rounds(row, op, oparg);
  (this->*row.effect)(oparg);
  if (has_rounds) watched_rounds(row, op, oparg);
}

}  // namespace fastjit::observe
#endif
