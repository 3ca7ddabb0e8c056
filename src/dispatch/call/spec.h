#pragma once
// The call key: what the arguments of a variant looked like. A call matches a variant by walking its arguments beside
// the variant's specs; nothing is built, hashed or allocated on the way.
#include <ATen/ATen.h>
#include <Python.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "dispatch/call/instances.h"
#include "ir/graph.h"

namespace torch::autograd {
struct AutogradMeta;
}

namespace fastjit::dispatch {

inline constexpr size_t kAnyRank = SIZE_MAX;

/// Metadata of one tensor. Also the guard of captured tensors.
struct TensorSpec {
  uint64_t key_set = 0;
  at::ScalarType dtype = at::ScalarType::Undefined;
  bool parameter = false;
  bool requires_grad = false;
  c10::DeviceIndex device = -1;  // of CUDA tensors; compared once a call, see Variant::on_its_device
  std::vector<int64_t> sizes, strides;
  uint64_t free_sizes = 0, free_strides = 0;  // dims, as bits, of which those are any: see Sized

  static TensorSpec of(PyObject* object);
  bool operator==(const TensorSpec&) const = default;
  /// False for anything but an exact Tensor or Parameter. The body is in tensor_match.h.
  bool matches(PyObject* object) const noexcept;
  bool same_but_sizes(const TensorSpec& other) const;

  /// The parts of matches(object). `kRank` is that of the spec, where it is known.
  bool is_class_of(PyObject* object) const noexcept;
  template <size_t kRank = kAnyRank>
  bool matches(c10::TensorImpl* impl) const noexcept;
  bool matches(const torch::autograd::AutogradMeta* meta, const at::Tensor& tensor) const noexcept;

 private:
  bool matches_but_free(const int64_t* size, const int64_t* stride) const noexcept;
  bool matches_slowly(const at::Tensor& tensor) const noexcept;  // views, and tensors that had tangents
};

/// True for exact torch.Tensor and torch.nn.Parameter objects.
bool is_plain_tensor(PyObject* object) noexcept;
const at::Tensor& unpack(PyObject* object) noexcept;  // of a plain tensor
/// Whether code has set attributes on this one tensor.
bool has_attributes(PyObject* tensor) noexcept;
/// Why a plain tensor cannot take part in a program ("it is not strided"), or null.
const char* unsupported(const at::Tensor& tensor) noexcept;
/// Sparse, nested and symbolic tensors throw when asked for sizes or strides.
bool has_strides(const at::TensorImpl* impl) noexcept;

enum class ArgKind : uint8_t {
  Tensor,
  None,
  Bool,
  Int,
  Float,
  Text,
  Tuple,
  List,
  Dict,
  Empty,
  Instance,
  Object,
  Number
};

/// One node of the arguments, preorder. Number: an int or float whose value is a run-time scalar of the program. Empty:
/// a set or an OrderedDict with nothing in it.
struct ArgSpec {
  ArgKind kind;
  bool weak = false;           // Object: `object` is a weak reference
  PyObject* object = nullptr;  // Int, Float, Bool, Text, Object: owned. Dict, Instance: tuple of keys, owned
  Py_ssize_t length = 0;       // Tuple, List, Dict, Instance
  double number = 0;           // Float: bits compared
  PyTypeObject* type =
      nullptr;  // Number, Empty: the class. Instance, Tuple: the class, owned. Object: borrowed, for hints
  TensorSpec tensor{};
  int same_as = -1;    // Tensor: an earlier tensor argument that is the same object
  bool bare = false;   // Tensor: has no attributes of its own
  int target = -1;     // Tensor, List, Dict, Instance: which of the objects that the call changes or returns
  bool again = false;  // the target is at an earlier place, too
};

/// The object that an Object argument stands for; None when it is gone.
inline PyObject* referent(const ArgSpec& spec) noexcept {
  return spec.weak ? PyWeakref_GET_OBJECT(spec.object) : spec.object;
}

constexpr int kMaxArgumentDepth = 8;  // of nested arguments
/// The same for all calls that one CallSpec matches. Runs no Python code.
uint64_t call_hash(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, const ByContent& classes) noexcept;
/// The same for all calls that one CallSpec with free sizes matches.
uint64_t call_hash_of_any_size(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                               const ByContent& classes) noexcept;
/// The same for all calls with equal numbers and text and with tensors that look the same, whatever the other objects.
uint64_t argument_hash(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, const ByContent& classes) noexcept;

/// The flattened arguments of one call, borrowed.
struct FlatArgs {
  std::vector<PyObject*> tensors;
  std::vector<PyObject*> numbers;    // exact ints and floats (not bool), in order
  std::vector<PyObject*> instances;  // described by their attributes
  std::vector<PyObject*> objects;    // of each ArgSpec
  std::vector<PyObject*> dicts;      // of each ArgSpec: the attributes of an instance, else null
};

class CallSpec {
 public:
  CallSpec() = default;
  CallSpec(CallSpec&&) noexcept;
  CallSpec& operator=(CallSpec&&) noexcept;
  ~CallSpec();

