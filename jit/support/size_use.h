#pragma once
// Ints that follow from sizes of tensors, as those who watch Python code tell of them.
#include <cstdint>

namespace fastjit::support {

/// An int that Python code gives to an operator, computes with or compares.
struct SizeOperand {
  int64_t number =
      -1;             // which of the call's numbers it is, where it follows from sizes; negative: `value` in all calls
  int64_t value = 0;  // in the recorded call
  bool is_size() const { return number >= 0; }
};

/// What a loop gives its rounds as indices: `low` to `high` - 1, each with `shift` added to it, or the other way round.
struct LoopRange {
  SizeOperand low{}, high{};
  int64_t shift = 0;
  bool falls = false;
};

/// In the place of the value of an operand that is no int.
inline constexpr int64_t kNoInt = INT64_MIN;

/// One of the items that a tensor is indexed with.
struct IndexItem {
  enum class Kind : uint8_t { Slice, Int, NewDim, Rest } kind;
  SizeOperand start{}, stop{}, step{};  // of a slice, as torch takes them; start: the int
};

}  // namespace fastjit::support
