#pragma once
// Facts of torch's operators: the rows of aten.def, and what an operator itself says by its tags.
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "ir/graph.h"

namespace fastjit::capture {

/// What each enumerator says: aten.def.
enum class Effect : uint8_t { None, Metadata, Value, Read, Test, DataSized, Replaces };

enum class OpFlag : uint32_t {
  Enter = 1 << 0,
  Opaque = 1 << 1,
  Allocates = 1 << 2,
  CopiesInto = 1 << 3,
  KeepsLayout = 1 << 4,
  ReachesStorage = 1 << 5,
  WritesStatistics = 1 << 6,
  NeverRaises = 1 << 7,
  MayRaise = 1 << 8,
  Exact = 1 << 9,
  Unneeded = 1 << 10,
  AfterTensor = 1 << 11,
  Lifts = 1 << 12,
  MaskDecides = 1 << 13,
  FirstDim = 1 << 17,
  AsksGradMode = 1 << 20,
  Workspace = 1 << 21,
  GivenSeed = 1 << 22,
  GivesSizes = 1 << 23,
  Position = 1 << 24,
  // No row says these:
  Foreign = 1 << 14,      // not an operator of aten
  SizedByData = 1 << 15,  // by its tags the sizes or the values that it gives depend on data
  Draws = 1 << 16,        // it takes, or may take, random numbers
  Foreach = 1 << 18,      // on lists of tensors; on the CPU a loop over operators, all of which are seen
  Composite = 1 << 19,    // made of others, which autograd sees in its place
};

/// Known once an operator is; calls and events keep a copy.
struct OpFacts {
  constexpr OpFacts() = default;
  constexpr OpFacts(Effect what) : effect(what) {}
  constexpr OpFacts(ir::Product kind) : product(kind) {}
  constexpr OpFacts(OpFlag flag) : flags(static_cast<uint32_t>(flag)) {}

  constexpr bool is(OpFlag flag) const { return flags & static_cast<uint32_t>(flag); }
  /// Python gets a value that depends on contents.
  constexpr bool reads() const { return effect == Effect::Read || effect == Effect::Test; }

  Effect effect = Effect::None;
  std::optional<ir::Product> product;
  uint32_t flags = 0;
};

/// Both. An operator has one effect and is one product, or none.
constexpr OpFacts operator|(OpFacts a, const OpFacts& b) {
  if ((a.effect != Effect::None && b.effect != Effect::None) || (a.product && b.product))
    throw std::logic_error("two effects or products of one operator");
  if (b.effect != Effect::None) a.effect = b.effect;
  if (b.product) a.product = b.product;
  a.flags |= b.flags;
  return a;
}

template <class Enum>
  requires std::is_enum_v<Enum>
constexpr OpFacts operator|(Enum a, OpFlag b) {
  return OpFacts(a) | OpFacts(b);
}

/// Everything known of an operator. A few dozen comparisons of text: ask once an operator, not once a call.
OpFacts facts_of(const c10::OperatorHandle& op);

/// A row of aten.def.
struct OpRow {
  std::string_view op;  // "aten::mm"
  bool all;             // overloads: the name ended in ".*"
  OpFacts facts;
  std::string_view text;  // the facts as they are written
};
std::span<const OpRow> op_rows();
/// The rows that speak of "aten::mm": of its own name and of all its overloads.
std::vector<const OpRow*> rows_of(std::string_view name);

/// "aten::add.Tensor", or "aten::mm" for the overload without a name.
std::string full_name(const c10::OperatorName& name);

/// The name without its overload.
inline std::string_view base_name(std::string_view name) { return name.substr(0, name.find('.')); }

}  // namespace fastjit::capture
