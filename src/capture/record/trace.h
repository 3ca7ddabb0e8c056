#pragma once
// What the operator recorder saw: every dispatcher call of one thread, in order, with nesting. Tensors and storages are
// named by index and held weakly: a weak count pins the address, so that an index never means two tensors.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <Python.h>

#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "capture/capture.h"
#include "support/arithmetic.h"
#include "support/flat.h"
#include "support/hash_index.h"
#include "support/size_use.h"

namespace fastjit::capture {

inline constexpr uint32_t kNone = 0xFFFFFFFFu;

/// A number or none, in the place of a pointer: nearly all uses have none, and a recording holds hundreds of thousands.
class UsedNumber {
 public:
  UsedNumber() = default;
  UsedNumber(const std::optional<c10::Scalar>& number)
      : number_(number ? std::make_shared<const c10::Scalar>(*number) : nullptr) {}
  explicit operator bool() const { return number_ != nullptr; }
  const c10::Scalar& operator*() const { return *number_; }
  const c10::Scalar* operator->() const { return number_.get(); }
  operator std::optional<c10::Scalar>() const { return number_ ? std::optional(*number_) : std::nullopt; }

 private:
  std::shared_ptr<const c10::Scalar> number_;
};

/// A tensor as one event saw it.
struct Use {
  uint32_t tensor = kNone;   // index into Trace::tensors; kNone: an undefined tensor
  uint32_t storage = kNone;  // index into Trace::storages; kNone: it has none
  int64_t offset = 0;
  int64_t version = -1;  // -1: inference tensors have no counter
  SharedMeta meta;
  bool view = false;     // autograd takes it for a view
  int8_t creation = -1;  // of a view: torch's CreationMeta, which says under which grad mode it was made
  bool requires_grad = false;
  bool bare = false;  // Python never saw this tensor: made in C++ from a number
  UsedNumber number;  // value of a wrapped number, a bare 0-dim tensor or a 0-dim constant
};

/// An argument or a result.
struct CallValue {
  enum class Kind : uint8_t { None, Tensor, TensorList, OptionalTensorList, Constant } kind = Kind::None;
  c10::SmallVector<Use, 1> uses;  // Tensor: one; lists: one an element
  c10::IValue constant;
};

struct Event {
  std::optional<c10::OperatorHandle> op;  // absent: an event without a schema (autograd functions)
  std::string_view name;                  // "aten::add.Tensor", of Trace::names
  OpFacts facts;                          // of op
  uint32_t parent = kNone;
  uint32_t end = 0;        // one past the last nested event
  uint32_t line = 0;       // index into Trace::lines; 0: unknown
  int64_t node = -1;       // of an evaluation of autograd's: the node's number, in the order in which nodes were made.
                           // Of an operator that autograd follows: that of the node which is made next, by it maybe
  bool finished = false;   // false: the operator raised
  bool grad = false;       // grad mode was on
  bool inference = false;  // inference mode was on
  CastMode casts;
  bool of_constants = false;     // it reads a value that follows from constants of the call alone: it is what it was
  std::string target;            // of a value that Python reads: the variable that gets it, if one does at once
  std::vector<uint64_t> values;  // of contents_read: what was read
  std::vector<CallValue> args, results;
  std::vector<Use> flat;  // the tensors of several results
};

/// Why capture cannot handle it, of a tensor whose memory is not what it reads as.
inline constexpr const char* kLazy = "is a lazy conjugate or negation";

struct TensorRecord {
  c10::weak_intrusive_ptr<c10::TensorImpl> impl;
  std::string unusual;  // why capture cannot handle it ("is sparse"); empty for ordinary tensors
  UsedNumber number;    // of a bare 0-dim tensor, while its version is number_version
  int64_t number_version = -1;
  SharedMeta meta;         // as it was last seen
  bool grad = false;       // grad mode was on when it was first seen
  bool inference = false;  // and inference mode
  bool is_nested = false;
  bool layered = false;   // a transform of torch.func wraps another tensor in it
  bool lazy = false;      // a lazy conjugate or negation of an operator's: only torch's calls may read it
  bool constant = false;  // see Trace::note_constant
  uint32_t root = kNone;  // index into Trace::roots
};

struct StorageRecord {
  c10::weak_intrusive_ptr<c10::StorageImpl> impl;
  uintptr_t begin = 0, end = 0;
};

/// An argument or a captured tensor, as it was when the recorder was told of it.
struct Source {
  Use before;
  at::Tensor tensor;
  PyObject* object = nullptr;  // captured tensors and constants only
  uint32_t argument = kNone;   // arguments only: position in CallInputs::tensors
  std::string name;
  bool constant = false;      // a copy of what torch.tensor([1, 2]) made
  uint32_t gradient = kNone;  // the gradient of DerivativeTrace::results of this number
};

/// What autograd computed on its way back from the results, recorded behind the call.
struct DerivativeTrace {
  uint32_t begin;                     // the first event of it
  std::vector<uint32_t> results;      // tensors of the result that require grad, as their positions
  std::vector<uint32_t> sources;      // Trace::roots that got a gradient
  std::vector<uint32_t> inner;        // of `results`, those that others are computed from
  std::vector<at::Tensor> gradients;  // of the sources, then of the inner results
  std::vector<uint64_t> reached_by;   // per gradient: bits of the results that autograd comes to it from, past no other
  std::vector<FunctionOnWay> python{};
  bool is_over = false;             // the call has gone back itself, and freed what that takes
  std::vector<ResultView> views{};  // results that require grad as views of others do
};

/// A part of the call of which autograd keeps nothing but what it was given, and which it runs again for the rest
/// (torch.utils.checkpoint). One inside another is a part of that one.
struct Checkpoint {
  uint32_t begin, end;            // events
  int64_t first_node, last_node;  // of autograd's: from, up to, made inside
  uint32_t storages;              // that were met before
  bool draws_others;              // where it runs again, random numbers are others
};

/// An instruction that had a number argument of the function as an operand, and the outermost operators it ran.
struct ScalarUse {
  uint32_t scalar;  // index into CallInputs::scalars
  bool alone;       // no other operand of the instruction is a number of equal value
  bool forwards;    // a binary operator: it may hand the number on to a Python method, where it is used again
  int element;      // its place in a list of numbers, one for each of a list of tensors; -1: it is in no list
  std::vector<uint32_t> events;
};

/// An int that Python has of sizes, or that it computed of such ints.
struct SizeNumber {
  uint32_t tensor = kNone;  // whose size `dim` it is, or with -1 the count of its elements; kNone: it is computed
  bool is_given = false;    // one of CallInputs::free_ints: it is not computed either
  uint32_t loop = kNone;    // the index of a round of that loop of Trace::loops: the same
  int dim = 0;
  support::IntArithmetic op{};
  std::vector<support::SizeOperand> operands{};
  uint32_t line = 0;  // of Trace::lines
};

/// A comparison of such ints that Python made: the path is for the answer that it had.
struct SizeTest {
  int comparison;  // Py_LT ...
  support::SizeOperand a, b;
};

/// Parts of one tensor that a formula gives rounds on the way back, behind `before` others: its selects along a dim, or
/// narrows of one length.
struct Shares {
  std::vector<uint32_t> events;  // in their order in the tensor
  uint32_t before;
  bool falls;  // later rounds are given earlier ones
};

/// Of each round on the way back the operator that makes zeros but for what the round has for its part of one tensor.
struct Pieces {
  std::vector<uint32_t> events;  // by round
  bool falls;                    // later rounds have earlier parts
};

/// Of each round on the way back the operators that give it its row of one tensor and pass on what is left of that.
struct Slices {
  std::vector<uint32_t> begins{}, ends{};  // by round: the first of these operators, and behind the last
  std::vector<uint32_t> made{};            // by round: the one that gives the row
  size_t dim;
  uint32_t before;  // so many rows are not given to rounds
  bool falls;       // later rounds are given earlier rows

