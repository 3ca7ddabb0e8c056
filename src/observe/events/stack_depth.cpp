#include "observe/observe.h"

#if FASTJIT_OBSERVES && PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030E0000
#include "observe/events/opcode_numbers.h"
#include "observe/events/stack_view.h"

namespace fastjit::observe {
namespace {

constexpr int kUnknown = -1;

/// Reads the numbers of an exception table: six bits a byte, the highest first, with a bit for "more follows".
class ExceptionTable {
 public:
  explicit ExceptionTable(PyObject* bytes)
      : at_(reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(bytes))), end_(at_ + PyBytes_GET_SIZE(bytes)) {}
  bool more() const { return at_ < end_; }
  int next() {
    int value = *at_ & 63;
    while (*at_++ & 64) value = value << 6 | (*at_ & 63);
    return value;
  }

 private:
  const unsigned char *at_, *end_;
};

class Walk {
 public:
  Walk(PyCodeObject* code, const unsigned char* ops)
      : ops_(ops), size_(static_cast<int>(Py_SIZE(code))), depths_(static_cast<size_t>(size_), kUnknown) {}

  void arrive(int unit, int depth) {
    if (unit < 0 || unit >= size_) return;
    int& known = depths_[static_cast<size_t>(unit)];
    if (known == kUnknown) {
      known = depth;
      todo_.push_back(unit);
    } else if (known != depth) {
      conflicts_.push_back(unit);
    }
  }

  std::vector<int> finish() {
    while (!todo_.empty()) {
      const int unit = todo_.back();
      todo_.pop_back();
      step(unit);
    }
    for (int unit : conflicts_) depths_[static_cast<size_t>(unit)] = kUnknown;
    return std::move(depths_);
  }

 private:
  void step(int unit) {
    const int depth = depths_[static_cast<size_t>(unit)];
    int op = ops_[2 * unit], oparg = ops_[2 * unit + 1];
    while (op == k_EXTENDED_ARG && unit + 1 < size_) {
      ++unit;
      depths_[static_cast<size_t>(unit)] = depth;
      op = ops_[2 * unit];
      oparg = oparg << 8 | ops_[2 * unit + 1];
    }
    int next = unit + 1;
    while (next < size_ && ops_[2 * next] == k_CACHE) ++next;
    if (const int target = jump_target(op, oparg, next); target >= 0) arrive(target, depth + effect(op, oparg, 1));
    if (goes_on(op)) arrive(next, depth + effect(op, oparg, 0));
  }

  static int effect(int op, int oparg, int jump) {
    const int change = PyCompile_OpcodeStackEffectWithJump(op, oparg, jump);
    return change == PY_INVALID_STACK_EFFECT ? 0 : change;
  }

  static int jump_target(int op, int oparg, int next) {
    switch (op) {
      case k_JUMP_BACKWARD:
      case k_JUMP_BACKWARD_NO_INTERRUPT:
        return next - oparg;
      case k_JUMP_FORWARD:
      case k_FOR_ITER:
      case k_SEND:
      case k_POP_JUMP_IF_FALSE:
      case k_POP_JUMP_IF_TRUE:
      case k_POP_JUMP_IF_NONE:
      case k_POP_JUMP_IF_NOT_NONE:
        return next + oparg;
      default:
        return -1;
    }
  }

  static bool goes_on(int op) {
    switch (op) {
      case k_JUMP_BACKWARD:
      case k_JUMP_BACKWARD_NO_INTERRUPT:
      case k_JUMP_FORWARD:
      case k_RETURN_VALUE:
      case k_RETURN_CONST:
      case k_RAISE_VARARGS:
      case k_RERAISE:
      case k_INTERPRETER_EXIT:
        return false;
      default:
        return true;
    }
  }

  const unsigned char* ops_;
  int size_;
  std::vector<int> depths_, todo_, conflicts_;
};

}  // namespace

std::vector<int> stack_depths(PyCodeObject* code, const unsigned char* ops) {
  Walk walk(code, ops);
  int start = 0;
  while (start < Py_SIZE(code) && ops[2 * start] != k_RESUME) ++start;  // what is before it makes cells and generators
  walk.arrive(start, 0);
  for (ExceptionTable table(code->co_exceptiontable); table.more();) {
    table.next();  // the first unit
    table.next();  // the number of units
    const int handler = table.next(), depth_and_lasti = table.next();
    walk.arrive(handler, (depth_and_lasti >> 1) + (depth_and_lasti & 1) + 1);
  }
  return walk.finish();
}

}  // namespace fastjit::observe
#endif
