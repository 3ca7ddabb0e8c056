#include <bit>

#include "dispatch/call/spec.h"
#include "observe/observe.h"

namespace fastjit::dispatch {
namespace {

// What Matcher compares, without the values of numbers: they may be run-time scalars of the program. With `values`:
// with them, and without the identity of objects.
struct Hasher {
  const ByContent& classes;
  bool values = false;
  bool sizes = true;
  uint64_t state = 0x9e3779b97f4a7c15;

  void mix(uint64_t value) noexcept { state = std::rotl(state ^ value, 29) * 0xbf58476d1ce4e5b9; }
  void mix(const void* address) noexcept { mix(std::bit_cast<uintptr_t>(address)); }

  void one(PyObject* object, int depth) noexcept {
    if (is_plain_tensor(object)) {
      const at::TensorImpl* impl = unpack(object).unsafeGetTensorImpl();
      mix(static_cast<uint64_t>(c10::typeMetaToScalarType(impl->dtype())));
      if (!has_strides(impl)) return mix(object);
      if (!sizes) return mix(static_cast<uint64_t>(impl->dim()));
      for (const int64_t size : impl->sizes()) mix(static_cast<uint64_t>(size));
      for (const int64_t stride : impl->strides()) mix(static_cast<uint64_t>(stride));
    } else if (PyLong_CheckExact(object) || PyFloat_CheckExact(object)) {
      mix(Py_TYPE(object));
      if (values) mix(static_cast<uint64_t>(PyObject_Hash(object)));
    } else if (PyUnicode_CheckExact(object)) {
      mix(static_cast<uint64_t>(PyObject_Hash(object)));
    } else if (PyTuple_Check(object) || PyList_CheckExact(object)) {
      items(PySequence_Fast_ITEMS(object), PySequence_Fast_GET_SIZE(object), depth + 1);
    } else if (PyDict_CheckExact(object)) {
      Py_ssize_t at = 0;
      PyObject *key, *value;
      mix(static_cast<uint64_t>(PyDict_GET_SIZE(object)));
      while (depth < kMaxArgumentDepth && PyDict_Next(object, &at, &key, &value)) one(value, depth + 1);
    } else if (observe::is_empty_container(object) || contains(classes, Py_TYPE(object))) {
      mix(Py_TYPE(object));
    } else {
      const bool is_itself = !values || object == Py_True || object == Py_False;
      mix(is_itself ? static_cast<const void*>(object)
                    : Py_TYPE(object));  // None, True and False are themselves as well
    }
  }

  void items(PyObject* const* objects, Py_ssize_t count, int depth) noexcept {
    mix(static_cast<uint64_t>(count));
    if (depth > kMaxArgumentDepth) return;  // no key is so deep
    for (Py_ssize_t i = 0; i < count; ++i) one(objects[i], depth);
  }
};

}  // namespace

static uint64_t hash_of(Hasher hasher, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) noexcept {
  hasher.items(args, nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0), 0);
  return hasher.state ^ (hasher.state >> 32);
}

uint64_t call_hash(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, const ByContent& classes) noexcept {
  return hash_of({classes}, args, nargs, kwnames);
}

uint64_t call_hash_of_any_size(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                               const ByContent& classes) noexcept {
  return hash_of({.classes = classes, .sizes = false}, args, nargs, kwnames);
}

uint64_t argument_hash(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, const ByContent& classes) noexcept {
  return hash_of({classes, true}, args, nargs, kwnames);
}

}  // namespace fastjit::dispatch
