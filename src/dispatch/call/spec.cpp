#include "dispatch/call/spec.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <bit>

#include "capture/lower/lower.h"
#include "dispatch/call/plain_class.h"
#include "observe/errors.h"
#include "observe/observe.h"

namespace fastjit::dispatch {
namespace {

bool needs_grad(const at::TensorImpl* impl) noexcept {
  // Without autograd metadata nothing is required; this is the common case and costs one load.
  return impl->autograd_meta() != nullptr && impl->requires_grad();
}

}  // namespace

bool is_plain_tensor(PyObject* object) noexcept { return THPVariable_CheckExact(object); }
const at::Tensor& unpack(PyObject* object) noexcept { return THPVariable_Unpack(object); }

bool has_attributes(PyObject* tensor) noexcept {
  PyObject** slot = _PyObject_GetDictPtr(tensor);
  return slot && *slot && PyDict_GET_SIZE(*slot) > 0;
}

const char* unsupported(const at::Tensor& tensor) noexcept {
  if (!tensor.defined()) return "it is undefined";
  if (!tensor.is_cpu() && !tensor.is_cuda()) return "it is neither on the CPU nor on a CUDA device";
  if (tensor.layout() != at::kStrided) return "it is not strided";
  if (tensor.is_conj() || tensor.is_neg()) return "it has a conjugate or negative bit";
  if (tensor.unsafeGetTensorImpl()->is_python_dispatch()) return "it is a tensor subclass";
  if (tensor.is_quantized() || tensor.is_nested()) return "it is quantised or nested";
  if (tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return "it has symbolic sizes";
  const auto* meta = tensor.unsafeGetTensorImpl()->autograd_meta();
  if (meta && tensor._fw_grad(0).defined()) return "it carries a forward-mode tangent";
  return nullptr;
}

bool has_strides(const at::TensorImpl* impl) noexcept {
  using c10::DispatchKey;
  constexpr c10::DispatchKeySet kWithout({DispatchKey::Sparse, DispatchKey::SparseCsr, DispatchKey::NestedTensor});
  return !impl->key_set().has_any(kWithout) && !impl->has_symbolic_sizes_strides();
}

TensorSpec TensorSpec::of(PyObject* object) {
  const at::Tensor& tensor = unpack(object);
  TensorSpec spec;
  spec.key_set = tensor.key_set().raw_repr();
  spec.dtype = tensor.scalar_type();
  spec.parameter = Py_TYPE(object) == reinterpret_cast<PyTypeObject*>(ParameterClass);
  spec.requires_grad = needs_grad(tensor.unsafeGetTensorImpl());
  if (tensor.is_cuda()) spec.device = tensor.device().index();
  if (!has_strides(tensor.unsafeGetTensorImpl())) return spec;  // unsupported, so never compared
  spec.sizes = tensor.sizes().vec();
  spec.strides = tensor.strides().vec();
  return spec;
}

bool TensorSpec::matches_slowly(const at::Tensor& tensor) const noexcept {
  return tensor.requires_grad() == requires_grad && !tensor._fw_grad(0).defined();
}

bool TensorSpec::same_but_sizes(const TensorSpec& other) const {
  return parameter == other.parameter && key_set == other.key_set && dtype == other.dtype &&
         requires_grad == other.requires_grad && sizes.size() == other.sizes.size();
}

// `free`: those, as bits, that may be any.
static void append_list(std::string& out, char open, const std::vector<int64_t>& values, char close,
                        uint64_t free = 0) {
  out += open;
  for (size_t i = 0; i < values.size(); ++i) {
    if (i) out += ',';
    out += i < 64 && (free >> i & 1) ? "*" : std::to_string(values[i]);
  }
  out += close;
}

std::string repr(PyObject* object) {
  PyObject* text = PyObject_Repr(object);
  const char* chars = text ? PyUnicode_AsUTF8(text) : nullptr;
  std::string out = chars ? chars : "?";
  Py_XDECREF(text);
  observe::forget_error();
  return out;
}

std::string text(const TensorSpec& spec) {
  const auto type = capture::to_ir(spec.dtype);
  std::string out(type ? ir::text(*type) : std::string_view(c10::toString(spec.dtype)));
  append_list(out, '[', spec.sizes, ']', spec.free_sizes);
  if (spec.strides != ir::row_major(spec.sizes)) append_list(out, '(', spec.strides, ')', spec.free_strides);
  if (spec.device >= 0) out += " on cuda:" + std::to_string(spec.device);
  return out;
}

static bool owns_type(const ArgSpec& spec) { return spec.kind == ArgKind::Instance || spec.kind == ArgKind::Tuple; }

static void release(ArgSpec& spec) {
  Py_XDECREF(spec.object);
  if (owns_type(spec)) Py_XDECREF(spec.type);
}

int CallSpec::traverse(visitproc visit, void* arg) const {
  for (const ArgSpec& spec : specs_) {
    Py_VISIT(spec.object);
    if (owns_type(spec)) Py_VISIT(spec.type);
  }
  Py_VISIT(kwnames_);
  return 0;
}

CallSpec::CallSpec(CallSpec&& other) noexcept { *this = std::move(other); }

CallSpec& CallSpec::operator=(CallSpec&& other) noexcept {
  std::swap(specs_, other.specs_);
  std::swap(identities_, other.identities_);
  std::swap(nargs_, other.nargs_);
  std::swap(kwnames_, other.kwnames_);
  std::swap(tensors_, other.tensors_);
  std::swap(symbolic_, other.symbolic_);
  std::swap(target_places_, other.target_places_);
  std::swap(hash_, other.hash_);
  std::swap(excluded_, other.excluded_);
  std::swap(apart_, other.apart_);
  std::swap(flat_, other.flat_);
  std::swap(places_, other.places_);
  std::swap(placed_, other.placed_);
  return *this;
}

CallSpec::~CallSpec() {
  for (ArgSpec& spec : specs_) release(spec);
  Py_XDECREF(kwnames_);
}

bool CallSpec::build(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, const ByContent& classes,
                     std::string& why) {
  nargs_ = nargs;
  kwnames_ = Py_XNewRef(kwnames);
  hash_ = call_hash(args, nargs, kwnames, classes);
  const Py_ssize_t total = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
  for (Py_ssize_t i = 0; i < total; ++i)
    if (!add(args[i], classes, why, 0)) return false;
  return true;
}

bool CallSpec::add_items(PyObject* sequence, ArgSpec spec, const ByContent& classes, std::string& why, int depth) {
  spec.length = PySequence_Fast_GET_SIZE(sequence);
  const Py_ssize_t n = spec.length;
  specs_.push_back(std::move(spec));
  for (Py_ssize_t i = 0; i < n; ++i)
    if (!add(PySequence_Fast_ITEMS(sequence)[i], classes, why, depth + 1)) return false;
  return true;
}

bool CallSpec::add_entries(PyObject* dict, ArgSpec spec, const ByContent& classes, std::string& why, int depth) {
  spec.length = dict ? PyDict_GET_SIZE(dict) : 0;
  spec.object = PyTuple_New(spec.length);
  Py_ssize_t at = 0, i = 0;
  PyObject *key, *value;
  while (dict && PyDict_Next(dict, &at, &key, &value)) PyTuple_SET_ITEM(spec.object, i++, Py_NewRef(key));
  specs_.push_back(std::move(spec));
  at = 0;
  while (dict && PyDict_Next(dict, &at, &key, &value))
    if (!add(value, classes, why, depth + 1)) return false;
  return true;
}

// By identity. A weak reference where the type allows, so that a variant keeps no model alive.
void CallSpec::add_object(PyObject* object) {
  ArgSpec spec{ArgKind::Object};
  spec.type = Py_TYPE(object);
  spec.object = PyWeakref_NewRef(object, nullptr);
  spec.weak = spec.object != nullptr;
  if (!spec.weak) {
    PyErr_Clear();
    spec.object = Py_NewRef(object);
  }
  specs_.push_back(std::move(spec));
}

// False, and nothing added, where there is too much in it to be compared on every call.
bool CallSpec::add_instance(PyObject* object, const ByContent& classes, int depth) {
  constexpr int kDeepest = 3;
  constexpr size_t kMostParts = 512;
  if (depth > kDeepest) return false;
  const size_t parts = specs_.size(), tensors = flat_.tensors.size(), numbers = flat_.numbers.size(),
               instances = flat_.instances.size();
  ArgSpec spec{ArgKind::Instance};
  spec.type = reinterpret_cast<PyTypeObject*>(Py_NewRef(Py_TYPE(object)));
  flat_.instances.push_back(object);
  flat_.dicts.back() = attributes_of(object);
  std::string why;
  if (add_entries(attributes_of(object), std::move(spec), classes, why, depth) && specs_.size() - parts <= kMostParts)
    return true;
  for (; specs_.size() > parts; specs_.pop_back()) release(specs_.back());
  flat_.tensors.resize(tensors_ = tensors);
  flat_.numbers.resize(numbers);
  flat_.instances.resize(instances);
  flat_.objects.resize(parts + 1);  // the instance's own
  flat_.dicts.resize(parts + 1);
  flat_.dicts.back() = nullptr;
  return false;
}

// The first of the tensors so far that is this object; -1: none.
int CallSpec::place_of(PyObject* tensor) {
  constexpr size_t kFew = 16;
  const std::vector<PyObject*>& tensors = flat_.tensors;
  if (tensors.size() <= kFew) {
    const auto found = std::ranges::find(tensors, tensor);
    return found == tensors.end() ? -1 : static_cast<int>(found - tensors.begin());
  }
  if (placed_ > tensors.size()) placed_ = 0, places_.clear();  // some were taken back
  for (; placed_ < tensors.size(); ++placed_) places_.try_emplace(tensors[placed_], static_cast<int>(placed_));
  const auto found = places_.find(tensor);
  return found == places_.end() ? -1 : found->second;
}

bool CallSpec::add(PyObject* object, const ByContent& classes, std::string& why, int depth) {
  if (depth > kMaxArgumentDepth) {
    why = "its arguments are nested more than 8 deep";
    return false;
  }
  flat_.objects.push_back(object);
  flat_.dicts.push_back(nullptr);
  ArgSpec spec{};
  if (is_plain_tensor(object)) {
    spec.kind = ArgKind::Tensor;
    spec.tensor = TensorSpec::of(object);
    spec.same_as = place_of(object);
    flat_.tensors.push_back(object);
    ++tensors_;
  } else if (object == Py_None) {
    spec.kind = ArgKind::None;
  } else if (PyBool_Check(object)) {
    spec.kind = ArgKind::Bool;
    spec.object = Py_NewRef(object);
  } else if (PyLong_CheckExact(object)) {
    spec.kind = ArgKind::Int;
    spec.object = Py_NewRef(object);
    flat_.numbers.push_back(object);
  } else if (PyFloat_CheckExact(object)) {
    spec.kind = ArgKind::Float;
    spec.object = Py_NewRef(object);
    spec.number = PyFloat_AS_DOUBLE(object);
    flat_.numbers.push_back(object);
  } else if (PyUnicode_CheckExact(object)) {
    spec.kind = ArgKind::Text;
    spec.object = Py_NewRef(object);
  } else if (PyTuple_CheckExact(object) || PyList_CheckExact(object)) {
    spec.kind = PyTuple_CheckExact(object) ? ArgKind::Tuple : ArgKind::List;
    return add_items(object, std::move(spec), classes, why, depth);
  } else if (observe::holds_only_items(Py_TYPE(object))) {
    spec.kind = ArgKind::Tuple;
    spec.type = reinterpret_cast<PyTypeObject*>(Py_NewRef(Py_TYPE(object)));
    return add_items(object, std::move(spec), classes, why, depth);
  } else if (PyDict_CheckExact(object)) {
    spec.kind = ArgKind::Dict;
    return add_entries(object, std::move(spec), classes, why, depth);
  } else if (observe::is_empty_container(object)) {
    spec.kind = ArgKind::Empty;
    spec.type = Py_TYPE(object);
  } else if (contains(classes, Py_TYPE(object))) {
    if (!add_instance(object, classes, depth)) add_object(object);
    return true;
  } else if (THPVariable_Check(object)) {
    why = std::string("an argument is a ") + Py_TYPE(object)->tp_name + ", a tensor subclass";
    return false;
  } else {
    add_object(object);
    return true;
  }
  specs_.push_back(std::move(spec));
  return true;
}

void CallSpec::require_bare(PyObject* tensor) {
  size_t seen = 0;
  for (ArgSpec& spec : specs_)
    if (spec.kind == ArgKind::Tensor && flat_.tensors[seen++] == tensor) spec.bare = true;
}

void CallSpec::require_identity(PyObject* a, PyObject* b) {
  const int first = place_of(a), second = place_of(b);
  if (a == b)
    identities_.push_back({first, -1, a, true});
  else if (first >= 0)
    identities_.push_back({first, second, b, false});
  else
    identities_.push_back({second, -1, a, false});
}

int CallSpec::make_target(PyObject* object) {
  const auto times = [&](PyObject* one) {
    return std::ranges::count(flat_.objects, one) + std::ranges::count(flat_.dicts, one);
  };
  std::vector<size_t> places;
  for (size_t i = 0; i < specs_.size(); ++i)
    if (flat_.objects[i] == object) places.push_back(i);
  const auto is_known = [&](size_t i) {
    const ArgKind kind = specs_[i].kind;
    const bool is_other_dict = flat_.dicts[i] && times(flat_.dicts[i]) != static_cast<ptrdiff_t>(places.size());
    return !is_other_dict &&
           (kind == ArgKind::Tensor || kind == ArgKind::List || kind == ArgKind::Dict || kind == ArgKind::Instance);
  };
  if (places.empty() || times(object) != static_cast<ptrdiff_t>(places.size())) return -1;
  if (!std::ranges::all_of(places, is_known)) return -1;
  if (specs_[places[0]].target >= 0) return specs_[places[0]].target;
  for (const size_t i : places) {
    specs_[i].target = static_cast<int>(target_places_.size());
    specs_[i].again = i != places[0];
  }
  target_places_.push_back(places.size());
  return specs_[places[0]].target;
}

bool CallSpec::keep_targets_apart(std::vector<const void*> objects) {
  std::ranges::sort(objects);
  apart_ = std::move(objects);
  const auto is_known = [&](const void* one) { return std::ranges::binary_search(apart_, one); };
  for (size_t i = 0; i < specs_.size(); ++i)
    if (specs_[i].target >= 0 && (is_known(flat_.objects[i]) || is_known(flat_.dicts[i]))) return false;
  return true;
}

void CallSpec::make_symbolic(size_t number) {
  size_t seen = 0;
  for (ArgSpec& spec : specs_) {
    if (spec.kind != ArgKind::Int && spec.kind != ArgKind::Float && spec.kind != ArgKind::Number) continue;
    if (seen++ != number || spec.kind == ArgKind::Number) continue;
    spec.type = Py_TYPE(spec.object);
    spec.kind = ArgKind::Number;
    Py_CLEAR(spec.object);
    ++symbolic_;
  }
}

std::vector<size_t> CallSpec::arguments() const {
  std::vector<size_t> out;
  size_t begun = 0;
  Py_ssize_t inside = 0;  // specs of the current argument still to come
  for (const ArgSpec& spec : specs_) {
    if (inside == 0)
      ++begun;
    else
      --inside;
    inside += spec.length;
    out.push_back(begun - 1);
  }
  return out;
}

std::string CallSpec::signature() const {
  std::string out;
  for (const ArgSpec& spec : specs_) {
    if (!out.empty()) out += ", ";
    switch (spec.kind) {
      case ArgKind::Tensor:
        out += text(spec.tensor);
        break;
      case ArgKind::None:
        out += "None";
        break;
      case ArgKind::Number:
        out += spec.type->tp_name;
        break;
      case ArgKind::Tuple:
        append_list(out.append(spec.type ? spec.type->tp_name : "tuple"), '(', {spec.length}, ')');
        break;
      case ArgKind::List:
        append_list(out.append("list"), '(', {spec.length}, ')');
        break;
      case ArgKind::Dict:
        append_list(out.append("dict"), '(', {spec.length}, ')');
        break;
      case ArgKind::Empty:
        append_list(out.append(spec.type->tp_name), '(', {0}, ')');
        break;
      case ArgKind::Instance:
        append_list(out.append(spec.type->tp_name), '(', {spec.length}, ')');
        break;
      case ArgKind::Object:
        out += Py_TYPE(referent(spec))->tp_name;
        break;
      default:
        out += repr(spec.object);
    }
  }
  return out;
}

}  // namespace fastjit::dispatch
