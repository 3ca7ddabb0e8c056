// What a call reads of numbers where that is no fact: in the rest of a call that is unsound, and in what a call has
// made, which the next one may find. Only the next recording asks for it, so as not to take these for constants.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include "observe/events/opcode_numbers.h"
#include "observe/facts/number_forms.h"
#include "observe/judge/tracer.h"

namespace fastjit::observe {

// The first number that was read there counts: where the call has changed it since, the next one finds another.
void Tracer::note_place(const void* container, PyObject* key, Py_ssize_t index, PyObject* number) {
  if (!(is_number(number) || holds_numbers(number)) || notes_.full() || notes_.find(container, key, index)) return;
  for (Py_ssize_t i = 0; PyTuple_CheckExact(number) && i < PyTuple_GET_SIZE(number); ++i)
    if (numbers_.contains(PyTuple_GET_ITEM(number, i))) return;
  // An object of the call's own is not held: whether somebody keeps it is a question that is asked of it.
  Ref first = numbers_.contains(number) ? Ref::steal(own_copy(number)) : Ref::share(number);
  if (!first) return PyErr_Clear();
  notes_.add({container, Ref::share(key), index, std::move(first)});
}

void Tracer::note_item(PyObject* container, PyObject* index) {
  if (is_dict(container) && is_constant(index)) {
    note_place(container, index, -1, dict_lookup(container, index, nullptr));
  } else if (PyList_CheckExact(container) && PyLong_CheckExact(index)) {
    int overflow = 0;
    Py_ssize_t i = PyLong_AsLongAndOverflow(index, &overflow);
    if (i < 0) i += PyList_GET_SIZE(container);
    if (!overflow && i >= 0 && i < PyList_GET_SIZE(container))
      note_place(container, nullptr, i, PyList_GET_ITEM(container, i));
  }
}

void Tracer::note_attribute(PyObject* o, PyObject* name) {
  if (PyType_Check(o)) return;
  PyObject* attr = type_lookup(Py_TYPE(o), name, nullptr);
  if (PyObject** slot = attr ? slot_of(o, attr) : nullptr) return note_place(slot, nullptr, -1, *slot);
  PyObject** own = _PyObject_GetDictPtr(o);
  if (own && *own && PyDict_CheckExact(*own)) note_place(*own, name, -1, dict_lookup(*own, name, nullptr));
}

void Tracer::note(InterpreterFrame* frame, int op, int oparg, const StackView& stack) {
  const auto name = [&](int i) { return PyTuple_GET_ITEM(code_of(frame)->co_names, i); };
  if (op == k_LOAD_ATTR) {
    note_attribute(stack.at(1), name(oparg >> kAttrShift));
  } else if (op == k_LOAD_GLOBAL) {
    if (PyDict_CheckExact(frame->globals))
      note_place(frame->globals, name(oparg >> 1), -1, dict_lookup(frame->globals, name(oparg >> 1), nullptr));
  } else if (op == k_LOAD_DEREF) {
    PyObject* cell = local_of(frame, oparg);
    if (cell && PyCell_Check(cell)) note_place(cell, nullptr, -1, PyCell_GET(cell));
  } else {
    note_item(stack.at(2), stack.at(1));
  }
}

// In the order of what may be left out.
std::vector<NumberPlace> Tracer::numbers_for_next() {
  PlacesOfNumbers all;
  all.add(facts_->known_numbers());
  all.add(std::move(counters_));
  all.add(notes_.take());
  all.add(varying_.take());
  return all.take();
}

}  // namespace fastjit::observe
#endif
