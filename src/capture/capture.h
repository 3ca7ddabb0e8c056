#pragma once
// One eager call, watched, and made into a graph. Two observers: at::RecordFunction for operators (record/record.cpp)
// and the read observer of src/observe for Python (absent with pure=True). build/build.cpp turns the trace into
// ir::Graph.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <Python.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "capture/calls.h"
#include "ir/checkpoints.h"
#include "ir/graph.h"
#include "plan/kernel_plan.h"
#include "support/arithmetic.h"
#include "support/size_use.h"

namespace fastjit::capture {

/// A size of an argument that the program takes at each call, or an int of the caller's.
struct SizeSymbol {
  static constexpr uint32_t kNumber = 0xFFFFFFFFu;
  uint32_t argument, dim;  // position in CallInputs::tensors; kNumber: `dim` is the index into CallInputs::scalars
  bool is_stride = false;  // of the dim, not its size
};

/// A torch.autograd.Function on the way back.
struct FunctionOnWay {
  uint64_t reached_by;  // bits of the results that autograd comes to it from, past no inner one
  bool is_given_none;   // where a gradient is missing, not zeros
};

/// How gradients of the results become gradients of what they were computed of: the way back is in the graph too.
struct Derivative {
  std::vector<uint32_t> results;  // tensor leaves of the result that require grad; of each, the graph has an input
  std::vector<c10::ScalarType> dtypes;  // of these
  std::vector<bool> kept_results;       // per graph output in front of the gradients: autograd keeps that very tensor
  std::vector<uint32_t> sources;        // graph inputs whose gradients are its outputs behind those of the result
  std::vector<uint32_t> inner;    // of `results`, those that others are computed from: the outputs behind the gradients
                                  // are theirs, with what comes to them through the others
  std::vector<bool> kept_inputs;  // per graph input: autograd keeps that very tensor
  std::vector<bool> found_inputs;    // per graph input: a checkpoint finds it where autograd goes back, written or not
  std::vector<uint64_t> reached_by;  // per source, then per inner result: bits of the results that autograd comes to it
                                     // from, past no inner one
  std::vector<FunctionOnWay> python{};
  bool is_over = false;             // there is no way back: the call has gone it, and it cannot be gone twice
  std::vector<ResultView> views{};  // none of them is in `results`
};

/// The numbers that autograd gave to operators on its way back and the sizes that it got, in one recording. Where
/// another call went the same way at other sizes, the two tell which of them follow from which sizes of the call.
struct WayNumbers {
  uint64_t path = 0;                                 // the operators, and what else they were given
  std::vector<std::vector<int64_t>> sizes, strides;  // per CallInputs::tensors
  std::vector<int64_t> ints;                         // per CallInputs::scalars: its value, of free_ints; else 0
  std::vector<int64_t> numbers;                      // in order; of floats, the bits

