#pragma once
// The enum of IR ops and what is known of each; both are derived from op.def.
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace fastjit::ir {

enum class Op : uint8_t {
#define OP(name, text, arity, rule, flags) name,
#include "ir/op.def"
#undef OP
};

enum class TypeRule : uint8_t { Leaf, Same, Float, Integral, Compare, Select, Convert, Shaped, Opaque };
enum OpFlags : uint8_t { None = 0, Pure = 1, Commutative = 2, Pointwise = 4, Expensive = 8 };
inline constexpr int8_t kVariadic = -1;

struct OpInfo {
  std::string_view text;
  int8_t arity;
  TypeRule rule;
  uint8_t flags;
};

inline constexpr std::array kOps{
#define OP(name, text, arity, rule, flags) OpInfo{text, arity, TypeRule::rule, static_cast<uint8_t>(flags)},
#include "ir/op.def"
#undef OP
};
inline constexpr size_t kOpCount = kOps.size();

constexpr const OpInfo& info(Op op) { return kOps[static_cast<size_t>(op)]; }
constexpr std::string_view text(Op op) { return info(op).text; }
constexpr bool is_pointwise(Op op) { return info(op).flags & Pointwise; }
constexpr bool is_commutative(Op op) { return info(op).flags & Commutative; }
constexpr bool is_expensive(Op op) { return info(op).flags & Expensive; }
/// No kernel of the graph computes it: an argument, what torch computes, what a loop ends with.
constexpr bool is_tensor(Op op) { return op == Op::Input || op == Op::Result || op == Op::Contract || op == Op::Final; }
/// The same elements seen otherwise.
constexpr bool is_view(Op op) { return op == Op::View || op == Op::Reshape; }
constexpr bool is_pure(Op op) { return info(op).flags & Pure; }

constexpr std::optional<Op> parse_op(std::string_view text) {
  for (size_t i = 0; i < kOpCount; ++i)
    if (kOps[i].text == text) return static_cast<Op>(i);
  return std::nullopt;
}

}  // namespace fastjit::ir
