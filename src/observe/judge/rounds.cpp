// Loops of Python over a range that ends at a size. Their rounds are alike where each begins with the same state, as
// far as Python can tell, and does nothing that the next one could find but to give tensors on and to append them to
// lists. Then a call in which the size is another one runs the same round another number of times.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>
#include <bit>

#include "observe/judge/instruction.h"
#include "observe/judge/tracer.h"
#include "support/mix.h"

namespace fastjit::observe {
namespace {

constexpr int64_t kMostOthers = 2;
constexpr int kDeepest = 4;

// Whether walking it changes it: what it gives next hangs on what was asked before.
bool is_iterator(PyObject* o) { return PyIter_Check(o); }

bool is_sequence(PyObject* o) { return PyTuple_CheckExact(o) || PyList_CheckExact(o); }

}  // namespace

// FOR_ITER is about to run.
void Tracer::arrive_at_round() {
  if (!loop_) begin_walk();
  if (!loop_ || top().frame != loop_->frame || top().offset != loop_->offset) return;
  walks_on_ = at(1) == loop_->iterator;
  if (!walks_on_) return leave_loop(false);
  if (loop_->round >= 0) compare_rounds();
  ++loop_->round;
  if (loop_->round == loop_->count) return leave_loop(true);
  loop_->values_read = host_.values_read ? host_.values_read(host_.context) : 0;
  loop_->numbers_before = numbers_.size();
  loop_->path_before = std::exchange(loop_->path, 0);
  loop_->appended_before = std::exchange(loop_->appended, {});
  loop_->iterators.clear();
  loop_->made = {};
  if (loop_->index == Walkable::Index::None)
    host_.on_round(host_.context, loop_->id, nullptr);
  else
    top().gives_index = true;
}

// What it gave lies on the stack.
void Tracer::take_index() {
  PyObject* given = at(1);
  const bool is_pair = loop_->index == Walkable::Index::First;
  if (is_pair && (!PyTuple_CheckExact(given) || PyTuple_GET_SIZE(given) != 2)) return leave_loop(false);
  PyObject* index = is_pair ? PyTuple_GET_ITEM(given, 0) : given;
  Ref own = Ref::steal(PyLong_CheckExact(index) ? own_copy(index) : nullptr);
  Ref pair = Ref::steal(own && is_pair ? PyTuple_Pack(2, own.get(), PyTuple_GET_ITEM(given, 1)) : nullptr);
  if (!own || (is_pair && !pair)) return PyErr_Clear(), leave_loop(false);
  host_.on_round(host_.context, loop_->id, own.get());
  numbers_.watch(own.get(), WatchedNumbers::From::Size);
  top().stack.replace(1, Py_NewRef((is_pair ? pair : own).get()));
}

std::vector<Ref> Tracer::state_of_loop() const {
  std::vector<Ref> state;
  for (int i = 0; i < frames_[loop_->depth].code->co_nlocalsplus; ++i) {
    PyObject* value = local_of(loop_->frame, i);
    if (value && PyCell_Check(value)) value = PyCell_GET(value);
    state.push_back(value ? Ref::share(value) : Ref());
  }
  return state;
}

// A round has ended, and the next one is about to begin.
void Tracer::compare_rounds() {
  Loop& loop = *loop_;
  const auto alike_from = [&](int64_t round) { loop.alike_from = std::max(loop.alike_from, round); };
  if (host_.values_read && host_.values_read(host_.context) != loop.values_read) differ();
  if (loop.round > 0) {
    const bool is_last = loop.round + 1 == loop.count;
    if (loop.path != loop.path_before) is_last ? static_cast<void>(loop.last_differs = true) : alike_from(loop.round);
    loop.is_regular &= loop.appended == loop.appended_before;
  }
  std::vector<Ref> state = state_of_loop();
  for (size_t i = 0; i < state.size(); ++i)
    if (!is_same_state(loop.state[i].get(), state[i].get())) alike_from(loop.round + 1);
  std::swap(loop.state, state);
  for (Loop::Stored& one : loop.stored) {
    const auto place = std::ranges::find(loop.state, one.list.get(), &Ref::get) - loop.state.begin();
    const bool is_there = place < std::ssize(state) && state[static_cast<size_t>(place)].get() == one.list.get();
    Ref items = Ref::steal(PyList_AsTuple(one.list.get()));
    if (!items) PyErr_Clear();
    if (!is_there || !items || !is_same_state(one.items.get(), items.get())) alike_from(loop.round + 1);
    one.items = std::move(items);
  }
}

// A round replaces an item of a list of the call's own. That is state of the loop, as its local variables are. False:
// the next round may find another list there.
bool Tracer::replaces_item(PyObject* list, PyObject* index) {
  const bool is_plain = PyList_CheckExact(list) && fresh_.contains(list) && !find_grown(list) &&
                        PyLong_CheckExact(index) && !numbers_.is_open(index);
  if (!is_plain) return false;
  if (loop_->made.contains(list)) return true;
  if (loop_->stores_in(list)) return true;
  loop_->stored.push_back({Ref::share(list), {}});
  return false;
}

// Whether Python goes on with `b` as it did with `a`, and the round that has ended made it, or the one before: as moves
// are the same in all rounds, no tensor is older then. Ints that the host follows it judges itself.
bool Tracer::is_same_state(PyObject* a, PyObject* b, int depth) {
  if (a == b) return true;
  if (!a || !b || depth > kDeepest || Py_TYPE(a) != Py_TYPE(b)) return false;
  if (is_tensor(a)) return host_.is_next && host_.is_next(host_.context, a, b);
  if (is_sequence(a)) {
    if (find_grown(a) || find_grown(b) || Py_SIZE(a) != Py_SIZE(b)) return false;
    for (Py_ssize_t i = 0; i < Py_SIZE(a); ++i)
      if (!is_same_state(PySequence_Fast_ITEMS(a)[i], PySequence_Fast_ITEMS(b)[i], depth + 1)) return false;
    return true;
  }
  if (is_size(a) && is_size(b)) return numbers_.find(b) >= loop_->numbers_before;
  if (numbers_.is_open(a) || numbers_.is_open(b)) return false;
  return is_constant(a) && is_constant(b) && same_bits(a, b);
}

// The round does what another one might do otherwise.
void Tracer::differ() {
  if (loop_ && loop_->round >= 0) loop_->alike_from = std::max(loop_->alike_from, loop_->round + 1);
}

void Tracer::leave_loop(bool at_its_end) {
  const Loop loop = std::move(*loop_);
  loop_.reset();
  walkables_.erase(loop.iterator);
  const bool is_known = at_its_end && loop.is_regular && loop.alike_from <= kMostOthers &&
                        loop.count - loop.last_differs - loop.alike_from >= kFewestAlike &&
                        std::ranges::all_of(loop.numbers, [&](size_t number) { return numbers_.is_open(number); }) &&
                        std::ranges::all_of(grown_, [&](const Grown& one) {
                          return one.loop != loop.id || is_held_by_locals(one, loop);
                        });
  host_.on_loop_end(host_.context, loop.id, is_known ? loop.alike_from : -1, loop.last_differs);
  for (Grown& one : grown_)
    if (one.loop == loop.id) one.each = std::ranges::count(loop.appended, one.list.get());
  if (is_known) return;
  close_numbers(loop.numbers);
  std::erase_if(grown_, [&](const Grown& one) { return one.loop == loop.id; });
}

// Whether nothing but local variables leads to the list: what else does might be a part of what the call gives.
bool Tracer::is_held_by_locals(const Grown& grown, const Loop& loop) const {
  Py_ssize_t known = 1 + std::ranges::count(loop.state, grown.list.get(), &Ref::get);
  known += loop.below == grown.list.get();
  for (const Frame& frame : frames_)
    for (int i = 0; i < frame.code->co_nlocalsplus; ++i) {
      PyObject* value = local_of(frame.frame, i);
      if (value && PyCell_Check(value) && Py_REFCNT(value) == 1) value = PyCell_GET(value);
      known += value == grown.list.get();
    }
  return Py_REFCNT(grown.list.get()) == known;
}

bool Tracer::Loop::stores_in(PyObject* list) const {
  return std::ranges::find(stored, list, [](const Stored& one) { return one.list.get(); }) != stored.end();
}

void Tracer::close_numbers(const std::vector<size_t>& numbers) {
  for (const size_t number : numbers) close_number(number);
}

const Tracer::Grown* Tracer::find_grown(PyObject* list) const {
  if (grown_.empty() || !PyList_CheckExact(list)) return nullptr;
  const auto found = std::ranges::find(grown_, list, [](const Grown& one) { return one.list.get(); });
  return found == grown_.end() ? nullptr : &*found;
}

// What rounds have put into the list, and nothing before them, lies the other way round in `copy`, which may be the
// list itself. False: there is more in it, or it is no such list.
bool Tracer::reverses_grown(PyObject* list, PyObject* copy) {
  const auto found = std::ranges::find(grown_, list, [](const Grown& one) { return one.list.get(); });
  if (found == grown_.end() || found->before > 0 || !PyList_CheckExact(copy)) return false;
  if (copy == list) return found->reversed = !found->reversed, true;
  grown_.push_back({found->loop, found->numbers, found->range, 0, Ref::share(copy), !found->reversed, found->each});
  return true;
}

// An item that the last round has put there, however many there were; or [::-1].
bool Tracer::reads_last_of_grown(PyObject* list, PyObject* index) {
  const Grown* grown = loop_ ? nullptr : find_grown(list);
  if (!grown) return false;
  if (const auto* slice = reinterpret_cast<PySliceObject*>(index); PySlice_Check(index)) {
    const bool is_step = PyLong_CheckExact(slice->step) && PyLong_AsLong(slice->step) == -1;
    if (!is_step || slice->start != Py_None || slice->stop != Py_None) return PyErr_Clear(), false;
    top().reversed = list;
    return true;
  }
  if (!PyLong_CheckExact(index) || numbers_.is_open(index)) return false;
  const long place = PyLong_AsLong(index);
  PyErr_Clear();
  return grown->reversed ? place >= 0 && place < grown->each : place < 0 && place >= -grown->each;
}

// Whether it is the list of a comprehension, whose rounds are the loop's.
bool Tracer::is_filled_by_loop(PyObject* list) const {
  return loop_ && frames_.back().frame == loop_->frame && loop_->below == list;
}

// A round does `list += more`.
void Tracer::grow_by(PyObject* list, PyObject* more) {
  if (!loop_ || loop_->round < 0) return;
  if (loop_->made.contains(more))
    grow(list, {PySequence_Fast_ITEMS(more), static_cast<size_t>(Py_SIZE(more))});
  else
    loop_->is_regular = false;
}

// A round puts these behind the items of a list.
void Tracer::grow(PyObject* list, Args items, bool in_front) {
  if (!loop_ || loop_->round < 0) return;
  if (loop_->made.contains(list)) return static_cast<void>(callee_kind_ = CalleeKind::Reader);
  const Grown* known = find_grown(list);
  if (loop_->stores_in(list)) loop_->is_regular = false;
  const bool is_plain = PyList_CheckExact(list) && fresh_.contains(list) &&
                        std::ranges::all_of(items, [&](PyObject* item) { return is_tensor(item); });
  if (!is_plain || (known && known->loop != loop_->id) || (!known && loop_->round > 0)) {
    loop_->is_regular = false;
    return;
  }
  if (in_front && PyList_GET_SIZE(list) > 0 && !known) loop_->is_regular = false;
  if (known && known->reversed != in_front) loop_->is_regular = false;
  if (!known)
    grown_.push_back({loop_->id, loop_->numbers, loop_->range, PyList_GET_SIZE(list), Ref::share(list), in_front, 0});
  loop_->appended.insert(loop_->appended.end(), items.size(), list);
  callee_kind_ = CalleeKind::Append;
}

// An Operator is about to be given these.
void Tracer::tell_lists(Args args) {
  for (PyObject* arg : args)
    if (const Grown* grown = find_grown(arg); grown && !loop_) {
      host_.on_rounds_used(host_.context, grown->loop, static_cast<size_t>(grown->before), arg, grown->reversed);
      using_scalars_ = true;
      callee_kind_ = CalleeKind::TakesList;
    }
}

bool Tracer::calls_by_name(const Row& row) {
#if PY_VERSION_HEX >= 0x030D0000
  return row.effect == &Tracer::call_kw;
#else
  return static_cast<void>(row), false;
#endif
}

bool Tracer::is_call(const Row& row) {
  return row.effect == &Tracer::call_op || row.effect == &Tracer::call_ex || calls_by_name(row);
}

// How many of the values on top of the stack the instruction at hand reads, or puts where nobody follows them; those
// that it only moves left out.
int Tracer::operands_of(const Row& row, int op, int oparg) {
  const auto is = [&](auto... effects) { return ((row.effect == effects) || ...); };
  if (op == k_BUILD_TUPLE || op == k_BUILD_LIST || is(&Tracer::build, &Tracer::build_slice)) return oparg;
  if (is(&Tracer::move, &Tracer::load_global, &Tracer::load_deref, &Tracer::kw_names, &Tracer::store_deref)) return 0;
  if (is(&Tracer::load_attr_op)) {
    const auto names = [&](const char* name) { return is_named(name_at(oparg >> kAttrShift), name); };
    return (loop_ ? names("append") || names("insert") : names("reverse")) ? 0 : 1;
  }
  if (is(&Tracer::give)) return frames_.size() == 1 || gives_to_c(row) ? 1 : 0;
  if (is(&Tracer::truth_op, &Tracer::get_iter, &Tracer::for_iter, &Tracer::unary, &Tracer::iterate_top,
         &Tracer::append))
    return 1;
  if (is(&Tracer::binary, &Tracer::subscript, &Tracer::compare, &Tracer::is_op, &Tracer::contains)) return 2;
  if (is(&Tracer::build_map)) return 2 * oparg;
  if (is(&Tracer::build_const_map)) return oparg + 1;
  if (is(&Tracer::store_subscript)) return 3;
  if (is(&Tracer::make_function)) return 1 + std::popcount(static_cast<unsigned>(oparg));
  if (is(&Tracer::call_op)) return oparg + 2;
  if (calls_by_name(row)) return oparg + 3;
  return kMostOperands;
}

bool Tracer::reads_grown(const Row& row, int op, int oparg) {
  for (int i = operands_of(row, op, oparg); i > 0; --i)
    if (PyObject* o = operand(i); o && find_grown(o)) return true;
  return false;
}

// What the call did with a list that rounds have made longer hangs on how many there were.
void Tracer::close_grown() {
  for (const Grown& one : grown_)
    if (!loop_ || loop_->id != one.loop) close_numbers(one.numbers);
  if (loop_) loop_->is_regular = false;
  std::erase_if(grown_, [&](const Grown& one) { return !loop_ || loop_->id != one.loop; });
}

// Whether the cell is one of the loop's frame, which rounds are compared by, or of a function that the round has
// called.
bool Tracer::is_state_of_loop(int cell) {
  const PyCodeObject* code = frames_[loop_->depth].code;
  for (int i = 0; i < code->co_nlocalsplus; ++i)
    if (local_of(loop_->frame, i) == local(cell)) return true;
  return frames_.size() - 1 > loop_->depth && cell < top().code->co_nlocalsplus - top().code->co_nfreevars;
}

// Whether the next round could not find what the instruction does. What calls do says call().
bool Tracer::is_repeatable(const Row& row, int op, int oparg) {
  const auto is = [&](auto... effects) { return ((row.effect == effects) || ...); };
  if (is(&Tracer::move, &Tracer::load_global, &Tracer::load_deref, &Tracer::load_attr_op, &Tracer::build,
         &Tracer::build_map, &Tracer::build_const_map, &Tracer::build_slice, &Tracer::make_function, &Tracer::compare,
         &Tracer::is_op, &Tracer::unary, &Tracer::truth_op, &Tracer::append, &Tracer::map_add, &Tracer::kw_names,
         &Tracer::get_len) ||
      is_call(row))
    return true;
#if PY_VERSION_HEX >= 0x030C0000
  if (is(&Tracer::make_cell, &Tracer::binary_slice, &Tracer::load_super_attr_op)) return true;
#endif
  if (is(&Tracer::contains)) return !is_iterator(at(1));
  if (is(&Tracer::give)) return op != k_YIELD_VALUE && frames_.size() - 1 > loop_->depth;
  if (is(&Tracer::binary))
    return oparg < kFirstInPlace || oparg == kSubscript || is_tensor(at(2)) || PyLong_CheckExact(at(2)) ||
           PyFloat_CheckExact(at(2)) || is_sequence(at(2));
  if (is(&Tracer::subscript))
    return is_tensor(at(2)) || is_sequence(at(2)) || PyDict_CheckExact(at(2)) || is_module(at(2)) ||
           (PyTuple_Check(at(2)) && holds_only_items(Py_TYPE(at(2))));
  if (is(&Tracer::store_subscript)) return is_tensor(at(2)) || replaces_item(at(2), at(1));
  if (is(&Tracer::iterate_top))
    return is_sequence(at(1)) || is_tensor(at(1)) || PyTuple_Check(at(1)) || PyDict_CheckExact(at(1));
  if (is(&Tracer::store_deref)) return fresh_.contains(local(oparg)) && is_state_of_loop(oparg);
  if (is(&Tracer::get_iter)) {
    loop_->walked = at(1);  // an iterator that was there before goes on in the next round
    return !is_iterator(at(1)) || Py_REFCNT(at(1)) == 1;
  }
  if (is(&Tracer::for_iter)) {
    if (top().frame == loop_->frame && top().offset == loop_->offset) return true;
    if (std::exchange(loop_->walked, nullptr)) loop_->iterators.push_back(at(1));
    return std::ranges::find(loop_->iterators, at(1)) != loop_->iterators.end();
  }
  return false;
}

// The instruction at hand is about to be judged.
void Tracer::watch_rounds(const Row& row, int op, int oparg) {
  callee_kind_ = CalleeKind::Unknown;
  gives_grown_ = !grown_.empty() && reads_grown(row, op, oparg);
  if (!loop_) return;
  if (frames_.size() <= loop_->depth || frames_[loop_->depth].frame != loop_->frame) return leave_loop(false);
  if (loop_->round < 0) return;
  loop_->path = support::mix(
      loop_->path, support::mix(reinterpret_cast<uintptr_t>(top().code), static_cast<uint64_t>(top().offset)));
  if (!is_repeatable(row, op, oparg)) differ();
}

// It has been judged.
void Tracer::watched_rounds(const Row& row, int op, int oparg) {
  using Kind = CalleeKind;
  const bool calls = is_call(row);
  if (calls && loop_ && callee_kind_ == Kind::Unknown) differ();
  const bool may_take = callee_kind_ == Kind::Function || callee_kind_ == Kind::TakesList ||
                        (callee_kind_ == Kind::Append && loop_.has_value());
  const bool adds = row.effect == &Tracer::binary && callee_kind_ == Kind::Append;
  const bool takes = std::exchange(takes_grown_, false) || adds || (calls && may_take);
  if (std::exchange(gives_grown_, false) && !takes) close_grown();
  close_walked(row, op, oparg);
}

// A C function that reads its arguments only: not an iterator, which it would walk on.
void Tracer::note_reader(Args args) {
  if (std::ranges::none_of(args, is_iterator)) callee_kind_ = CalleeKind::Reader;
}

}  // namespace fastjit::observe
#endif