  /// Of the recording; 0: it does not say.
  int64_t value(const SizeSymbol& symbol) const {
    if (symbol.argument != SizeSymbol::kNumber)
      return (symbol.is_stride ? strides : sizes)[symbol.argument][symbol.dim];
    return symbol.dim < ints.size() ? ints[symbol.dim] : 0;
  }
};

/// How one leaf of the result is made; `recipe` says how leaves form the nested result.
struct Capture {
  ir::Graph graph;
  std::vector<CallTemplate> calls;
  std::vector<ValueGuard> guards;        // by ExternAttr::call of Guard nodes, in the order of the reads
  std::vector<NumberOp> numbers;         // by ExternAttr::call of Number nodes
  std::vector<InputSource> inputs;       // per graph input
  std::vector<SizeSymbol> symbols;       // of a program for any size: per symbol of the graph
  std::vector<std::string> fixed_sizes;  // why sizes that differ from call to call are those of this call only, for
                                         // people: "x.size(0) is one size for aten::cumsum at model.py:14"
  std::vector<std::pair<uint32_t, ir::Layout>> layouts;  // position in CallInputs::tensors -> sizes and strides of an
                                                         // argument that has some
  std::vector<PyObject*> captured;    // tensors reached by reads that the program uses (borrowed: the facts keep them)
  std::vector<at::Tensor> constants;  // among `captured`: those that the call itself made, which nothing else keeps
  static constexpr uint32_t kSize = 0xFFFFFFFFu;
  std::vector<uint32_t> scalar_args;  // per graph scalar: index into CallInputs::scalars; kSize: it is a size
  std::vector<double> scalar_limits;  // per graph scalar: eager raises for finite values beyond +-limit; infinity: none
  std::vector<bool> bound_scalars;    // per CallInputs scalar: true if the graph reads it at run time, or nothing reads
                                      // it; false: guard it by value
  std::vector<int64_t> result_versions;  // per tensor leaf: eager's count of writes to a result in memory of its own;
                                         // -1: it is not one, or an inference tensor
  std::vector<int8_t> view_creations;    // per tensor leaf: torch's CreationMeta of a view that eager makes under
                                         // another grad mode than the program, or kAsMade; none: all are
  std::vector<uint32_t> result_values;   // graph outputs behind those of the tensor leaves, each a number of type F64:
                                         // index into Recorder::numbers
  std::vector<std::pair<uint32_t, uint32_t>> result_sizes;  // other ints of the result that differ from call to call:
                                                            // index into Recorder::numbers, graph scalar
  uint32_t operators = 0;                                   // calls of operators that Python made
  std::string unsound;                                      // not empty: why this call must stay eager, with file:line
  bool reads_values = false;                                // Python read values of tensors, also where it is unsound
  ir::Checkpoints checkpoints;            // of the nodes of the graph; empty: the call goes through none
  std::optional<Derivative> derivative;   // some of the results require grad
  std::shared_ptr<const WayNumbers> way;  // null: the call goes no way back
  bool without_grad = false;              // the program runs with grad mode off although the caller's is on
  bool in_inference_mode = false;         // the program runs in inference mode although the caller does not
};

/// Values that one path may read out of tensors: at first, and once such long paths turned out to be new each time.
inline constexpr size_t kMaxValues = 512, kFewValues = 32;

/// What the caller passes in: the flattened arguments of the call about to run.
struct CallInputs {
  std::vector<at::Tensor> tensors;  // exact torch.Tensor / Parameter arguments, in flattening order
  std::vector<std::pair<PyObject*, std::string>>
      scalars;  // fresh int/float objects handed to the function (symbolic candidates) and their names
  std::vector<uint64_t> free_sizes;     // per tensor: dims whose sizes differ from call to call, as bits; empty: none
  std::vector<uint64_t> fixed_strides;  // per tensor: dims whose strides are those of this call, as bits; empty: none
  std::vector<bool> free_ints;          // per scalar: an int that differs from call to call and that sizes or indices
                                        // follow from; empty: none
  std::vector<std::shared_ptr<const WayNumbers>> ways;  // of calls that are the same but for sizes
  std::vector<bool> varying;                            // per scalar: it is known to differ from call to call
  std::vector<std::string> tensor_names;                // "x", "arg[0]"
  std::string stand_in_file;                            // of Python code that only makes the call: no place of its own
  std::vector<at::Generator> generators;  // with adopt_unknown: the call may draw from these and the default one only
  bool constants_are_facts =
      false;  // someone sees to it that data which torch.tensor() copies is the same in every call of the program
  bool finds_sizes = false;  // sizes that depend on data may be any, which each run finds
  size_t max_values = kMaxValues;
  /// Called with the reason when the recording has passed a limit and has stopped; GIL held.
  std::function<void(const std::string& reason)> on_limit;
  /// Whether a program can be had of a capture with loops of which a call runs any number of rounds
  /// (ir::Graph::traced).
  std::function<bool(const Capture& captured)> takes_any_trip;
  bool adopt_unknown = false;  // tensors of unknown origin that Python holds become captured ones (pure=True)

