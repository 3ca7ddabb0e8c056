// Loops of Python over a range that ends at a size. Their rounds are alike where each begins with the same state, as
// far as Python can tell, and does nothing that the next one could find but to give tensors on and to append them to
// lists. Then a call in which the size is another one runs the same round another number of times.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>

#include "observe/judge/instruction.h"
#include "observe/judge/tracer.h"
#include "support/mix.h"

namespace fastjit::observe {
namespace {

constexpr int64_t kFewestAlike = 5, kMostOthers = 2;
constexpr int kDeepest = 4;

// Whether walking it changes it: what it gives next hangs on what was asked before.
bool is_iterator(PyObject* o) { return PyIter_Check(o); }

bool is_sequence(PyObject* o) { return PyTuple_CheckExact(o) || PyList_CheckExact(o); }

}  // namespace

// range(n) and range(1, n), which a loop walks at once: how many rounds that has the host may know in another call.
bool Tracer::begins_loop(Args args) {
  if (loop_ || !host_.on_loop || top().kwnames || args.empty() || args.size() > 2 || !is_size(args.back()))
    return false;
  const bool has_start = args.size() == 2;
  if (has_start && (!PyLong_CheckExact(args[0]) || numbers_.is_open(args[0]))) return false;
  const int end = static_cast<int>(Py_SIZE(top().code));
  const Instruction iter = next_of(top().ops, end, top().offset), walk = next_of(top().ops, end, iter.offset);
  if (iter.op != k_GET_ITER || walk.op != k_FOR_ITER) return false;
  int overflow = 0;
  const int64_t start = has_start ? PyLong_AsLongLongAndOverflow(args[0], &overflow) : 0;
  const int64_t stop = PyLong_AsLongLongAndOverflow(args.back(), &overflow);
  if (overflow != 0 || start < 0 || stop - start < kFewestAlike) return false;
  const size_t number = numbers_.find(args.back());
  const int64_t id = host_.on_loop(host_.context, number, start);
  if (id < 0) return false;
  start_loop(id, number, stop - start, walk.offset);
  return true;
}

void Tracer::start_loop(int64_t id, size_t number, int64_t count, int offset) {
  loop_.emplace();
  loop_->id = id;
  loop_->number = number;
  loop_->frame = top().frame;
  loop_->depth = frames_.size() - 1;
  loop_->offset = offset;
  loop_->count = count;
}

// The instruction at hand does more than to move values.
void Tracer::follow_parts(const Row& row) {
  calls_before_ = std::exchange(is_call_, is_call(row));
  const bool keeps = row.effect == &Tracer::give || row.effect == &Tracer::for_iter || row.effect == &Tracer::get_iter;
  if (parts_ && !keeps) parts_ = nullptr;
}

// An iterator of these is about to be made. Where a C function has just given them, and nothing but the stack has them,
// nobody has asked how many there are.
void Tracer::note_parts(PyObject* parts) {
  const bool is_new = calls_before_ && PyTuple_CheckExact(parts) && Py_REFCNT(parts) == 1;
  parts_ = is_new && !loop_ && host_.on_parts ? parts : nullptr;
}

// FOR_ITER is about to walk what may be all parts of a tensor, as `for row in x` does: the rounds are as many as a size
// says.
void Tracer::begin_walk() {
  PyObject* const parts = std::exchange(parts_, nullptr);
  if (!parts || loop_ || !Py_IS_TYPE(at(1), &PyTupleIter_Type) || Py_REFCNT(at(1)) != 1) return;
  const Ref reduced = Ref::steal(PyObject_CallMethod(at(1), "__reduce__", nullptr));  // (iter, (parts,), 0)
  if (!reduced) return PyErr_Clear();
  PyObject* const walked = PyTuple_GET_SIZE(reduced.get()) == 3 ? PyTuple_GET_ITEM(reduced.get(), 1) : nullptr;
  if (!walked || PyTuple_GET_ITEM(walked, 0) != parts || Py_REFCNT(parts) != 2) return;
  const Py_ssize_t count = PyTuple_GET_SIZE(parts);
  const auto [tensor, dim] = host_.on_parts(host_.context, parts);
  if (tensor < 0 || count < kFewestAlike) return;
  const Ref size = Ref::steal(PyLong_FromSsize_t(count));
  const Ref own = Ref::steal(size ? own_size(tensor, dim, size.get()) : nullptr);
  if (!own) return PyErr_Clear();
  const size_t number = numbers_.find(own.get());
  const int64_t id = host_.on_loop(host_.context, number, 0);
  if (id < 0) return;
  host_.on_walk(host_.context, id);
  start_loop(id, number, count, top().offset);
  loop_->gives_index = false;
}

void Tracer::judge_range(PyObject* callee, Args args) {
  if (!begins_loop(args)) apply_reader({"builtins:range", Rule::Pure, nullptr}, callee, args);
}

// FOR_ITER is about to run.
void Tracer::arrive_at_round() {
  if (parts_) begin_walk();
  if (!loop_ || top().frame != loop_->frame || top().offset != loop_->offset) return;
  if (loop_->round < 0) loop_->iterator = at(1), loop_->state = state_of_loop();
  if (at(1) != loop_->iterator) return leave_loop(false);
  if (loop_->round >= 0) compare_rounds();
  ++loop_->round;
  if (loop_->round == loop_->count) return leave_loop(true);
  loop_->values_read = host_.values_read ? host_.values_read(host_.context) : 0;
  loop_->numbers_before = numbers_.size();
  loop_->path_before = std::exchange(loop_->path, 0);
  loop_->appended_before = std::exchange(loop_->appended, {});
  loop_->iterators.clear();
  if (loop_->gives_index)
    top().gives_index = true;
  else
    host_.on_round(host_.context, loop_->id, nullptr);
}

// What it gave lies on the stack.
void Tracer::take_index() {
  PyObject* own = PyLong_CheckExact(at(1)) ? own_copy(at(1)) : nullptr;
  if (!own) return PyErr_Clear(), leave_loop(false);
  host_.on_round(host_.context, loop_->id, own);
  numbers_.watch(own, WatchedNumbers::From::Size);
  top().stack.replace(1, own);
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
    if (loop.path != loop.path_before) alike_from(loop.round);
    loop.is_regular &= loop.appended == loop.appended_before;
  }
  std::vector<Ref> state = state_of_loop();
  for (size_t i = 0; i < state.size(); ++i)
    if (!is_same_state(loop.state[i].get(), state[i].get())) alike_from(loop.round + 1);
  loop.state = std::move(state);
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
  const bool is_known = at_its_end && loop.is_regular && loop.alike_from <= kMostOthers &&
                        loop.count - loop.alike_from >= kFewestAlike && numbers_.is_open(loop.number) &&
                        std::ranges::all_of(grown_, [&](const Grown& one) {
                          return one.loop != loop.id || is_held_by_locals(one, loop);
                        });
  host_.on_loop_end(host_.context, loop.id, is_known ? loop.alike_from : -1);
  if (is_known) return;
  close_number(loop.number);
  std::erase_if(grown_, [&](const Grown& one) { return one.loop == loop.id; });
}

