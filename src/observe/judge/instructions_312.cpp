// Instructions that 3.12, 3.13 or 3.14 brought. Each is judged as what 3.11 does in several.
#include "observe/observe.h"

#if FASTJIT_OBSERVES && PY_VERSION_HEX >= 0x030C0000
#include <iterator>

#include "observe/judge/tracer.h"

namespace fastjit::observe {

// A cell of a comprehension that is part of its function.
void Tracer::make_cell(int oparg) { top().made_cell = oparg; }

void Tracer::binary_slice(int) {
  PyObject *stop = at(1), *start = at(2), *container = at(3);
  subscript_of(container, slice_of(start, stop));
}

void Tracer::store_slice(int) {
  PyObject *stop = at(1), *start = at(2), *container = at(3), *value = at(4);
  store_item(container, slice_of(start, stop), value);
}

// Held until the recording ends. What sizes are for, whoever has the slice says, as behind BUILD_SLICE.
PyObject* Tracer::slice_of(PyObject* start, PyObject* stop) {
  for (PyObject* end : {start, stop})
    if (!is_size(end)) touch(end);
  slices_held_.push_back(Ref::steal(PySlice_New(start, stop, nullptr)));
  return slices_held_.back().get();
}

void Tracer::load_super_attr_op(int oparg) {
  PyObject *self = at(1), *type = at(2), *callable = at(3);
  if (callable != (PyObject*)&PySuper_Type) return deny("call of " + name_of(callable));
  Ref super = Ref::steal(PyObject_CallFunctionObjArgs(callable, type, self, nullptr));
  if (!super) return PyErr_Clear(), deny("call of super");
  constexpr int kFlags = 2;
  load_super_attr(super.get(), name_at(oparg >> kFlags));
}

void Tracer::intrinsic(int oparg) {
  enum { kStopIterationError = 3, kUnaryPositive = 5, kListToTuple = 6 };
  if (oparg == kUnaryPositive) return unary(0);
  if (oparg != kStopIterationError && oparg != kListToTuple) never(oparg);
}

#if PY_VERSION_HEX >= 0x030D0000
void Tracer::call_kw(int oparg) {
  top().kwnames = at(1);
  call_below(1, oparg);
}

void Tracer::format_simple(int) { format_value(0); }

void Tracer::format_with_spec(int) {
  constexpr int kHasSpec = 4;
  format_value(kHasSpec);
}
#endif

#if PY_VERSION_HEX >= 0x030E0000
// What `with` does in one instruction before 3.14.
void Tracer::load_special(int oparg) {
  constexpr const char* kNames[] = {"__enter__", "__exit__"};
  if (static_cast<size_t>(oparg) >= std::size(kNames)) return never(oparg);
  enters_with(kNames[oparg]);
}
#endif

}  // namespace fastjit::observe
#endif
