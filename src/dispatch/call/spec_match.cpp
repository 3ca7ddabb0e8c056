#include <algorithm>
#include <bit>

#include "dispatch/call/plain_class.h"
#include "dispatch/call/tensor_match.h"
#include "observe/observe.h"

namespace fastjit::dispatch {
namespace {

bool keys_equal(PyObject* a, PyObject* b) noexcept {
  if (a == b) return true;
  if (!a || !b) return (a ? PyTuple_GET_SIZE(a) : PyTuple_GET_SIZE(b)) == 0;
  const Py_ssize_t n = PyTuple_GET_SIZE(a);
  if (PyTuple_GET_SIZE(b) != n) return false;
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject *x = PyTuple_GET_ITEM(a, i), *y = PyTuple_GET_ITEM(b, i);
    if (x != y && (!PyUnicode_CheckExact(x) || !PyUnicode_CheckExact(y) || PyUnicode_Compare(x, y) != 0)) return false;
  }
  return true;
}

bool equal_int(PyObject* a, PyObject* b) noexcept {
  if (a == b) return true;
  const auto *x = reinterpret_cast<PyLongObject*>(a), *y = reinterpret_cast<PyLongObject*>(b);
  const Py_ssize_t bytes = static_cast<Py_ssize_t>(_PyLong_NumBits(a) / 8);
  if (bytes < 7 && _PyLong_NumBits(b) / 8 < 7) return PyLong_AsLongLong(a) == PyLong_AsLongLong(b);
  return Py_SIZE(x) == Py_SIZE(y) && PyObject_RichCompareBool(a, b, Py_EQ) == 1;
}

// Walks the specs beside the arguments.
struct Matcher {
  const ArgSpec* spec;
  PyObject** tensors;
  PyObject** numbers;
  PyObject** targets;
  size_t tensor = 0, number = 0;

  bool one(PyObject* object) noexcept {
    const ArgSpec& s = *spec++;
    if (s.again && targets[s.target] != object) return false;
    if (s.target >= 0) targets[s.target] = object;
    switch (s.kind) {
      case ArgKind::Tensor:
        if (!s.tensor.matches(object)) return false;
        if (s.same_as >= 0 && tensors[s.same_as] != object) return false;
        if (s.bare && has_attributes(object)) return false;
        tensors[tensor++] = object;
        return true;
      case ArgKind::None:
        return object == Py_None;
      case ArgKind::Bool:
        return object == s.object;
      case ArgKind::Int:
        return PyLong_CheckExact(object) && equal_int(object, s.object);
      case ArgKind::Float:
        return PyFloat_CheckExact(object) &&
               std::bit_cast<uint64_t>(PyFloat_AS_DOUBLE(object)) == std::bit_cast<uint64_t>(s.number);
      case ArgKind::Number:
        if (Py_TYPE(object) != s.type || !observe::fits_program(object)) return false;
        numbers[number++] = object;
        return true;
      case ArgKind::Text:
        return object == s.object || (PyUnicode_CheckExact(object) && PyUnicode_Compare(object, s.object) == 0);
      case ArgKind::Tuple:
        return Py_TYPE(object) == (s.type ? s.type : &PyTuple_Type) && items(object, s.length);
      case ArgKind::List:
        return PyList_CheckExact(object) && items(object, s.length);
      case ArgKind::Dict:
        return PyDict_CheckExact(object) && entries(object, s);
      case ArgKind::Empty:
        return Py_TYPE(object) == s.type && observe::is_empty_container(object);
      case ArgKind::Instance:
        return Py_TYPE(object) == s.type && entries(attributes_of(object), s);
      case ArgKind::Object:
        return object == referent(s);
    }
    return false;
  }

  bool items(PyObject* object, Py_ssize_t length) noexcept {
    if (PySequence_Fast_GET_SIZE(object) != length) return false;
    PyObject** item = PySequence_Fast_ITEMS(object);
    for (Py_ssize_t i = 0; i < length; ++i)
      if (!one(item[i])) return false;
    return true;
  }