  /// Whether the program is to be one for any size, or for any int.
  bool for_any_size() const { return !free_sizes.empty() || !free_ints.empty(); }
};

/// Where autograd's way back from some tensors ends.
struct GraphEnds {
  std::string why;                // not empty: a program cannot go there
  std::vector<PyObject*> leaves;  // objects of captured tensors that get a gradient; null: of an argument. Who waits
                                  // for it is not asked
};

/// Runs the second argument, which calls the backward methods of the autograd.Functions that have these contexts. Not
/// empty: why it may not be run, or what running it again would find. Throws what that throws.
using Rehearse = std::function<std::string(const std::vector<PyObject*>& contexts, const std::function<void()>& go)>;

/// All parts of a tensor along a dim. tensor: as of Recorder::sized_tensor(); negative: they are something else.
struct PartsGiven {
  int64_t event = -1, tensor = -1;  // event: that gave them
  int dim = 0;
};

/// Records operators on this thread between construction and finish(). Callbacks are noexcept.
class Recorder {
 public:
  explicit Recorder(CallInputs inputs);
  ~Recorder();  // stops recording
  /// Tells that `tensor` was reached by a recorded Python read and may be used by the program.
  void add_captured(PyObject* object, const at::Tensor& tensor, std::string name);
  /// The CUDA device that a tensor of the call is on, else the CPU.
  c10::Device device() const;
  /// Whether the call has met the tensor, or its caller told of it.
  bool knows(const at::Tensor& tensor) const;
  /// Whether an operator of this call made it.
  bool made(const at::Tensor& tensor) const;
  /// The same, and its memory is shared with nothing that was there before: its count of writes is the same in every
  /// call that takes this path.
  bool counts_own_writes(const at::Tensor& tensor) const;
  /// Tells that the call that just ended gave `number`. True: it is the value of the tensor that was read last, and now
  /// the next one of CallInputs::scalars.
  bool number_read(PyObject* number);
  /// Tells that the call computed `number`, the next one of CallInputs::scalars, out of these earlier ones.
  void number_derived(PyObject* number, std::string name, std::vector<uint32_t> operands);
  /// The same of one that is had anew in every call: asked for, or computed of such ones, or found in its place.
  /// is_free: it is one of CallInputs::free_ints.
  void number_given(PyObject* number, std::string name, bool is_free = false);
  /// The same of one that the program computes, since it follows from values of tensors: operand i is number
  /// `operands[i]`, or a constant of `op` where that is negative.
  void number_computed(PyObject* number, NumberOp op, std::vector<int> operands);
  /// Tells that Python is about to ask this: the path that it takes is for one answer.
  void number_tested(NumberTest test);
  /// Tells that Python is about to read all elements of `tensor` without an operator that shows them.
  void contents_read(const at::Tensor& tensor);
  /// Tells that the call that just ended made `tensor` of numbers that are the same in every call of the program,
  /// without an operator. False: it cannot be a constant of one.
  bool constant_made(const at::Tensor& tensor);
  /// Tells that Python reads an array of numpy that was there before, whose memory tensors may share.
  void array_read();
  /// Tells that the call that just ended gave a tensor on the memory of an array of numpy. is_new: the call has made
  /// that memory.
  void array_shared(const at::Tensor& tensor, bool is_new);
  /// Tells that torch.tensor() is about to make a tensor of the values of these, until scalar_use_ended().
  void stacking(std::vector<at::Tensor> tensors);
  /// Tells that Python did this to a generator: an operator of generator_calls.h, its arguments, and the tensor that it
  /// gave, or an undefined one.
  void generator_used(const char* op, const std::vector<c10::IValue>& args, const at::Tensor& result);
  /// Tells that the call has made this generator, which nothing but operators gets: each run of the program makes one
  /// anew. False: someone else may have it.
  bool generator_made(const at::Generator& generator);
  /// Tells that Python read `data` as Tensor.data of `tensor`. False: a program cannot have it.
  bool data_read(const at::Tensor& tensor, const at::Tensor& data);
  /// Tells that Python has begun a checkpoint (torch.utils.checkpoint) and set its hooks for saved tensors. What they
  /// throw away the program computes again on its way back. draws_others: the random numbers would be others then.
  void checkpoint_begun(bool draws_others);
  /// Tells that a checkpoint is about to begin and was given this tensor, which autograd keeps as if an operator read
  /// it.
  void checkpoint_saves(const at::Tensor& tensor);
  /// Tells that it has ended. Not empty: why it cannot be computed again.
  std::string checkpoint_ended();
  /// Not empty: why autograd cannot go back through the checkpoints so far.
  std::string why_not_back() const;
  /// Tells that Python lets `tensor` require grad. False: the call has not made it, or not as a leaf.
  bool leaf_made(const at::Tensor& tensor);
  /// Tensors of the call that several of these are views of, and that are not among them: autograd takes what flows
  /// back through such results on to them.
  std::vector<at::Tensor> bases_of(const std::vector<at::Tensor>& results) const;
  /// Whether `data` is `tensor`, or what Tensor.data or detach() gave of it.
  bool is_own_data(const at::Tensor& tensor, const at::Tensor& data) const;
  /// Whether a tensor was made whose sizes depend on data.
  bool has_data_sizes() const;
  /// Tells that Python is about to look at size `dim` of `tensor`, or with a negative one at any: where data decides
  /// what it sees, all of them are facts from now on.
  void size_read(const at::Tensor& tensor, int dim);
  /// Whether data decides sizes of both, and they are the same in each call: Python may compare them.
  bool same_sizes(const at::Tensor& a, const at::Tensor& b);
  /// Tells that Python is about to slice `tensor` from the beginning to `stop`: whether that is all of dim `dim` is a
  /// fact from now on. dim -1: whether the tensor has elements; `stop` is 0.
  void slice_taken(const at::Tensor& tensor, int dim, int64_t stop);
  /// Tells that Python is about to ask for `tensor` with its elements in this order: where they lie so, it gets the
  /// tensor back, and no operator runs.
  void contiguous_asked(const at::Tensor& tensor, at::MemoryFormat format);
  /// Which tensor of the call that is, where its sizes may differ from call to call: Python's reads of them are told as
  /// size_given(). Negative: read them with size_read().
  int64_t sized_tensor(const at::Tensor& tensor) const;
  /// The same of a tensor of which data decides size `dim`, or with a negative one any: it is read now, and Python has
  /// all that it reads as size_given().
  int64_t found_tensor(const at::Tensor& tensor, int dim);
  /// Tells that `number`, the next one of CallInputs::scalars, is what that tensor has as size `dim`, or with -1 as the
  /// count of its elements. Null: its sizes are facts.
  void size_given(int64_t tensor, int dim, PyObject* number);
  /// Tells that `number`, the next one of CallInputs::scalars, is computed out of such ones.
  void size_computed(PyObject* number, std::string name, support::IntArithmetic op,
                     std::vector<support::SizeOperand> operands);
  /// Tells that Python compared such numbers (Py_LT ...).
  void size_compared(int comparison, support::SizeOperand a, support::SizeOperand b);
  /// Tells that the operator about to run is given these, in the order of its parameters, until scalar_use_ended().
  void sizes_used(std::vector<support::SizeOperand> ints);
  /// Tells that `tensor` is about to be indexed with these. False: its sizes are not known; read them with size_read().
  bool indexed(const at::Tensor& tensor, std::vector<support::IndexItem> items);
  bool is_size_number(size_t number) const;
  /// Tells of a loop of Python with these indices. What it is called from now on; negative: it is not followed.
  int64_t loop_begun(const support::LoopRange& range);
  /// Whether the last operator gave these tensors as all parts of one along a dim, in order.
  PartsGiven parts_given(PyObject* parts) const;
  /// Tells that the loop walks what that event gave.
  void walk_begun(int64_t loop, int64_t event);
  /// Tells that a round of it begins, with `index`, the next one of CallInputs::scalars, or null.
  void round_begun(int64_t loop, PyObject* index);
  /// Whether an operator of the round that runs, or of the one before, has given this tensor, and none before.
  bool is_of_round(const at::Tensor& tensor) const;
  /// Tells that it has ended; see observe::Host.
  void loop_ended(int64_t loop, int64_t alike_from, bool last_differs);
  /// Tells that the operator about to run is given a list of `count` tensors: `before`, and then as many of each round
  /// of the loop, until scalar_use_ended(). reversed: those of the last round come first.
  void rounds_used(int64_t loop, size_t before, size_t count, bool reversed);
  /// Tells that each round of the loop is given one of these, which rounds of a loop before have made.
  void list_walked(int64_t loop, const std::vector<at::Tensor>& items);
  /// Tells that the instruction about to run has a number of CallInputs as an operand; see observe::Host.
  void scalar_used(size_t scalar, bool alone, bool forwards, int element);
  void scalar_use_ended(bool entered);
  /// Tells that the call has ended and gives these tensors. Where some of them require grad, autograd goes back through
  /// its graph once, and that is recorded too.
  void differentiate(const std::vector<at::Tensor>& results, const Rehearse& rehearse);
  /// Whether an operator on that way made the tensor, and its memory.
  bool made_going_back(const at::Tensor& tensor) const;
  /// Where backward() from these ends, which is about to run in the call.
  GraphEnds goes_back(const std::vector<at::Tensor>& from);
  /// Tells that the call has left these as gradients in tensors that were there before: they are outputs too, and alone
  /// in their memory.
  void leaves_gradients(const std::vector<at::Tensor>& gradients);
  /// Calls of operators so far.
  size_t operators() const;
  /// How many values the call has read out of tensors so far, and whether they are more than a program may read.
  size_t values_read() const;
  bool reads_too_many() const;
  /// Stops recording: the call goes on, and the capture is unsound for this reason.
  void give_up(const std::string& reason);
  /// The numbers of CallInputs and those that number_read(), number_derived() and number_given() took, borrowed.
  std::vector<PyObject*> numbers() const;
  const std::string& number_name(size_t number) const;
  /// Stops recording and builds the graph. `outputs` are the tensor leaves of the result in flattening order,
  /// `values` those of numbers() among its other leaves that were read out of tensors or follow from sizes; `symbolic`
  /// says for each of numbers() whether the read observer found only benign uses.
  Capture finish(const std::vector<at::Tensor>& outputs, const std::vector<uint32_t>& values,
                 const std::vector<bool>& symbolic, plan::Numerics numerics);
  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastjit::capture