  /// Whether the operator is one of those of the round.
  bool has(uint32_t round, uint32_t event) const { return event >= begins[round] && event < ends[round]; }
};

/// A loop of Python over a range that ends at such an int, or begins there, or one of torch's over steps in time, or
/// autograd's way back through one of these.
struct PythonLoop {
  support::LoopRange range;
  struct Begin {
    uint32_t event, number, tensor;  // the next ones
    size_t test;                     // of Trace::size_tests
  };
  std::vector<Begin> begins{};                 // per round, and where the last one ended
  int64_t alike_from = -1;                     // as observe::Host::on_loop_end
  bool last_differs = false;                   // and so this
  uint32_t line = 0;                           // of Trace::lines
  std::vector<uint32_t> parts{};               // events that gave what it walks, each one result a round
  std::vector<std::vector<uint32_t>> lists{};  // tensors that it walks, each of one list of a round
  uint32_t layer = kNone;        // the operator that runs it, in C++ code, over what the first of `parts` gives;
                                 // kNone: `range` says how many rounds it has
  bool falls = false;            // the layer's first round is given the last part
  uint32_t back_of = kNone;      // it is autograd's way back through the rounds of that loop of Trace::loops, the last
                                 // one first; kNone: it is Python's
  std::vector<Shares> shares{};  // of such a way
  std::vector<Pieces> pieces{};  // the same
  std::vector<Slices> slices{};  // the same
  size_t rounds() const { return begins.size() - 1; }
  size_t alike_to() const { return rounds() - last_differs; }  // behind the last of those that are alike
  bool is_known() const { return alike_from >= 0; }
  bool ends_at(uint32_t number) const { return range.low.number == number || range.high.number == number; }
  bool has_event(uint32_t event) const { return event >= begins.front().event && event < begins.back().event; }
};

/// The round of a loop; none: loop is kNone.
struct LoopRound {
  uint32_t loop = kNone, round = 0;
  bool operator==(const LoopRound&) const = default;
};

/// A list of tensors that an operator was given: `before`, and then as many of each round of the loop.
struct RoundsUse {
  uint32_t loop;
  size_t before, count;
  bool reversed;  // those of the last round come first
};

/// A tensor that was indexed with slices or such ints.
struct IndexUse {
  Use tensor;
  std::vector<support::IndexItem> items;
};

/// What Python told before an instruction, and the outermost operators that this ran.
template <class Told>
struct InstructionUse {
  Told told;
  bool whole = true;  // Python code ran none of them
  std::vector<uint32_t> events{};
};

struct Trace {
  c10::Device device{c10::kCPU};          // the CUDA device that a tensor of the call is on, if one is
  bool grad = false;                      // grad mode was on for the caller
  bool inference = false;                 // inference mode was
  CastMode casts;                         // of the caller
  std::unordered_set<std::string> names;  // of events
  std::vector<Event> events;
  std::vector<ScalarUse> scalar_uses;
  std::unordered_map<uint32_t, uint32_t> value_scalars;  // event that read a float out of a tensor -> that number
  std::map<uint32_t, std::vector<uint32_t>> derived;     // number that was computed out of others -> those
  std::unordered_set<uint32_t> varying;                  // numbers that are known to differ from call to call
  struct Computed {
    NumberOp op;
    std::vector<int> operands;  // numbers; negative: a constant of `op`
  };
  std::map<uint32_t, Computed> computed;           // those among them that the program computes
  std::unordered_map<uint32_t, NumberTest> tests;  // by event
  std::vector<TensorRecord> tensors;
  std::vector<StorageRecord> storages;
  std::vector<std::string> lines{""};  // "model.py:14"
  std::vector<Source> roots;
  std::map<uint32_t, SizeNumber> size_numbers;  // numbers that are sizes or follow from them
  std::vector<SizeTest> size_tests;
  std::vector<InstructionUse<std::vector<support::SizeOperand>>>
      size_uses;  // ints given to an operator, in lists or not
  std::vector<InstructionUse<IndexUse>> index_uses;
  std::vector<PythonLoop> loops;
  std::vector<InstructionUse<RoundsUse>> rounds_uses;
  std::unordered_set<uint32_t> sizes_read;  // tensors whose sizes Python looked at, where some differ from call to call
  std::string size_reader;         // what in the Python code may read sizes of masked values: "len at model.py:3"
  std::string broken;              // why the recording itself cannot be trusted
  size_t max_values = kMaxValues;  // that the path may read out of tensors

