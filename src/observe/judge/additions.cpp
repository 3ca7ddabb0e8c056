// `place += constant`: small numbers have no identity, so the idiom is recognised in the instructions. Nothing but the
// sum uses what the place held, so the fact is its type and the effect is an addition to whatever is there.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <array>

#include "observe/judge/instruction.h"
#include "observe/judge/tracer.h"

namespace fastjit::observe {
namespace {

bool loads(const Instruction& i) { return loads_local(i) || i.op == k_LOAD_GLOBAL || i.op == k_LOAD_DEREF; }
bool loads_constant(const Instruction& i) { return i.op == k_LOAD_CONST || i.op == k_LOAD_SMALL_INT; }

// The walk over the instructions from a load to the store of the sum.
struct Walk {
  const unsigned char* ops;
  int end;
  Instruction at;
  const Instruction& next() { return at = next_of(ops, end, at.offset); }
  bool swaps(int n) const { return at.op == k_SWAP && at.argument == n; }

  // What stands between the sum and its store puts the store's other operands on the stack again.
  bool stores(int load, int name) {
    next();
    if (load == k_LOAD_GLOBAL) return at.op == k_STORE_GLOBAL && at.argument == name;
    if (load == k_LOAD_DEREF) return at.op == k_STORE_DEREF && at.argument == name;
    if (load == k_LOAD_ATTR) return (swaps(2) || loads(at)) && next().op == k_STORE_ATTR && at.argument == name;
    if (swaps(3)) return next(), swaps(2) && next().op == k_STORE_SUBSCR;
    return loads(at) && (next(), loads(at) || loads_constant(at)) && next().op == k_STORE_SUBSCR;
  }
};

}  // namespace

// Fills sum_ if the instruction that runs now loads a number that only `+ constant` and the store behind it use.
// The next instruction puts all that the iterator gives into a list.
bool Tracer::is_unpacked_next() const {
  const Frame& f = frames_.back();
  return next_of(f.ops, static_cast<int>(Py_SIZE(f.code)), f.offset).op == k_LIST_EXTEND;
}

bool Tracer::find_sum() {
  const Frame& f = top();
  const int end = static_cast<int>(Py_SIZE(f.code));
  const int load = f.ops[2 * f.offset];
  int name = 0;
  for (int i = f.offset, shift = 0;; --i, shift += 8) {  // the argument with its prefixes
    name |= f.ops[2 * i + 1] << shift;
    if (!i || f.ops[2 * i - 2] != k_EXTENDED_ARG) break;
  }
  if (load == k_LOAD_GLOBAL || (load == k_LOAD_ATTR && kAttrShift)) {
    if (name & 1) return false;
    name >>= 1;
  }
  const bool is_name = load == k_LOAD_GLOBAL || load == k_LOAD_DEREF || load == k_LOAD_ATTR;
  if (!is_name && !reads_item({load, name, f.offset})) return false;
  Walk walk{f.ops, end, {load, name, f.offset}};
  walk.next();
  PyObject* constant = nullptr;
  if (walk.at.op == k_LOAD_CONST) constant = PyTuple_GET_ITEM(f.code->co_consts, walk.at.argument);
  if (loads_local(walk.at)) constant = local_of(f.frame, walk.at.argument);
  const Ref small = walk.at.op == k_LOAD_SMALL_INT ? Ref::steal(PyLong_FromLong(walk.at.argument)) : Ref();
  if (small) constant = small.get();
  if (!is_number(constant) || walk.next().op != k_BINARY_OP) return false;
  const int operation = walk.at.argument % kFirstInPlace;
  const bool adds = operation == kAdd;
  if (!adds && operation != kSubtract) return false;
  if (!walk.stores(load, name)) return false;
  sum_ = {};
  sum_.load = f.offset;
  sum_.store = walk.at.offset;
  sum_.constant = adds ? Ref::share(constant) : Ref::steal(PyNumber_Negative(constant));
  return bool(sum_.constant);
}

bool Tracer::counts_key(Facts::Id id, PyObject* name, const std::string& label) {
  if (opens_key(id, name, label)) return true;
  if (!find_sum() || !facts_->count_key(id, name, label, where())) return false;
  sum_.frame = top().frame;
  sum_.container = facts_->node(id).object;
  sum_.name = name;
  sum_.dict = id;
  return true;
}

bool Tracer::counts_place(PyObject* place, Node::Kind kind, const std::string& label) {
  if (opens_place(place, kind, label)) return true;
  if (!find_sum() || !facts_->count_place(place, kind, label, where())) return false;
  sum_.frame = top().frame;
  sum_.container = place;
  sum_.name = nullptr;
  sum_.dict = -1;
  sum_.kind = kind;
  return true;
}

// nn.Module.__setattr__ looks at the type of a value and stores it. Any other Python code may use the sum.
void Tracer::enters_setattr(PyObject* hook, PyObject* value) {
  if (!sum_.frame || top().frame != sum_.frame || top().offset != sum_.store) return;
  auto* function = reinterpret_cast<PyFunctionObject*>(hook);
  PyObject* module = PyDict_GetItemString(function->func_globals, "__name__");
  if (!module || !PyUnicode_Check(module) || PyUnicode_CompareWithASCIIString(module, "torch.nn.modules.module") ||
      PyUnicode_CompareWithASCIIString(function->func_qualname, "Module.__setattr__"))
    return;
  sum_.in_setattr = true;
  sum_.value = value;
}

bool Tracer::takes_sum(PyObject* container, PyObject* name, PyObject* value, SideEffect& effect) {
  if (!sum_.frame || sum_.container != container || sum_.name != name) return false;
  const bool stores_it =
      sum_.in_setattr ? sum_.value == value : top().frame == sum_.frame && top().offset == sum_.store;
  if (!stores_it) return false;
  effect.adds = true;
  effect.value = std::move(sum_.constant);
  sum_ = {};
  return true;
}

// Before each instruction: the way from load to store is straight.
void Tracer::follow_sum() {
  const Frame& f = top();
  const bool on_the_way = f.frame == sum_.frame ? f.offset > sum_.load && f.offset <= sum_.store : sum_.in_setattr;
  if (!on_the_way) drop_sum();
}

void Tracer::drop_sum() {
  if (!sum_.frame) return;
  sum_.dict >= 0 ? facts_->pin_key(sum_.dict, sum_.name) : facts_->pin_place(sum_.container, sum_.kind);
  sum_ = {};
}

}  // namespace fastjit::observe
#endif