  bool entries(PyObject* dict, const ArgSpec& s) noexcept {
    if ((dict ? PyDict_GET_SIZE(dict) : 0) != s.length) return false;
    Py_ssize_t at = 0, i = 0;
    PyObject *key, *value;
    while (dict && PyDict_Next(dict, &at, &key, &value)) {
      PyObject* expected = PyTuple_GET_ITEM(s.object, i++);
      if (key != expected &&
          !(PyUnicode_CheckExact(key) && PyUnicode_CheckExact(expected) && PyUnicode_Compare(key, expected) == 0))
        return false;
      if (!one(value)) return false;
    }
    return true;
  }
};

// How often what the specs describe, or its attribute dictionary, is one of some objects.
struct Counter {
  const ArgSpec* spec;
  const std::vector<PyObject*>& sorted;
  size_t seen = 0;

  void count(PyObject* object) noexcept { seen += std::binary_search(sorted.begin(), sorted.end(), object); }

  void one(PyObject* object) noexcept {
    const ArgSpec& s = *spec++;
    count(object);
    if (s.kind == ArgKind::Tuple || s.kind == ArgKind::List)
      for (Py_ssize_t i = 0; i < s.length; ++i) one(PySequence_Fast_ITEMS(object)[i]);
    PyObject* attributes = s.kind == ArgKind::Instance ? attributes_of(object) : nullptr;
    if (attributes) count(attributes);
    PyObject* entries = s.kind == ArgKind::Dict ? object : attributes;
    PyObject *key, *value;
    for (Py_ssize_t at = 0; entries && PyDict_Next(entries, &at, &key, &value);) one(value);
  }
};

// Whether a container or instance in an argument is one of these objects. No Python code runs.
bool reaches(PyObject* object, const std::vector<const PyObject*>& excluded, int depth = 0) noexcept {
  if (depth > kMaxArgumentDepth) return true;
  const auto is_excluded = [&](const PyObject* o) {
    return std::find(excluded.begin(), excluded.end(), o) != excluded.end();
  };
  if (is_excluded(object)) return true;
  if (PyTuple_Check(object) || PyList_CheckExact(object)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i)
      if (reaches(PySequence_Fast_ITEMS(object)[i], excluded, depth + 1)) return true;
    return false;
  }
  const bool is_instance = !PyDict_CheckExact(object) && (Py_TYPE(object)->tp_flags & Py_TPFLAGS_HEAPTYPE);
  PyObject* entries = PyDict_CheckExact(object) ? object : is_instance ? attributes_of(object) : nullptr;
  if (!entries) return false;
  if (is_excluded(entries)) return true;
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(entries, &at, &key, &value);)
    if (reaches(value, excluded, depth + 1)) return true;
  return false;
}

}  // namespace

bool CallSpec::targets_are_apart(PyObject* const* args, Py_ssize_t total, PyObject* const* targets) const noexcept {
  const size_t count = target_places_.size();
  std::vector<PyObject*> sorted(targets, targets + count);
  size_t expected = 0;
  for (size_t i = 0; i < count; ++i) {
    const bool is_instance =
        !is_plain_tensor(targets[i]) && !PyList_CheckExact(targets[i]) && !PyDict_CheckExact(targets[i]);
    PyObject* attributes = is_instance ? attributes_of(targets[i]) : nullptr;
    if (attributes) sorted.push_back(attributes);
    expected += target_places_[i] * (attributes ? 2 : 1);
  }
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) return false;
  Counter counter{specs_.data(), sorted};
  for (Py_ssize_t i = 0; i < total; ++i) counter.one(args[i]);
  const auto is_known = [&](const void* one) { return std::binary_search(apart_.begin(), apart_.end(), one); };
  return counter.seen == expected && std::none_of(sorted.begin(), sorted.end(), is_known);
}

void CallSpec::exclude(std::vector<const PyObject*> objects) {
  const auto holds = [](const ArgSpec& spec) {
    return spec.kind == ArgKind::List || spec.kind == ArgKind::Dict || spec.kind == ArgKind::Instance;
  };
  if (std::any_of(specs_.begin(), specs_.end(), holds)) excluded_ = std::move(objects);
}