  std::optional<DerivativeTrace> derivative;
  std::unordered_set<uint32_t> left_gradients;  // tensors that the call leaves as gradients of others
  std::string no_derivative;                    // why there is none, though a result requires grad
  bool goes_back_in_python = false;             // a part of autograd's graph is an autograd.Function

  std::vector<Checkpoint> checkpoints;
  std::unordered_set<uint32_t> checkpoint_saved;  // storages of tensors that they were given
  std::vector<at::Generator> made_generators;     // by the call, in the order in which it first uses them
  /// The elements of the tensor follow from constants of the call alone, or do not. A guess: what Python reads of them
  /// is guarded like any other value, but is not expected to differ.
  void note_constant(uint32_t tensor, bool is_it) { tensors[tensor].constant = is_it; }
  bool is_constant(const Use& use) const;
  bool takes_constants(const Event& event) const;     // and nothing else
  std::unordered_set<uint32_t> data_read;             // storages of tensors of which Python read .data
  bool reads_arrays = false;                          // of numpy, that were there before
  std::unordered_map<uint32_t, bool> array_memory;    // storages that arrays of numpy share; true: the call made them
  std::unordered_set<uint32_t> own_leaves;            // tensors that the call made and then let require grad
  bool makes_data_sizes = false;                      // an operator of it may
  std::unordered_map<uint32_t, uint64_t> data_sized;  // tensor -> its dims whose sizes depend on data (data_sizes.h)
  std::unordered_map<uint32_t, uint32_t> settled;     // those of which an event, this one, compares the sizes
  // Tensors of `settled` whose sizes Python has as SizeNumbers only: a program that finds them compares nothing.
  std::unordered_set<uint32_t> sizes_as_numbers;
  bool follows_found = false;                             // there was one: whoever reads sizes from then on is followed
  std::unordered_map<uint32_t, uint32_t> counted_as;      // those of one mask: the first tensor that is as long by it
  std::map<std::string, uint32_t> counted_by;             // what the mask is -> that tensor
  std::map<std::pair<uint32_t, size_t>, int64_t> longer;  // a dim of such a tensor that is known to be longer than this
  /// As the operator made it that made the tensor.
  uint64_t made_dims_of(uint32_t tensor) const {
    const auto found = data_sized.find(tensor);
    return found == data_sized.end() ? 0 : found->second;
  }
  /// As event `at` finds it.
  uint64_t dims_of(uint32_t tensor, uint32_t at) const {
    const auto found = settled.find(tensor);
    return found != settled.end() && found->second < at ? 0 : made_dims_of(tensor);
  }
  uint64_t dims_of(uint32_t tensor) const { return settled.contains(tensor) ? 0 : made_dims_of(tensor); }