  /// Describes a call; instances of `classes` by their attributes. Returns false with `why` set when an argument cannot
  /// be part of a key.
  bool build(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, const ByContent& classes, std::string& why);
  /// Only tensors without attributes of their own match where `tensor` stood; valid during the call given to build().
  void require_bare(PyObject* tensor);
  /// Two tensors, of which at least one is an argument, stay different objects; or one argument stays that object.
  void require_identity(PyObject* a, PyObject* b);
  /// No container or instance among the arguments may be one of these (addresses), or an instance have it as its
  /// attribute dictionary: the call changes them, and the key says what arguments hold when it begins.
  void exclude(std::vector<const PyObject*> objects);
  /// Of this tensor, container or instance calls that match have one object at the same places among the arguments, and
  /// at no others: match() gives it behind the tensors. Which of them it is, or -1; during the call given to build().
  int make_target(PyObject* object);
  /// In calls that match no target is one of these (addresses), nor has it one as its attribute dictionary. False: that
  /// is not so in this one.
  bool keep_targets_apart(std::vector<const void*> objects);
  /// Leaves out the sizes and strides of the n-th of the flattened tensors that are symbolic here. `hash`: what
  /// call_hash of any sizes says of the call given to build().
  void free_sizes(size_t tensor, const ir::Layout& layout, uint64_t hash);
  bool has_free_sizes() const { return has_free_sizes_; }
  /// Per tensor of the call: dims, as bits, in which this one differs from `other`, a call that is the same otherwise.
  std::vector<uint64_t> other_sizes(const CallSpec& other) const;
  /// Makes the n-th number of the flattened arguments symbolic.
  void make_symbolic(size_t number);

  /// True if the call matches; then `tensors` and `numbers` (arrays the caller sized by object_count / number_count)
  /// hold the argument tensors, the targets behind them, and the symbolic numbers. Runs no Python code.
  bool match(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, PyObject** tensors,
             PyObject** numbers) const noexcept;
  /// Equal up to the sizes and strides of tensors, and to the values of ints.
  bool same_but_sizes(const CallSpec& other, bool but_ints = false) const;
  /// Of calls that are the same but for them: whether sizes and strides are equal too.
  bool same_sizes(const CallSpec& other) const;

  /// Whether the same of the call's tensors are one object in both.
  bool same_objects(const CallSpec& other) const;

  size_t tensor_count() const { return tensors_; }
  size_t object_count() const { return tensors_ + target_places_.size(); }
  size_t number_count() const { return symbolic_; }
  uint64_t hash() const { return hash_; }         // call_hash of every call that matches
  const FlatArgs& flat() const { return flat_; }  // of the call given to build(); valid only during that call
  const std::vector<ArgSpec>& specs() const { return specs_; }
  std::vector<size_t> arguments() const;           // per spec: which of the call's arguments it is or is part of
  int traverse(visitproc visit, void* arg) const;  // for the garbage collector
  std::string signature() const;                   // "f32[64,64], 2.0, None"

 private:
  bool add(PyObject* object, const ByContent& classes, std::string& why, int depth);
  bool add_instance(PyObject* object, const ByContent& classes, int depth);
  void add_object(PyObject* object);
  bool targets_are_apart(PyObject* const* args, Py_ssize_t total, PyObject* const* targets) const noexcept;
  bool add_items(PyObject* sequence, ArgSpec spec, const ByContent& classes, std::string& why, int depth);
  bool add_entries(PyObject* dict, ArgSpec spec, const ByContent& classes, std::string& why, int depth);
  // Argument `tensor` is, or is not, argument `other`, or `object` where other is negative (an address: a fact says
  // that it is still the same object).
  struct Identity {
    int tensor, other;
    PyObject* object;
    bool same;
  };
  std::vector<ArgSpec> specs_;
  std::vector<Identity> identities_;
  Py_ssize_t nargs_ = 0;
  PyObject* kwnames_ = nullptr;  // owned tuple or null
  size_t tensors_ = 0, symbolic_ = 0;
  std::vector<size_t> target_places_;  // of each target: how many
  uint64_t hash_ = 0;
  bool has_free_sizes_ = false;
  std::vector<const PyObject*> excluded_;
  std::vector<const void*> apart_;
  FlatArgs flat_;
  int place_of(PyObject* tensor);
  std::unordered_map<PyObject*, int> places_;  // of the first `placed_` tensors of flat_
  size_t placed_ = 0;
};

std::string repr(PyObject* object);        // "?" if it raises
std::string text(const TensorSpec& spec);  // "f32[64,64]" with "(strides)" when not row-major, " on cuda:0"

}  // namespace fastjit::dispatch
