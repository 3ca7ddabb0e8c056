// Numbers in places that hold another one from call to call: the call gets an object of its own for each, which is
// watched as its number arguments are. Of the place only the type is a fact. So are the numbers in a tuple that is
// another one from call to call, where the instruction behind takes it apart: which tuple it was nobody can ask.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>
#include <cmath>

#include "observe/events/opcode_numbers.h"
#include "observe/facts/number_forms.h"
#include "observe/judge/tracer.h"
#include "observe/known_functions.h"

namespace fastjit::observe {

bool Tracer::reads_place() {
  const unsigned char* op = top().ops + 2 * top().offset;
  return !varying_.empty() && host_.on_found_number && is_load(op[0], op[1]);
}

// CALL: of typing.cast(type, value), with what the instruction at hand loads as the value.
bool Tracer::gives_back_next(const Instruction& call) {
  const Frame& f = top();
  if (call.op != k_CALL || call.argument != 2) return false;
  const int load = f.ops[2 * f.offset];
  const int operands = load == k_LOAD_ATTR ? 1 : load == k_LOAD_GLOBAL || load == k_LOAD_DEREF ? 0 : 2;
  PyObject *low = operand(operands + 3), *high = operand(operands + 2);
  return (kSelfOnTop ? low : high) == imported("typing:cast").get() && !(kSelfOnTop ? high : low);
}

// Whether nothing but an instruction that reads its items gets the tuple that the one at hand loads.
bool Tracer::is_taken_apart_next() {
  const Frame& f = top();
  const int end = static_cast<int>(Py_SIZE(f.code));
  Instruction next = next_of(f.ops, end, f.offset);
  const auto is_int = [&] {
    if (next.op == k_LOAD_CONST) return PyLong_CheckExact(PyTuple_GET_ITEM(f.code->co_consts, next.argument)) != 0;
    PyObject* local = loads_local(next) ? local_of(f.frame, next.argument) : nullptr;
    return next.op == k_LOAD_SMALL_INT || (local && PyLong_CheckExact(local));
  };
  if (is_int()) return reads_item(next_of(f.ops, end, next.offset));
  if (next.op == k_PRECALL) next = next_of(f.ops, end, next.offset);
  if (gives_back_next(next)) next = next_of(f.ops, end, next.offset);
  return next.op == k_UNPACK_SEQUENCE || next.op == k_UNPACK_EX;
}

// Whether the instruction at hand reads a number that differs from call to call, or (form not null) a tuple with such
// numbers.
bool Tracer::varies(const void* container, PyObject* key, Py_ssize_t index, PyObject* now, Ref* form) {
  if (varying_.varies(container, key, index, now)) return true;
  *form = varying_.form(container, key, index, now);
  return *form && is_taken_apart_next();
}

// True: a number that differs from call to call is read, and all is noted.
bool Tracer::opens_key(Facts::Id id, PyObject* name, const std::string& label) {
  PyObject* dict = reads_place() ? facts_->node(id).object : nullptr;
  Ref form;
  if (!dict || !varies(dict, name, -1, dict_lookup(dict, name, nullptr), &form)) return false;
  return opens(facts_->open_key(id, name, form.get(), label, where()), label);
}

bool Tracer::opens_item(Facts::Id id, Py_ssize_t index, const std::string& label) {
  PyObject* list = reads_place() ? facts_->node(id).object : nullptr;
  Ref form;
  if (!list || !varies(list, nullptr, index, PyList_GET_ITEM(list, index), &form)) return false;
  return opens(facts_->open_item(id, index, form.get(), where()), label);
}

bool Tracer::opens_place(PyObject* place, Node::Kind kind, const std::string& label) {
  if (!reads_place()) return false;
  PyObject* now = kind == Node::Kind::Cell ? PyCell_GET(place) : *reinterpret_cast<PyObject**>(place);
  Ref form;
  if (!varies(place, nullptr, -1, now, &form)) return false;
  return opens(facts_->open_place(place, kind, form.get(), label, where()), label);
}

bool Tracer::opens(size_t which, const std::string& label) {
  if (which == Facts::kNone) return false;
  for (const size_t end = facts_->next_place(which); own_numbers_.size() < end;) {
    const Py_ssize_t element = facts_->element(own_numbers_.size());
    const std::string name = element < 0 ? label : label + "[" + std::to_string(element) + "]";
    own_numbers_.push_back({WatchedNumbers::kNone, nullptr, name});
  }
  top().found_number = which;
  return true;
}

// The call's own object for a number of the facts, borrowed, the same for each read. Null: it is a fact by value.
PyObject* Tracer::own_number(size_t which) {
  OwnNumber& one = own_numbers_[which];
  if (facts_->is_pinned(which) || one.watched != WatchedNumbers::kNone)
    return facts_->is_pinned(which) ? nullptr : one.own;
  PyObject* number = facts_->number(which);
  const bool is_nan = PyFloat_CheckExact(number) && std::isnan(PyFloat_AS_DOUBLE(number));  // see worth_replacing()
  const Ref own = Ref::steal(is_nan || !fits_program(number) ? nullptr : own_copy(number));
  if (!own) return PyErr_Clear(), facts_->pin_number(which), nullptr;
  one.watched = numbers_.size();
  one.own = own.get();  // the watched numbers hold it
  watch_scalar(one.own, number, host_.on_found_number(host_.context, one.own, one.label.c_str()));
  return one.own;
}

// The instruction has left the number on the stack, or the tuple that holds it: the call's own object takes its place.
void Tracer::take_found(size_t which) {
  PyObject *tuple = facts_->tuple_of(which), *read = top().stack.at_or_null(1);
  const size_t end = facts_->next_place(which);
  Ref taken = Ref::share(read == (tuple ? tuple : facts_->number(which)) ? read : nullptr);
  for (size_t i = which; i < end && taken; ++i)
    if (PyObject* own = own_number(i))
      taken = tuple ? with_element(taken.get(), facts_->element(i), own) : Ref::share(own);
  if (taken && taken.get() != read) top().stack.replace(1, Py_NewRef(taken.get()));
  while (!taken && which < end) facts_->pin_number(which++);
}

// `step = 0`, then `step += 1`: the next call finds another number than the one after it.
void Tracer::note_counter(const SideEffect& old, const SideEffect& next) {
  using Kind = SideEffect::Kind;
  PyObject* was = old.value.get();
  if (old.of_argument || !is_number(was) || Py_TYPE(was) != Py_TYPE(next.value.get())) return;
  if (same_bits(was, next.value.get())) return;
  const void* container = old.target.get();
  if (old.kind == Kind::SetSlot) container = reinterpret_cast<const char*>(container) + old.place;
  const Py_ssize_t index = old.kind == Kind::SetIndex ? old.place : -1;
  counters_.push_back({container, Ref::share(old.key.get()), index});
}

// What was used otherwise than a program can is a fact by value, and the other way round.
void Tracer::settle_found() {
  for (size_t i = 0; i < own_numbers_.size(); ++i) {
    const size_t watched = own_numbers_[i].watched;
    if (watched == WatchedNumbers::kNone || !numbers_.is_open(watched))
      facts_->pin_number(i);
    else if (facts_->is_pinned(i))
      numbers_.close(watched);
  }
}

// Those that the facts find again.
std::vector<size_t> Tracer::found_numbers() const {
  std::vector<size_t> out;
  for (const OwnNumber& one : own_numbers_)
    if (one.watched != WatchedNumbers::kNone && numbers_.is_open(one.watched)) out.push_back(one.watched);
  return out;
}

}  // namespace fastjit::observe
#endif
