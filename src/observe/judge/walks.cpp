// What a loop of Python may walk whose rounds are as many as a size says: ranges, all parts of a tensor, and iterators
// over such. They are followed wherever instructions move them. Until a loop walks one, and while it does, what else
// reads it might find out how many rounds there are: then that is a fact.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>

#include "observe/judge/tracer.h"

namespace fastjit::observe {
namespace {

// What the iterator of a tuple, an enumeration or a zip is made of: (callable, (argument, ...), place).
Ref reduced(PyObject* iterator) {
  Ref out = Ref::steal(PyObject_CallMethod(iterator, "__reduce__", nullptr));
  if (!out) PyErr_Clear();
  return out && PyTuple_CheckExact(out.get()) && PyTuple_GET_SIZE(out.get()) >= 2 ? std::move(out) : Ref();
}

bool is_at_begin(PyObject* reduced) {
  return PyTuple_GET_SIZE(reduced) < 3 || PyLong_AsLong(PyTuple_GET_ITEM(reduced, 2)) == 0;
}

}  // namespace

// range() is given these, and a loop may walk it.
bool Tracer::note_range(Args args) {
  if (loop_ || !host_.on_loop || top().kwnames || args.empty() || args.size() > 3) return false;
  const auto is_bound = [&](PyObject* o) { return PyLong_CheckExact(o) && (is_size(o) || !numbers_.is_open(o)); };
  if (!std::ranges::all_of(args, is_bound) || std::ranges::none_of(args, [&](PyObject* o) { return is_size(o); }))
    return false;
  const auto operand = [&](size_t i) {
    const bool is_one = is_size(args[i]);
    return SizeOperand{is_one ? static_cast<int64_t>(numbers_.find(args[i])) : -1, PyLong_AsLongLong(args[i])};
  };
  const SizeOperand start = args.size() > 1 ? operand(0) : SizeOperand(), stop = operand(args.size() > 1 ? 1 : 0),
                    step = args.size() > 2 ? operand(2) : SizeOperand{-1, 1};
  if (PyErr_Occurred()) return PyErr_Clear(), false;
  if (step.is_size() || (step.value != 1 && step.value != -1)) return false;
  const bool falls = step.value < 0;
  Walkable& range = next_walkable_ = {.index = Walkable::Index::Alone};
  range.range = falls ? LoopRange{stop, start, 1, true} : LoopRange{start, stop, 0, false};
  range.count = range.range.high.value - range.range.low.value;
  for (const SizeOperand& end : {start, stop})
    if (end.is_size()) range.numbers.push_back(static_cast<size_t>(end.number));
  return top().gives_walkable = range.count >= kFewestAlike;
}

void Tracer::judge_range(PyObject* callee, Args args) {
  if (!note_range(args)) apply_reader({"builtins:range", Rule::Pure, nullptr}, callee, args);
}

// enumerate(), zip() and reversed() read nothing yet.
void Tracer::judge_walking(PyObject* callee, Args args) {
  for (PyObject* arg : args) walk_on(arg);
  top().gives_walkable = !loop_;
  judge_container(callee, args);
}

// The instruction at hand makes an iterator of it.
void Tracer::walk_on(PyObject* o) {
  if (loop_) return;
  top().gives_walkable = true;
  const auto found = walkables_.find(o);
  const bool is_grown = find_grown(o), is_walkable = found != walkables_.end();
  takes_grown_ |= is_grown;
  walks_on_ |= is_walkable;
  if (is_grown || is_walkable) top().walks.push_back(o);
  if (PyRange_Check(o) && is_walkable) next_walkable_ = found->second.what;
}

// The instruction has given this, an iterator over `walked` where it has made one.
void Tracer::note_walkable(PyObject* given, const std::vector<PyObject*>& walked) {
  if (walkables_.contains(given)) return;
  std::optional<Walkable> what = loop_ ? std::nullopt : what_is(given);
  if (what && what->count > 0) return static_cast<void>(walkables_.emplace(given, Followed{Ref::share(given), *what}));
  for (PyObject* one : walked) {  // nobody follows it
    close_walkable(one);
    if (find_grown(one)) close_grown();
  }
}

std::optional<Tracer::Walkable> Tracer::what_is(PyObject* given) {
  if (PyRange_Check(given)) return std::exchange(next_walkable_, {});
  if (PyTuple_CheckExact(given) && PyTuple_GET_SIZE(given) >= kFewestAlike && host_.on_parts) {
    const Host::Parts parts = host_.on_parts(host_.context, given);
    return parts.tensor >= 0 ? std::optional(Walkable{.parts = {parts}, .count = PyTuple_GET_SIZE(given)})
                             : std::nullopt;
  }
  const bool is_followed = !walkables_.empty() || !grown_.empty();
  return is_followed && PyIter_Check(given) ? walked_by(given) : std::nullopt;
}

// What a new iterator walks; nothing: what nobody follows.
std::optional<Tracer::Walkable> Tracer::walked_by(PyObject* iterator) {
  const Ref made = reduced(iterator);
  if (!made) return std::nullopt;
  PyObject* const arguments = PyTuple_GET_ITEM(made.get(), 1);
  const Args given(PySequence_Fast_ITEMS(arguments), static_cast<size_t>(PyTuple_GET_SIZE(arguments)));
  if (Py_IS_TYPE(iterator, &PyRangeIter_Type)) {
    Walkable out = std::exchange(next_walkable_, {});
    const Ref step = Ref::steal(PyObject_GetAttrString(given[0], "step"));
    out.range.falls = step && PyLong_AsLong(step.get()) < 0;  // of reversed(range)
    return PyErr_Occurred() ? (PyErr_Clear(), std::nullopt) : std::optional(std::move(out));
  }
  const auto found = walkables_.find(given.empty() ? nullptr : given[0]);
  if (Py_IS_TYPE(iterator, &PyTupleIter_Type))
    return found != walkables_.end() && is_at_begin(made.get()) ? std::optional(found->second.what) : std::nullopt;
  if (Py_IS_TYPE(iterator, &PyListIter_Type)) return is_at_begin(made.get()) ? list_of_rounds(given) : std::nullopt;
  if (Py_IS_TYPE(iterator, &PyEnum_Type)) return enumerated(arguments);
  return Py_IS_TYPE(iterator, &PyZip_Type) ? side_by_side(given) : std::nullopt;
}

// A list into which each round of a loop has put one tensor, and nobody else.
std::optional<Tracer::Walkable> Tracer::list_of_rounds(Args list) const {
  const Grown* grown = list.empty() ? nullptr : find_grown(list[0]);
  if (!grown || grown->before > 0 || grown->each != 1 || grown->reversed || !host_.on_walk_list) return std::nullopt;
  LoopRange range = grown->range;
  range.shift = 0, range.falls = false;
  return Walkable{.range = range, .lists = {list[0]}, .count = PyList_GET_SIZE(list[0]), .numbers = grown->numbers};
}

// What an iterator gives that another one walks; nothing: more than parts.
std::optional<Tracer::Walkable> Tracer::parts_of(PyObject* iterator) {
  const auto found = walkables_.find(iterator);
  std::optional<Walkable> out;
  if (found != walkables_.end())
    out = found->second.what;
  else if (!Py_IS_TYPE(iterator, &PyRangeIter_Type))
    out = walked_by(iterator);
  return out && out->index == Walkable::Index::None ? out : std::nullopt;
}

// enumerate() of these: an iterator, and the index of the first round.
std::optional<Tracer::Walkable> Tracer::enumerated(PyObject* arguments) {
  std::optional<Walkable> out = parts_of(PyTuple_GET_ITEM(arguments, 0));
  if (!out) return std::nullopt;
  out->index = Walkable::Index::First;
  out->range.shift = PyTuple_GET_SIZE(arguments) > 1 ? PyLong_AsLongLong(PyTuple_GET_ITEM(arguments, 1)) : 0;
  return PyErr_Occurred() ? (PyErr_Clear(), std::nullopt) : out;
}

// zip() of them.
std::optional<Tracer::Walkable> Tracer::side_by_side(Args iterators) {
  Walkable out;
  for (PyObject* one : iterators) {
    const std::optional<Walkable> next = parts_of(one);
    if (!next) return std::nullopt;
    if (out.count == 0) {
      out = *next;
      continue;
    }
    // As long for one reason, or compared.
    const bool has_lists = !out.lists.empty() || !next->lists.empty();
    if (out.count != next->count || (has_lists && out.numbers != next->numbers)) return std::nullopt;
    out.lists.insert(out.lists.end(), next->lists.begin(), next->lists.end());
    out.parts.insert(out.parts.end(), next->parts.begin(), next->parts.end());
  }
  return out;
}

// FOR_ITER is about to walk it. What is not followed from here on is read.
void Tracer::begin_walk() {
  const auto found = walkables_.find(at(1));
  if (found == walkables_.end()) return;
  Walkable walked = found->second.what;
  if (!begin_parts(walked)) return;
  const int64_t id = host_.on_loop(host_.context, walked.range);
  if (id < 0) return;
  for (const Host::Parts& one : walked.parts) host_.on_walk(host_.context, id, one.event);
  for (PyObject* list : walked.lists) host_.on_walk_list(host_.context, id, list);
  loop_.emplace();
  loop_->id = id;
  loop_->numbers = walked.numbers;
  loop_->range = walked.range;
  loop_->frame = top().frame;
  loop_->depth = frames_.size() - 1;
  loop_->offset = top().offset;
  loop_->iterator = at(1);
  loop_->state = state_of_loop();
  loop_->below = operand(2);
  loop_->count = walked.count;
  loop_->index = walked.index;
}

// As many rounds as the tensor has parts: from now on a size says so, to all that lead to these parts. Where rounds are
// given parts of several, that these are as many is compared. False: another loop walks some of them already.
bool Tracer::begin_parts(Walkable& walked) {
  Ref first;
  const auto is_shared = [&](const Host::Parts& one) {
    return std::ranges::find(walked.parts, one.event, &Host::Parts::event) != walked.parts.end();
  };
  if (!walked.parts.empty() && !walked.numbers.empty()) return false;
  for (const Host::Parts& one : walked.parts) {
    if (std::ranges::count(walked.parts, one.event, &Host::Parts::event) > 1) return false;
    const Ref count = Ref::steal(PyLong_FromLongLong(walked.count));
    Ref own = Ref::steal(count ? own_size(one.tensor, one.dim, count.get()) : nullptr);
    if (!own) return PyErr_Clear(), false;
    if (first && !compares_open(Py_EQ, first.get(), own.get())) return false;
    if (!first) first = std::move(own);
  }
  if (!first) return true;
  const size_t number = numbers_.find(first.get());
  walked.range.high = {static_cast<int64_t>(number), walked.count};
  walked.numbers = {number};
  for (auto& [object, followed] : walkables_)
    if (std::ranges::any_of(followed.what.parts, is_shared)) followed.what.numbers = walked.numbers;
  return true;
}

// Whether the instruction gives a value to code in C, which nobody watches.
bool Tracer::gives_to_c(const Row& row) const {
  if (row.effect != &Tracer::give || frames_.size() < 2) return false;
  const Expect by = frames_[frames_.size() - 2].expect;
  return by == Expect::Any || by == Expect::Inside;
}

// The instruction at hand has been judged. What it reads of them, and does not walk, it may count.
void Tracer::close_walked(const Row& row, int op, int oparg) {
  const bool walks_on = std::exchange(walks_on_, false);
  if (walkables_.empty() || walks_on || (is_call(row) && callee_kind_ == CalleeKind::Function)) return;
  if (gives_to_c(row)) {  // how many parts there are is a fact until a loop walks them
    const auto found = walkables_.find(at(1));
    return found != walkables_.end() && !found->second.what.numbers.empty() ? close_walkable(at(1)) : void();
  }
  const bool stores = row.effect == &Tracer::store_deref;  // code elsewhere finds it there
  const int count = stores ? 1 : operands_of(row, op, oparg);
  const bool is_known = count != kMostOperands || is_call(row);
  for (int i = count; i > 0; --i) {
    PyObject* const o = operand(i);
    if (o && (is_known || !loop_ || o != loop_->iterator)) close_walkable(o);
  }
}

void Tracer::close_walkable(PyObject* o) {
  const auto found = walkables_.find(o);
  if (found == walkables_.end()) return;
  close_numbers(found->second.what.numbers);
  walkables_.erase(o);
}

}  // namespace fastjit::observe
#endif
