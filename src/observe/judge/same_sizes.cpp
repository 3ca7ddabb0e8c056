// `x.size() == y.size()`, as losses ask it of their operands: of tensors that one mask picked, the answer is the same
// whatever the mask, and nothing is read.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <optional>
#include <utility>

#include "observe/judge/instruction.h"
#include "observe/judge/tracer.h"

namespace fastjit::observe {
namespace {

struct RightSide {
  int local;   // the variable that holds the tensor
  int offset;  // of the instruction that gives its sizes
};

// Of the comparison, == or !=, whose left side the instruction at `offset` gives.
std::optional<RightSide> right_side(PyCodeObject* code, const unsigned char* ops, int offset) {
  const int end = static_cast<int>(Py_SIZE(code));
  Instruction at = next_of(ops, end, offset);
  const auto next = [&] { at = next_of(ops, end, at.offset); };
  if (!loads_local(at)) return std::nullopt;
  const int local = at.argument;
  next();
#if PY_VERSION_HEX < 0x030C0000
  const bool calls = at.op == k_LOAD_METHOD;
  if (at.op != k_LOAD_ATTR && !calls) return std::nullopt;
#else
  const bool calls = at.argument & 1;
  if (at.op != k_LOAD_ATTR) return std::nullopt;
#endif
  PyObject* name = PyTuple_GET_ITEM(code->co_names, at.argument >> kAttrShift);
  if (PyUnicode_CompareWithASCIIString(name, calls ? "size" : "shape") != 0) return std::nullopt;
  if (calls) {
    next();
#if PY_VERSION_HEX < 0x030C0000
    if (at.op == k_PRECALL) next();
#endif
    if (at.op != k_CALL || at.argument != 0) return std::nullopt;
  }
  const int reads = at.offset;
  next();
  const int comparison = at.argument >> kCompareShift;
  if (at.op != k_COMPARE_OP || (comparison != Py_EQ && comparison != Py_NE)) return std::nullopt;
  return RightSide{local, reads};
}

}  // namespace

// The instruction about to run gives all sizes of the tensor, itself, on one side of such a comparison.
bool Tracer::compares_same_sizes(PyObject* tensor) {
  Frame& frame = top();
  const bool is_right = std::exchange(frame.compared, nullptr) == tensor && frame.offset == frame.compared_at;
  if (is_right) return true;
  const auto right = right_side(frame.code, frame.ops, frame.offset);
  PyObject* other = right ? local(right->local) : nullptr;
  if (!other || !is_tensor(other) || !host_.same_sizes || !host_.same_sizes(host_.context, tensor, other)) return false;
  frame.compared = other;
  frame.compared_at = right->offset;
  return true;
}

}  // namespace fastjit::observe
#endif