  uint32_t find(const c10::TensorImpl* impl) const;
  Use use(const at::Tensor& tensor, bool made = false);
  const Source* root(uint32_t tensor) const;
  void add_root(Source root);

  support::FlatMap<const c10::TensorImpl*, uint32_t> tensor_ids;
  support::FlatMap<const c10::StorageImpl*, uint32_t> storage_ids;
  bool has_layers = false;  // one of `tensors` is layered
  /// Storages on the CPU in a call on a CUDA device, but those of Python's numbers: only torch's own calls touch them.
  std::unordered_set<uint32_t> host;
  bool is_on_host(const Use& use) const { return use.tensor != kNone && host.contains(use.storage); }

 private:
  void meet_device(const at::Tensor& tensor);
  SharedMeta shared_meta(const at::Tensor& tensor);
  support::HashIndex metas_by_hash_;
  std::vector<SharedMeta> metas_;  // of plain tensors, each once
};

/// pure=True: tensors that Python held and that nothing in the trace made are taken as captured ones.
void adopt_unknown(Trace& trace);
/// A transform of torch.func holds another tensor in it.
bool is_wrapper(const at::Tensor& tensor);
/// A transform of torch.func runs others in its place, down to those on plain tensors.
bool is_layered(const Trace& trace, const Event& event);
/// One of its arguments requires grad.
bool takes_grad(const Event& event);
/// The operator is given the tensor, by itself or in a list.
bool is_argument(const Event& event, uint32_t tensor);
/// Autograd's engine evaluates a node of the graph: an event without an operator.
bool is_backward(const Event& event);
/// "item at model.py:14", or the variable that gets the value.
std::string label_of(const Event& event, const std::string& line);

/// "aten::mul at model.py:14", for messages.
std::string where(const Trace& trace, const Event& event);

/// The name of events that stand for Recorder::contents_read.
inline constexpr std::string_view kContentsRead = "tolist";

/// The name of events that stand for Recorder::number_tested.
inline constexpr std::string_view kTest = "test";

/// The name of events that stand for Recorder::size_read.
inline constexpr std::string_view kSizeRead = "size";
/// The same of sizes that an operator found, read or not: none, one, or kMany for all others.
inline constexpr int64_t kMany = 2;
inline constexpr std::string_view kFew = "few";
/// The name of events that stand for Recorder::slice_taken.
inline constexpr std::string_view kSlice = "slice";
inline bool is_size(const Event& event) {
  return event.name == kSizeRead || event.name == kFew || event.name == kSlice;
}
/// Of the sizes little is asked, and so there are few answers.
inline bool has_few_answers(const Event& event) { return event.name == kFew || event.name == kSlice; }

/// The value of a 0-dim tensor read without a dispatcher call; nothing for other devices than the CPU and for types
/// that are not numbers here.
std::optional<c10::Scalar> read_number(const at::Tensor& tensor);

/// The tensors of an event's results in schema order, lists flattened.
std::span<const Use> flat_results(const Event& event);
/// What OpFlag::Workspace says is one.
bool is_workspace(const Use& result, const Event& event);

}  // namespace fastjit::capture
