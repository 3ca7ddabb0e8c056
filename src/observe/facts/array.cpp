// Arrays of numpy: their elements are compared in place. Needs numpy neither to build nor to run.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <cstring>

#include "observe/facts/facts.h"
#include "support/work.h"

namespace fastjit::observe {
namespace {

/// What an array begins with, the same in numpy 1 and 2 (ndarraytypes.h, PyArrayObject_fields).
struct ArrayObject {
  PyObject_HEAD char* data;
  int dims;
  Py_ssize_t *sizes, *strides;
  PyObject *base, *type;
  int flags;
};

constexpr int kWriteable = 0x400;

/// Compares with `expected`, which lies without gaps; the first byte behind what was compared, null where they differ.
const char* same_elements(const ArrayObject* a, int dim, const char* at, const char* expected, Py_ssize_t item) {
  const bool is_run = dim + 1 == a->dims && a->strides[dim] == item;
  if (const Py_ssize_t bytes = is_run ? a->sizes[dim] * item : item; is_run || dim == a->dims)
    return std::memcmp(at, expected, static_cast<size_t>(bytes)) ? nullptr : expected + bytes;
  for (Py_ssize_t i = 0; expected && i < a->sizes[dim]; ++i)
    expected = same_elements(a, dim + 1, at + i * a->strides[dim], expected, item);
  return expected;
}

size_t bytes_of_sizes(const ArrayObject* a) { return static_cast<size_t>(a->dims) * sizeof(Py_ssize_t); }

}  // namespace

bool is_array(PyObject* o) noexcept {
  return !(Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE) && !std::strcmp(Py_TYPE(o)->tp_name, "numpy.ndarray");
}

PyObject* base_of_array(PyObject* array) noexcept { return reinterpret_cast<ArrayObject*>(array)->base; }

PyObject* owner_of_array(PyObject* array) noexcept {
  for (PyObject* base = array; base && is_array(base); base = base_of_array(base)) array = base;
  return array;
}

const void* data_of_array(PyObject* array) noexcept { return reinterpret_cast<ArrayObject*>(array)->data; }

bool holds_elements(const Node& n) noexcept {
  const auto* a = reinterpret_cast<const ArrayObject*>(n.object);
  PyObject *elements = n.parts[0].get(), *sizes = n.parts[1].get();
  if (a->type != n.parts[2].get() || bytes_of_sizes(a) != static_cast<size_t>(PyBytes_GET_SIZE(sizes))) return false;
  if (std::memcmp(a->sizes, PyBytes_AS_STRING(sizes), bytes_of_sizes(a))) return false;
  support::count_work(static_cast<size_t>(PyBytes_GET_SIZE(elements)) / sizeof(uint64_t));
  return same_elements(a, 0, a->data, PyBytes_AS_STRING(elements), static_cast<Py_ssize_t>(n.value)) != nullptr;
}

char* first_byte(const Node& n) noexcept {
  const auto* a = reinterpret_cast<const ArrayObject*>(n.object);
  return PyBytes_GET_SIZE(n.parts[0].get()) && (a->flags & kWriteable) ? a->data : nullptr;
}

bool Facts::array(PyObject* o, const std::string& label, const std::string& where) {
  if (const Id known = find(o, Node::Kind::Array); known >= 0) {
    if (!holds_elements(node(known))) changed(label, where);
    return true;
  }
  Py_buffer view;
  if (PyObject_GetBuffer(o, &view, PyBUF_FULL_RO) < 0) return PyErr_Clear(), false;
  const std::string_view format = view.format;  // numbers of the machine's own byte order
  const bool is_plain = format.size() == 1 && std::string_view("?bBhHiIlLqQefd").find(format[0]) != format.npos;
  Ref elements =
      is_plain && view.len <= kMostArrayBytes ? Ref::steal(PyBytes_FromStringAndSize(nullptr, view.len)) : Ref();
  const bool fits = elements && PyBuffer_ToContiguous(PyBytes_AS_STRING(elements.get()), &view, view.len, 'C') == 0;
  const auto item = static_cast<uint64_t>(view.itemsize);
  PyBuffer_Release(&view);
  if (!fits) return PyErr_Clear(), false;
  const auto* a = reinterpret_cast<const ArrayObject*>(o);
  Node& n = node(add(o, Node::Kind::Array, label, where));
  n.value = item;
  n.parts[0] = std::move(elements);
  n.parts[1] = Ref::steal(
      PyBytes_FromStringAndSize(reinterpret_cast<const char*>(a->sizes), static_cast<Py_ssize_t>(bytes_of_sizes(a))));
  n.parts[2] = Ref::share(a->type);
  return bool(n.parts[1]);
}

}  // namespace fastjit::observe
#endif
