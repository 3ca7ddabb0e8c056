#include "dispatch/call/script_slots.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/jit/api/object.h>

#include <algorithm>

namespace fastjit::dispatch {
namespace {

const void* address_of(const c10::IValue& value) {
  if (value.isTensor()) return value.unsafeToTensorImpl();
  return value.isObject() ? &value.toObjectRef() : nullptr;
}

bool same(const c10::IValue& a, const c10::IValue& b);

bool same_items(c10::ArrayRef<c10::IValue> a, c10::ArrayRef<c10::IValue> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
}

bool same(const c10::IValue& a, const c10::IValue& b) {
  if (a.isList() && b.isList()) {
    const c10::List<c10::IValue> left = a.toList(), right = b.toList();
    const std::vector<c10::IValue> x(left.begin(), left.end()), y(right.begin(), right.end());
    return same_items(x, y);
  }
  if (a.isTuple() && b.isTuple()) return same_items(a.toTupleRef().elements(), b.toTupleRef().elements());
  if (a.isString() && b.isString()) return a.toStringRef() == b.toStringRef();
  return a.is(b);
}

// A list may be changed where it is.
c10::IValue own_copy(const c10::IValue& value) { return value.isList() ? c10::IValue(value.toList().copy()) : value; }

}  // namespace

ScriptSlots::ScriptSlots(PyObject* script_object, std::vector<Path> paths, PyObject* update)
    : root_(pybind11::cast<const torch::jit::Object&>(pybind11::handle(script_object))._ivalue()),
      paths_(std::move(paths)),
      update_(observe::Ref::share(update)) {
  find_slots();
}

void ScriptSlots::find_slots() {
  std::vector<Slot> slots;
  for (const Path& path : paths_) {
    const c10::ivalue::Object* owner =
        path.parent < 0 ? root_.get() : static_cast<const c10::ivalue::Object*>(slots[path.parent].address);
    const size_t index = owner->type()->getAttributeSlot(path.name);
    const c10::IValue& value = owner->getSlot(index);
    const void* address = address_of(value);
    slots.push_back({owner, index, address ? c10::IValue() : own_copy(value), address});
  }
  slots_ = std::move(slots);
}

bool ScriptSlots::is_current() const noexcept {
  return std::ranges::all_of(slots_, [](const Slot& slot) {
    const c10::IValue& now = slot.owner->getSlot(slot.index);
    return slot.address ? address_of(now) == slot.address : same(now, slot.kept);
  });
}

bool ScriptSlots::make_anew() {
  if (!observe::Ref::steal(PyObject_CallNoArgs(update_.get())).get()) return false;
  find_slots();
  return true;
}

int ScriptSlots::traverse(visitproc visit, void* arg) const {
  Py_VISIT(update_.get());
  return 0;
}

}  // namespace fastjit::dispatch
