// Effects on objects that existed before the call: those that a later call can do again without running Python code are
// noted in order, every other one makes the call unsound.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>

#include "observe/events/opcode_numbers.h"
#include "observe/judge/tracer.h"

namespace fastjit::observe {

// A second store to one place takes the place of the first: nothing can tell.
void Tracer::log(SideEffect effect) {
  effect.where = where();
  ++logged_;
  using Kind = SideEffect::Kind;
  if (rehearsal_)
    return deny(SideEffect::stores(effect.kind) ? "store to " + effect.label
                : effect.kind == Kind::Print    ? "print()"
                : effect.kind == Kind::Warn     ? "a warning"
                                                : "call of " + effect.label);
  PyObject* value = effect.value.get();
  if (value) keep(value);
  effect.symbolic = numbers_.contains(value);
  if (!effect.symbolic) touch(value);
  if (!is_constant(value)) stored_.insert(value);
  if (effect.kind == Kind::Append || !SideEffect::stores(effect.kind)) return effects_.push_back(std::move(effect));
  const Py_hash_t key_hash = effect.key ? hash_of_bits(effect.key.get()) : 0;
  std::vector<size_t>& alike = effects_at_[{effect.target.get(), effect.place, key_hash}];
  for (auto i = alike.rbegin(); !effect.adds && i != alike.rend(); ++i) {
    SideEffect& old = effects_[*i];
    const bool same_key =
        old.key.get() == effect.key.get() || (old.key && effect.key && same_bits(old.key.get(), effect.key.get()));
    if (old.kind != effect.kind || !same_key) continue;
    if (old.adds) break;
    note_counter(old, effect);
    // It may be known by its address; watched numbers are held, and references to them counted.
    if (old.value.get() != value && !numbers_.contains(old.value.get())) names_held_.push_back(std::move(old.value));
    old = std::move(effect);
    return;
  }
  alike.push_back(effects_.size());
  effects_.push_back(std::move(effect));
}

void Tracer::store_key(Facts::Id id, PyObject* key, PyObject* value, const std::string& label) {
  PyObject* dict = facts_->node(id).object;
  PyObject *name = pooled(key), *now = nullptr;
  if (facts_->again(id, name, &now) && now == value) return;  // a fact says that it is there
  SideEffect effect(SideEffect::Kind::SetItem);
  if (!takes_sum(dict, name, value, effect)) effect.value = Ref::share(value);
  facts_->write_key(id, name, looked_into(dict_lookup(dict, name, nullptr)), label, where());
  opened_.erase(dict);
  effect.target = Ref::share(dict);
  effect.key = Ref::share(key);
  effect.label = label;
  log(std::move(effect));
}

// An attribute of an argument that the key describes, or of a tensor among the arguments. That it is read later in this
// call is no fact.
void Tracer::store_to_argument(PyObject* o, PyObject* name, PyObject* value) {
  if (PyObject** slot = _PyObject_GetDictPtr(o))  // what it replaces may be known by its address
    if (PyObject* old = *slot ? dict_lookup(*slot, name, nullptr) : nullptr) names_held_.push_back(Ref::share(old));
  SideEffect effect(SideEffect::Kind::SetItem);
  effect.key = Ref::share(name);
  log_of_argument(std::move(effect), o, value, std::string(".") + PyUnicode_AsUTF8(name));
}

// `place`: where in the argument, as text.
void Tracer::log_of_argument(SideEffect effect, PyObject* argument, PyObject* value, const std::string& place) {
  effect.of_argument = true;
  effect.target = Ref::share(argument);
  effect.value = Ref::share(value);
  effect.label = std::string(label_of(argument)) + place;
  log(std::move(effect));
}

// A dictionary or a list that the caller passes, whose items the key describes.
bool Tracer::stores_in_argument(PyObject* container, PyObject* index, PyObject* value) {
  const bool is_dict = PyDict_CheckExact(container);
  if (!is_dict && !(PyList_CheckExact(container) && PyLong_CheckExact(index))) return false;
  SideEffect effect(is_dict ? SideEffect::Kind::SetItem : SideEffect::Kind::SetIndex);
  PyObject* old = is_dict ? dict_lookup(container, index, nullptr) : nullptr;
  if (is_dict) {
    effect.key = Ref::share(index);
  } else {
    effect.place = PyLong_AsSsize_t(index);
    if (effect.place < 0) effect.place += PyList_GET_SIZE(container);
    if (effect.place < 0 || effect.place >= PyList_GET_SIZE(container)) return PyErr_Clear(), false;
    old = PyList_GET_ITEM(container, effect.place);
  }
  if (old) names_held_.push_back(Ref::share(old));  // it may be known by its address
  log_of_argument(std::move(effect), container, value, "[" + words(index) + "]");
  return true;
}

// A cell, or an instance's slot.
void Tracer::store_place(SideEffect::Kind kind, PyObject* target, PyObject** place, PyObject* value,
                         const std::string& label) {
  const bool is_cell = kind == SideEffect::Kind::SetCell;
  PyObject* container = is_cell ? target : reinterpret_cast<PyObject*>(place);
  SideEffect effect(kind);
  if (!takes_sum(container, nullptr, value, effect)) effect.value = Ref::share(value);
  facts_->write_place(container, is_cell ? Node::Kind::Cell : Node::Kind::Slot, looked_into(*place));
  if (!is_cell) effect.place = reinterpret_cast<char*>(place) - reinterpret_cast<char*>(target);
  effect.target = Ref::share(target);
  effect.label = label;
  log(std::move(effect));
}

void Tracer::store_list_item(Facts::Id id, PyObject* index, PyObject* value) {
  PyObject* list = facts_->node(id).object;
  Py_ssize_t i = PyLong_AsSsize_t(index);
  if (i < 0) i += facts_->length(id, where());
  if (i < 0 || i >= PyList_GET_SIZE(list)) return static_cast<void>(PyErr_Clear()), deny("store to item of list");
  facts_->write_item(id, i, looked_into(PyList_GET_ITEM(list, i)), where());
  opened_.erase(list);
  SideEffect effect(SideEffect::Kind::SetIndex);
  effect.place = i;
  effect.target = Ref::share(list);
  effect.value = Ref::share(value);
  effect.label = names_[list] + "[" + std::to_string(i) + "]";
  log(std::move(effect));
}

// A list all of whose items are facts is the call's own from its first change on, until it ends: by then it must hold
// the same items again, as a stack does whose pushes are all popped.
bool Tracer::lends(Facts::Id id) {
  if (rehearsal_) return false;
  PyObject* list = facts_->node(id).object;
  const bool was_counted = facts_->node(id).length >= 0 && facts_->node(id).grown_from < 0;
  if (!was_counted || facts_->node(id).written || !open(list)) return false;
  facts_->lend(id);
  lent_.insert(list);
  lent_lists_.push_back({Ref::share(list), {}});
  return true;
}

// What was appended to a lent list, and is behind what it held, is appended at a hit too.
void Tracer::settle_lent() {
  if (facts_->abandoned()) return;
  for (const Lent& lent : lent_lists_) {
    PyObject* list = lent.list.get();
    auto next = lent.appended.begin();
    for (Py_ssize_t i = facts_->node(facts_->find(list, Node::Kind::List)).length; i < PyList_GET_SIZE(list); ++i) {
      const auto is_item = [&](const Lent::Item& one) { return one.value.get() == PyList_GET_ITEM(list, i); };
      next = std::find_if(next, lent.appended.end(), is_item);
      if (next == lent.appended.end()) {
        reason_ = "change of " + names_[list];
        return;
      }
      SideEffect effect(SideEffect::Kind::Append);
      effect.target = Ref::share(list);
      effect.value = Ref::share(next->value.get());
      effect.label = names_[list];
      effect.where = next->where;
      effect.symbolic = numbers_.contains(next->value.get());
      if (!effect.symbolic) touch(next->value.get());
      effects_.push_back(std::move(effect));
      ++next;
    }
  }
}

// Changes its first argument, which must be new.
void Tracer::mutate(PyObject* callee, Args args) {
  if (!is_own_container(callee, args)) return;
  for (PyObject* arg : args.subspan(1)) touch(arg), keep(arg);
  may_enter_any();
}

void Tracer::judge_insert(PyObject* callee, Args args) {
  const bool is_place = args.size() == 3 && PyLong_CheckExact(args[1]) && !numbers_.is_open(args[1]);
  int overflow = 0;
  const bool is_first = is_place && PyLong_AsLongAndOverflow(args[1], &overflow) == 0 && overflow == 0;
  if (is_first) grow(args[0], args.subspan(2), true);
  mutate(callee, args);
}

void Tracer::judge_reverse(PyObject* callee, Args args) {
  if (args.size() == 1 && !loop_ && find_grown(args[0])) takes_grown_ = reverses_grown(args[0], args[0]);
  mutate(callee, args);
}

void Tracer::judge_append(PyObject* callee, Args args) {
  if (args.size() != 2) return;
  grow(args[0], args.subspan(1));
  Facts::Id id;
  if (!fresh_.contains(args[0]) && list_node(args[0], &id) && !lends(id)) {
    facts_->grow(id);
    opened_.erase(args[0]);
    SideEffect effect(SideEffect::Kind::Append);
    effect.target = Ref::share(args[0]);
    effect.value = Ref::share(args[1]);
    effect.label = names_[args[0]];
    return log(std::move(effect));
  }
  if (PyList_CheckExact(args[0]) && arguments_.contains(args[0]))
    return log_of_argument(SideEffect(SideEffect::Kind::Append), args[0], args[1], "");
  if (!is_own(args[0])) return deny("change of " + name_of(args[0]) + " by " + callee_text(callee));
  keep(args[1]);
  for (Lent& lent : lent_lists_)
    if (lent.list.get() == args[0]) lent.appended.push_back({Ref::share(args[1]), where()});
}

// print() of what never changes, to a stream that runs no Python code.
void Tracer::judge_print(PyObject* callee, Args args) {
  const Py_ssize_t named = top().kwnames ? PyTuple_GET_SIZE(top().kwnames) : 0;
  const unsigned char* op = top().ops + 2 * top().offset;
  bool plain = plain_stdout() && !(op[0] == k_CALL_FUNCTION_EX && unpacked_keywords(op[1]));
  const Py_ssize_t positional = static_cast<Py_ssize_t>(args.size()) - named;
  for (PyObject* arg : args) plain = plain && (is_constant(arg) || is_plain_value(arg));
  SideEffect effect(SideEffect::Kind::Print);
  if (named) effect.key = Ref::steal(PyDict_New());
  for (Py_ssize_t i = 0; plain && i < named; ++i) {
    PyObject* name = PyTuple_GET_ITEM(top().kwnames, i);
    plain = PyUnicode_CompareWithASCIIString(name, "file") != 0 &&
            PyDict_SetItem(effect.key.get(), name, args[static_cast<size_t>(positional + i)]) == 0;
  }
  if (!plain) return deny("side effect: " + callee_text(callee));
  for (PyObject* arg : args) touch(arg);
  effect.value = Ref::steal(PyTuple_New(positional));
  for (Py_ssize_t i = 0; i < positional; ++i)
    PyTuple_SET_ITEM(effect.value.get(), i, Py_NewRef(args[static_cast<size_t>(i)]));
  effect.target = Ref::share(callee);
  effect.label = "print";
  log(std::move(effect));
}

}  // namespace fastjit::observe
#endif
