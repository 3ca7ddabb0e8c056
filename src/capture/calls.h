#pragma once
// What a recording leaves for its program to run: the calls of torch's, and the values that Python read.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "capture/ops/aten.h"
#include "capture/record/cast_mode.h"
#include "ir/graph.h"
#include "support/arithmetic.h"

namespace fastjit::capture {

/// Metadata of a tensor as it was recorded.
struct TensorMeta {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes, strides;
  bool wrapped_number =
      false;  // a Python number that torch made a 0-dim tensor of: does not take part in promotion as a tensor
  std::shared_ptr<const ir::Layout> symbolic{};  // sizes and strides, where some of them follow from symbols

  /// What the program knows of sizes and strides; code that makes it asks nothing of `sizes` and `strides`.
  ir::Layout layout() const;
};

/// The same for everyone who knows the tensor: a copy counts, and allocates nothing.
class SharedMeta {
 public:
  SharedMeta() = default;  // of no tensor
  SharedMeta(TensorMeta meta) : meta_(std::make_shared<const TensorMeta>(std::move(meta))) {}
  const TensorMeta& operator*() const { return meta_ ? *meta_ : none(); }
  const TensorMeta* operator->() const { return &**this; }
  operator const TensorMeta&() const { return **this; }

 private:
  static const TensorMeta& none() {
    static const TensorMeta empty;
    return empty;
  }
  std::shared_ptr<const TensorMeta> meta_;
};

/// An operator call with holes where its tensors go; ExternAttr::call indexes these. The executor fills the holes in
/// order with the step's operands and calls the operator through the boxed dispatcher.
struct CallTemplate {
  c10::OperatorHandle op;
  OpFacts facts;
  struct Hole {
    uint32_t arg;
    int32_t item;  // position in a tensor list, -1 for a plain tensor
  };
  struct NumberHole {
    uint32_t arg, scalar;  // of the graph's scalars
    bool is_float;
    std::string name;      // for people
    int32_t element = -1;  // its place in a list of numbers; -1: it is in none
    int32_t operand = -1;  // of the step, behind those for `holes`: a float that the program computes; -1: `scalar`
  };
  std::vector<c10::IValue> args;  // constants; None (or a list of undefined tensors) at the holes
  std::vector<Hole> holes;
  std::vector<TensorMeta> results;  // what eager returned: checked after each run unless `shape_from_metadata`
  bool shape_from_metadata = true;
  std::vector<NumberHole> numbers{};  // arguments that are numbers of the call; the recorded ones stand in `args`
  bool makes_new{};  // with `numbers`: no result shares memory with an argument, which they might decide
  // A factory called through torch's own bindings: its result is no view, whatever it is made of.
  bool makes_no_view = false;
  bool with_grad_mode = false;        // it asks for that, and gives more then
  bool by_data{};                     // sizes that depend on data go in or come out: what nobody uses is checked too
  std::vector<uint64_t> data_dims{};  // per result: the dims whose sizes are what each call finds, as bits; empty: none
  struct Find {
    uint32_t result;
    int64_t dim;
    uint32_t symbol;  // of the graph's, a late one
  };
  std::vector<Find> finds{};  // sizes of results that the program is for any of
  struct MadeGenerator {
    uint32_t arg, which;
  };
  std::vector<MadeGenerator> made_generators{};  // arguments that are generators which each run makes anew
  std::optional<CastMode> casts{};               // autocast was another one than the caller's
};

/// An operation of Python on floats, run by the program: of a number that was read out of a tensor, as in
/// `1 - beta ** step.item()`.
struct NumberOp {
  using Kind = support::Arithmetic;
  Kind kind;
  struct Operand {
    enum class From : uint8_t { Constant, Step, Float, Int } from;  // Step: the next operand of the step
    double value;                                                   // of a constant
    uint32_t scalar = 0;                                            // Float, Int: which of the graph's scalars
  };
  std::vector<Operand> operands;
  double limit;       // finite results beyond it make eager's operators raise
  std::string label;  // "(1 - (0.9 ** item))", for people

  /// The result, bit for bit Python's; nothing where Python raises or gives no float.
  std::optional<double> compute(const double* operands, const uint64_t* scalars) const;
};

/// What Python code asks of floats that were read out of tensors, or follow from such ones.
struct NumberTest {
  support::Test kind;
  std::string label;  // "(item < 0.5)"
  struct Operand {
    int scalar;    // which of CallInputs::scalars; negative: `value` in every call
    double value;  // in the recorded call
  };
  std::vector<Operand> operands;

  bool answer() const;  // of the recorded call
};

/// What Python code read of a tensor: the recorded path is for these values only.
struct ValueGuard {
  enum class Of : uint8_t {
    Elements,
    Sizes,     // all of them
    FewSizes,  // of each whether it is 0, 1 or more
    IsAtMost,  // whether the size of `dim` is at most `limit`
  };
  std::string label;  // "b at model.py:9"
  ir::DType dtype;
  bool is_list;                    // of tolist()
  std::vector<uint64_t> expected;  // per element: see value_bits
  Of of = Of::Elements;
  int64_t dim = 0, limit = 0;

  /// What it would be of a tensor of these sizes; not for Of::Elements.
  void read(c10::IntArrayRef sizes, std::vector<uint64_t>& into) const;
};

/// An element of a tensor as 64 bits: of the double, or of the integer. Two elements of one type are the same number
/// where these are equal; Python can tell NaNs of other signs apart.
uint64_t value_bits(const void* element, ir::DType dtype);

/// Calls `take` with the offset of each element, in row-major order; strides in elements.
template <class Take>
void for_each_element(c10::IntArrayRef sizes, c10::IntArrayRef strides, Take take, int64_t offset = 0) {
  if (sizes.empty()) return take(offset);
  for (int64_t i = 0; i < sizes[0]; ++i)
    for_each_element(sizes.slice(1), strides.slice(1), take, offset + i * strides[0]);
}

/// Where a program input comes from.
struct InputSource {
  enum class Kind : uint8_t { Argument, Captured, Gradient } kind;
  uint32_t index;  // Argument: n-th tensor among the flattened arguments. Captured: n-th of Capture::captured.
                   // Gradient: that of the n-th of Derivative::results
};

/// The IR type of a torch type, or nothing for those the IR lacks (complex, quantised ...).
std::optional<ir::DType> to_ir(c10::ScalarType type);
/// The same, and a raw type of equal width for elements that only torch computes with.
std::optional<ir::DType> memory_type(c10::ScalarType type);
c10::ScalarType to_torch(ir::DType type);

/// Instead of a number of torch's CreationMeta: a view is what it is by the grad mode that it was made under.
inline constexpr int8_t kAsMade = -1;

/// A result that is a view of another one, or of a tensor that was there before: autograd comes to that through it.
struct ResultView {
  uint32_t view, base;     // among the results; of an input, the base among Capture::inputs, while recorded a root
  bool is_one_of_several;  // that one operator has made, which may not be written
  bool is_of_input = false;
};

}  // namespace fastjit::capture
