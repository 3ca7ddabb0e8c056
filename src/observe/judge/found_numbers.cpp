// Numbers in places that hold another one from call to call: the call gets an object of its own for each, which is
// watched as its number arguments are. Of the place only the type is a fact.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>
#include <cmath>

#include "observe/events/opcode_numbers.h"
#include "observe/judge/tracer.h"

namespace fastjit::observe {

bool Tracer::reads_place() {
  const unsigned char* op = top().ops + 2 * top().offset;
  return !varying_.empty() && host_.on_found_number && is_load(op[0], op[1]);
}

// True: a number that differs from call to call is read, and all is noted.
bool Tracer::opens_key(Facts::Id id, PyObject* name, const std::string& label) {
  PyObject* dict = reads_place() ? facts_->node(id).object : nullptr;
  if (!dict || !varying_.varies(dict, name, -1, dict_lookup(dict, name, nullptr))) return false;
  return opens(facts_->open_key(id, name, label, where()), label);
}

bool Tracer::opens_item(Facts::Id id, Py_ssize_t index, const std::string& label) {
  PyObject* list = reads_place() ? facts_->node(id).object : nullptr;
  if (!list || !varying_.varies(list, nullptr, index, PyList_GET_ITEM(list, index))) return false;
  return opens(facts_->open_item(id, index, where()), label);
}

bool Tracer::opens_place(PyObject* place, Node::Kind kind, const std::string& label) {
  if (!reads_place()) return false;
  PyObject* now = kind == Node::Kind::Cell ? PyCell_GET(place) : *reinterpret_cast<PyObject**>(place);
  if (!varying_.varies(place, nullptr, -1, now)) return false;
  return opens(facts_->open_place(place, kind, label, where()), label);
}

bool Tracer::opens(size_t which, const std::string& label) {
  if (which == Facts::kNone) return false;
  if (which == own_numbers_.size()) own_numbers_.push_back({WatchedNumbers::kNone, nullptr, label});
  top().found_number = which;
  return true;
}

// The instruction has left the number on the stack: the call's own object takes its place, the same for each read.
void Tracer::take_found(size_t which) {
  OwnNumber& one = own_numbers_[which];
  PyObject* number = facts_->number(which);
  const bool is_new = one.watched == WatchedNumbers::kNone;
  const bool is_nan = PyFloat_CheckExact(number) && std::isnan(PyFloat_AS_DOUBLE(number));  // see worth_replacing()
  PyObject* own = !is_new ? one.own : is_nan || !fits_program(number) ? nullptr : own_copy(number);
  if (!own) PyErr_Clear();
  if (!own || facts_->is_pinned(which) || top().stack.at_or_null(1) != number) {
    if (is_new) Py_XDECREF(own);
    return facts_->pin_number(which);
  }
  if (is_new) {
    one.watched = numbers_.size();
    one.own = own;
    watch_scalar(own, number, host_.on_found_number(host_.context, own, one.label.c_str()));
    Py_DECREF(own);  // the watched numbers hold it
  }
  top().stack.replace(1, Py_NewRef(own));
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