// Whether nothing but local variables leads to the list: what else does might be a part of what the call gives.
bool Tracer::is_held_by_locals(const Grown& grown, const Loop& loop) const {
  Py_ssize_t known = 1 + std::ranges::count(loop.state, grown.list.get(), &Ref::get);
  for (const Frame& frame : frames_)
    for (int i = 0; i < frame.code->co_nlocalsplus; ++i) {
      PyObject* value = local_of(frame.frame, i);
      if (value && PyCell_Check(value) && Py_REFCNT(value) == 1) value = PyCell_GET(value);
      known += value == grown.list.get();
    }
  return Py_REFCNT(grown.list.get()) == known;
}

const Tracer::Grown* Tracer::find_grown(PyObject* list) const {
  if (grown_.empty() || !PyList_CheckExact(list)) return nullptr;
  const auto found = std::ranges::find(grown_, list, [](const Grown& one) { return one.list.get(); });
  return found == grown_.end() ? nullptr : &*found;
}

// list.append in a round.
void Tracer::grow(PyObject* list, PyObject* item) {
  if (!loop_ || loop_->round < 0) return;
  const Grown* known = find_grown(list);
  const bool is_plain = PyList_CheckExact(list) && fresh_.contains(list) && is_tensor(item);
  if (!is_plain || (known && known->loop != loop_->id) || (!known && loop_->round > 0)) {
    loop_->is_regular = false;
    return;
  }
  if (!known) grown_.push_back({loop_->id, loop_->number, PyList_GET_SIZE(list), Ref::share(list)});
  loop_->appended.push_back(list);
  callee_kind_ = CalleeKind::Append;
}

// An Operator is about to be given these.
void Tracer::tell_lists(Args args) {
  for (PyObject* arg : args)
    if (const Grown* grown = find_grown(arg); grown && !loop_) {
      host_.on_rounds_used(host_.context, grown->loop, static_cast<size_t>(grown->before), arg);
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
  if (is(&Tracer::load_attr_op)) return loop_ && is_named(name_at(oparg >> kAttrShift), "append") ? 0 : 1;
  if (is(&Tracer::give)) return frames_.size() == 1 ? 1 : 0;
  if (is(&Tracer::truth_op, &Tracer::get_iter, &Tracer::for_iter, &Tracer::unary, &Tracer::iterate_top,
         &Tracer::append))
    return 1;
  if (is(&Tracer::binary, &Tracer::subscript, &Tracer::compare, &Tracer::is_op, &Tracer::contains)) return 2;
  if (is(&Tracer::call_op)) return oparg + 2;
  if (calls_by_name(row)) return oparg + 3;
  return 4;
}

bool Tracer::reads_grown(const Row& row, int op, int oparg) {
  for (int i = operands_of(row, op, oparg); i > 0; --i)
    if (PyObject* o = top().stack.at_or_null(i); o && find_grown(o)) return true;
  return false;
}

// What the call did with a list that rounds have made longer hangs on how many there were.
void Tracer::close_grown() {
  for (const Grown& one : grown_)
    if (!loop_ || loop_->id != one.loop) close_number(one.number);
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
           PyFloat_CheckExact(at(2)) || PyTuple_CheckExact(at(2));
  if (is(&Tracer::subscript))
    return is_tensor(at(2)) || is_sequence(at(2)) || PyDict_CheckExact(at(2)) || is_module(at(2)) ||
           (PyTuple_Check(at(2)) && holds_only_items(Py_TYPE(at(2))));
  if (is(&Tracer::store_subscript)) return is_tensor(at(2));
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
void Tracer::watched_rounds(const Row& row) {
  using Kind = CalleeKind;
  const bool calls = is_call(row);
  if (calls && loop_ && callee_kind_ == Kind::Unknown) differ();
  const bool may_take = callee_kind_ == Kind::Function || callee_kind_ == Kind::TakesList ||
                        (callee_kind_ == Kind::Append && loop_.has_value());
  if (std::exchange(gives_grown_, false) && !(calls && may_take)) close_grown();
}

// A C function that reads its arguments only: not an iterator, which it would walk on.
void Tracer::note_reader(Args args) {
  if (std::ranges::none_of(args, is_iterator)) callee_kind_ = CalleeKind::Reader;
}

}  // namespace fastjit::observe
#endif