bool CallSpec::match(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, PyObject** tensors,
                     PyObject** numbers) const noexcept {
  if (nargs != nargs_ || ((kwnames || kwnames_) && !keys_equal(kwnames, kwnames_))) return false;
  Matcher matcher{specs_.data(), tensors, numbers, tensors + tensors_};
  const Py_ssize_t total = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
  for (Py_ssize_t i = 0; i < total; ++i)
    if (!matcher.one(args[i])) return false;
  for (Py_ssize_t i = 0; !excluded_.empty() && i < total; ++i)
    if (reaches(args[i], excluded_)) return false;
  if (!target_places_.empty() && !targets_are_apart(args, total, tensors + tensors_)) return false;
  for (const Identity& it : identities_)
    if ((tensors[it.tensor] == (it.other < 0 ? it.object : tensors[it.other])) != it.same) return false;
  return true;
}

bool CallSpec::same_but_sizes(const CallSpec& other, bool but_ints) const {
  if (nargs_ != other.nargs_ || specs_.size() != other.specs_.size() || !keys_equal(kwnames_, other.kwnames_))
    return false;
  for (size_t i = 0; i < specs_.size(); ++i) {
    const ArgSpec &a = specs_[i], &b = other.specs_[i];
    const ArgSpec& number = a.kind == ArgKind::Number ? a : b;
    const ArgSpec& other = a.kind == ArgKind::Number ? b : a;
    if (number.kind == ArgKind::Number && other.kind == (number.type == &PyFloat_Type ? ArgKind::Float : ArgKind::Int))
      continue;
    if (a.kind != b.kind || a.length != b.length || a.same_as != b.same_as || a.type != b.type) return false;
    if (a.kind == ArgKind::Tensor && !a.tensor.same_but_sizes(b.tensor)) return false;
    if (a.kind == ArgKind::Int && !but_ints && !equal_int(a.object, b.object)) return false;
    if (a.kind == ArgKind::Float && std::bit_cast<uint64_t>(a.number) != std::bit_cast<uint64_t>(b.number))
      return false;
    if (a.kind == ArgKind::Bool && a.object != b.object) return false;
    if (a.kind == ArgKind::Text && PyUnicode_Compare(a.object, b.object) != 0) return false;
  }
  return true;
}

bool TensorSpec::matches_but_free(const int64_t* size, const int64_t* stride) const noexcept {
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (!(free_sizes >> d & 1) && size[d] != sizes[d]) return false;
    if (!(free_strides >> d & 1) && stride[d] != strides[d]) return false;
  }
  return true;
}

void CallSpec::free_sizes(size_t tensor, const ir::Layout& layout, uint64_t hash) {
  size_t next = 0;
  for (ArgSpec& spec : specs_) {
    if (spec.kind != ArgKind::Tensor) continue;
    if (next++ != tensor && spec.same_as != static_cast<int>(tensor)) continue;
    for (size_t d = 0; d < layout.sizes.size(); ++d) {
      spec.tensor.free_sizes |= uint64_t{layout.sizes[d].is_symbolic()} << d;
      spec.tensor.free_strides |= uint64_t{layout.strides[d].is_symbolic()} << d;
    }
  }
  hash_ = hash;
  has_free_sizes_ = true;
}

std::vector<uint64_t> CallSpec::other_sizes(const CallSpec& other) const {
  std::vector<uint64_t> out;
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (specs_[i].kind != ArgKind::Tensor) continue;
    const std::vector<int64_t>&own = specs_[i].tensor.sizes, &others = other.specs_[i].tensor.sizes;
    out.push_back(other.specs_[i].tensor.free_sizes);
    for (size_t d = 0; d < std::min(own.size(), size_t{64}); ++d) out.back() |= uint64_t{own[d] != others[d]} << d;
  }
  return out;
}

bool CallSpec::same_sizes(const CallSpec& other) const {
  return std::equal(specs_.begin(), specs_.end(), other.specs_.begin(), [](const ArgSpec& a, const ArgSpec& b) {
    return a.tensor.sizes == b.tensor.sizes && a.tensor.strides == b.tensor.strides;
  });
}

bool CallSpec::same_objects(const CallSpec& other) const {
  const auto one = [](const std::vector<Identity>& all) {
    std::vector<std::pair<int, PyObject*>> out;
    for (const Identity& it : all)
      if (it.same) out.emplace_back(it.tensor, it.object);
    return out;
  };
  const auto same = [](const ArgSpec& a, const ArgSpec& b) { return a.same_as == b.same_as; };
  return std::ranges::equal(specs_, other.specs_, same) && one(identities_) == one(other.identities_);
}

}  // namespace fastjit::dispatch
