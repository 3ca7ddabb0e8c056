#pragma once
// Lowering: one recorded operator call to IR nodes. One table row per operator (this folder); a row that cannot express
// a call (a dtype, an argument value) returns false and the call becomes an extern step.
#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>

#include <span>
#include <string_view>
#include <vector>

#include "capture/calls.h"
#include "capture/lower/index_bound.h"
#include "ir/graph.h"
#include "plan/kernel_plan.h"

namespace fastjit::capture {

/// A tensor argument: its current value in the graph and its metadata. node == kNoNode: not expressible (for example an
/// unsupported dtype); a lowering that needs it returns false.
struct Value {
  ir::NodeId node = ir::kNoNode;
  SharedMeta meta;
};

struct Arg {
  enum class Kind : uint8_t { None, Tensor, TensorList, Constant } kind = Kind::None;
  Value tensor;                       // Tensor
  ir::Dim length{};                   // TensorList: how many there are in any call; `list` has the recorded one's
  mutable bool takes_length = false;  // the row has looked at it
  bool reversed = false;              // and those of the last round come first
  std::vector<Value> list;    // TensorList (an absent element of an optional list has node kNoNode and dtype Undefined)
  c10::IValue constant;       // Constant: int, float, bool, string, int list, dtype, Scalar as double/int/bool ...
  std::vector<ir::Dim> dims;  // Constant: its ints, where some follow from sizes that differ from call to call
  mutable bool takes_dims = false;  // the row has looked at them
  ir::NodeId scalar = ir::kNoNode;  // Constant that is symbolic: a 0-dim F64 or I64 node to use in place of `constant`
};

/// One call, as a lowering sees it. Defaults of the schema are filled in: args.size() == schema argument count.
struct LowerCall {
  ir::Graph& graph;
  std::string_view name;  // "aten::add.Tensor"
  std::span<const Arg> args;
  std::span<const TensorMeta> results;  // what eager returned; the driver checks dtype and sizes of `out` against it
  plan::Numerics numerics = plan::Numerics::Eager;
  std::vector<ir::NodeId> out;  // set by the lowering, one per result
  bool walked = false;          // rounds of a loop read the results, however many there are
  const PickedOf* picked = nullptr;
};

using LowerFn = bool (*)(LowerCall&);

enum class Level : uint8_t {
  Lowered,    // has a LowerFn
  Decompose,  // Enter in aten.def
};

struct LowerRow {
  std::string_view op;  // qualified name with overload, "aten::add.Tensor", "aten::exp" where the overload is empty
  Level level;
  LowerFn fn;  // null for Decompose
};

/// The row of an operator, or null. In-place operators (`aten::add_.Tensor`) have no rows: the driver asks for the
/// functional form.
const LowerRow* find_lowering(std::string_view op);
std::span<const LowerRow> lowerings();

}  // namespace fastjit::capture
