// Sizes that differ from call to call, as ints: each read gives objects of the call's own, which are watched as its
// number arguments are. Whoever watches the operators knows what a size is in another call, and what follows from it.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>
#include <array>
#include <optional>

#include "observe/events/opcode_numbers.h"
#include "observe/judge/instruction.h"
#include "observe/judge/tracer.h"

namespace fastjit::observe {
namespace {

constexpr int kCount = -1;  // of elements, in place of a dim

// What an instruction adds to the stack. Nothing: it is none of those that make the pieces of a text.
std::optional<int> growth_of(int op, int arg) {
  constexpr int kCallable = 1;
  if (op == k_LOAD_CONST || op == k_LOAD_FAST || op == k_LOAD_FAST_BORROW || op == k_LOAD_SMALL_INT) return 1;
  if (op == k_LOAD_GLOBAL && !(arg & kCallable)) return 1;
  if (op == k_BINARY_SUBSCR || op == k_BINARY_OP) return -1;
  if (op == k_BUILD_STRING) return 1 - arg;
#if PY_VERSION_HEX < 0x030C0000
  if (op == k_LOAD_ATTR) return 0;
#else
  if (op == k_LOAD_ATTR && !(arg & kCallable)) return 0;
#endif
#if PY_VERSION_HEX < 0x030D0000
  constexpr int kHasSpec = 4;
  if (op == k_FORMAT_VALUE) return arg & kHasSpec ? -1 : 0;
#else
  if (op == k_FORMAT_SIMPLE || op == k_CONVERT_VALUE) return 0;
  if (op == k_FORMAT_WITH_SPEC) return -1;
  if (op == k_LOAD_FAST_LOAD_FAST) return 2;
#endif
#if PY_VERSION_HEX >= 0x030E0000
  if (op == k_LOAD_FAST_BORROW_LOAD_FAST_BORROW) return 2;
#endif
  return std::nullopt;
}

// Whether the code behind this instruction makes one text of so many pieces and values that lie on the stack, and gives
// it to a call as the second of two arguments.
bool makes_second_argument(const unsigned char* ops, int offset, int pieces) {
#if PY_VERSION_HEX < 0x030C0000
  constexpr int kCall = k_PRECALL;
#else
  constexpr int kCall = k_CALL;
#endif
  for (int i = offset + 1;; ++i) {
    const int op = ops[2 * i], arg = ops[2 * i + 1];
    if (op == k_CACHE) continue;
    if (op == kCall) return pieces == 1 && arg == 2;
    const std::optional<int> growth = growth_of(op, arg);
    if (!growth || (pieces += *growth) < 1) return false;
  }
}

// Where the instruction gives an int that the next one compares with a constant: the number n for which "it is at most
// n" decides the answer, of a size.
std::optional<int64_t> asked_of_size(PyCodeObject* code, const unsigned char* ops, int offset) {
  std::optional<int64_t> constant;
  for (int i = offset + 1;; ++i) {  // to a return at the latest
    const int op = ops[2 * i], arg = ops[2 * i + 1];
    if (op == 0) continue;  // a cache
    if (op == k_LOAD_SMALL_INT && !constant) {
      constant = arg;
    } else if (op == k_LOAD_CONST && !constant) {
      PyObject* number = PyTuple_GET_ITEM(code->co_consts, arg);
      if (!PyLong_CheckExact(number)) return std::nullopt;
      int overflow = 0;
      constant = PyLong_AsLongLongAndOverflow(number, &overflow);
      if (overflow != 0 || *constant < 0) return std::nullopt;
    } else if (op == k_COMPARE_OP && constant) {
      const int comparison = arg >> kCompareShift;
      if (comparison == Py_EQ || comparison == Py_NE) return *constant == 0 ? constant : std::nullopt;
      return comparison == Py_LT || comparison == Py_GE ? *constant - 1 : *constant;
    } else {
      return std::nullopt;
    }
  }
}

// Where the instruction gives a torch.Size of which the next ones take the item at a constant: that dim; negative: they
// do not.
int item_of_size(PyCodeObject* code, const unsigned char* ops, int offset, long rank) {
  const auto end = static_cast<int>(Py_SIZE(code));
  const Instruction load = next_of(ops, end, offset);
  if (!reads_item(next_of(ops, end, load.offset))) return -1;
  long dim = load.op == k_LOAD_SMALL_INT ? load.argument : rank;
  if (load.op == k_LOAD_CONST) {
    PyObject* constant = PyTuple_GET_ITEM(code->co_consts, load.argument);
    if (!PyLong_CheckExact(constant)) return -1;
    int overflow = 0;
    dim = PyLong_AsLongAndOverflow(constant, &overflow);
    if (dim < 0) dim += rank;
  }
  return dim >= 0 && dim < rank ? static_cast<int>(dim) : -1;
}

std::span<PyObject*> items_of(PyObject* sequence) {
  return {PySequence_Fast_ITEMS(sequence), static_cast<size_t>(Py_SIZE(sequence))};
}

bool holds_ints(PyObject* sequence) {
  return std::ranges::all_of(items_of(sequence), [](PyObject* item) { return PyLong_CheckExact(item); });
}

}  // namespace

// One whose value nothing has read. A float that follows from sizes is one, too.
bool Tracer::is_size(PyObject* o) const {
  const size_t which = numbers_.find(o);
  return which != WatchedNumbers::kNone && numbers_.is_open(which) &&
         numbers_.from(which) == WatchedNumbers::From::Size;
}

// The instruction about to run reads this size of the tensor, or all, and gives it itself: it is no function that calls
// another for each of some tensors, and gives their sum.
void Tracer::read_sizes(PyObject* tensor, int dim, bool gives_it) {
  int64_t known = host_.on_sizes ? host_.on_sizes(host_.context, tensor) : -1;
  if (known < 0) {
    if (gives_it && dim == Frame::kAllDims && compares_same_sizes(tensor)) return;
    const bool may_ask = gives_it && dim >= kCount;
    const int64_t asked = may_ask ? asked_of_size(top().code, top().ops, top().offset).value_or(-1) : -1;
    const bool is_list = dim == kCount && asked >= 0 && rank_of(tensor) == 1;
    const bool tells = asked >= 0 && (dim != kCount || is_list || asked == 0);
    if (tells && host_.on_slice) return host_.on_slice(host_.context, tensor, is_list ? 0 : dim, asked);
    const bool takes_item = gives_it && dim == Frame::kAllDims;
    known = found_sizes(tensor, takes_item ? item_of_size(top().code, top().ops, top().offset, rank_of(tensor)) : dim,
                        gives_it);
  }
  watch_sizes(known, dim);
}

// The same of len(), whatever the tensor's method reads for it.
void Tracer::read_length(PyObject* tensor, bool gives_it) {
  const int64_t known = host_.on_sizes ? host_.on_sizes(host_.context, tensor) : -1;
  watch_sizes(known < 0 ? found_sizes(tensor, 0, gives_it) : known, 0);
}

// Those that data decides, this one or any. What the host calls the tensor; negative: it takes them for facts.
int64_t Tracer::found_sizes(PyObject* tensor, int dim, bool gives_it) {
  const int64_t known = gives_it && host_.on_found_sizes ? host_.on_found_sizes(host_.context, tensor, dim) : -1;
  if (known < 0 && host_.on_size_read) host_.on_size_read(host_.context, tensor, dim);
  return known;
}

// What the instruction gives is watched, see take_sizes(); negative: it is not.
void Tracer::watch_sizes(int64_t tensor, int dim) {
  if (tensor < 0) return;
  top().sizes_of = tensor;
  top().size_dim = dim;
}

long Tracer::rank_of(PyObject* tensor) {
  const Ref rank = Ref::steal(PyObject_GetAttrString(tensor, "ndim"));
  const long count = rank ? PyLong_AsLong(rank.get()) : 0;
  PyErr_Clear();
  return count;
}

// As a function of torch's written in C.
void Tracer::read_sizes_by_call(PyObject* callable, PyObject* tensor, std::string_view name, Args args) {
  if (name == "contiguous") {
    if (host_.on_contiguous && tensor == args[0])
      host_.on_contiguous(host_.context, tensor, args.size() > 1 ? args[1] : nullptr);
    return;
  }
  const bool gives_it = callable == called_;
  if (name == "numel" || name == "nelement") return read_sizes(tensor, kCount, gives_it);
  if (name == "size" && args.size() == 1) return read_sizes(tensor, Frame::kAllDims, gives_it);
  if (name != "size" || args.size() != 2 || !PyLong_CheckExact(args[1]))
    return host_.on_size_read(host_.context, tensor, -1);
  touch(args[1]);
  const long count = rank_of(tensor), dim = PyLong_AsLong(args[1]);
  PyErr_Clear();
  const long wrapped = dim < 0 ? dim + count : dim;
  if (wrapped >= 0 && wrapped < count) read_sizes(tensor, static_cast<int>(wrapped), gives_it);
}

// What it gave lies on the stack.
void Tracer::take_sizes(int64_t tensor, int dim) {
  PyObject* sizes = at(1);
  const bool is_list = dim == Frame::kAllDims;
  if (is_list ? PyTuple_CheckExact(sizes) || !PyTuple_Check(sizes) : !PyLong_CheckExact(sizes))
    return host_.on_size(host_.context, tensor, -1, nullptr);
  if (!is_list) {
    if (PyObject* own = own_size(tensor, dim, sizes)) top().stack.replace(1, own);
    return;
  }
  const Ref items = Ref::steal(PyTuple_New(PyTuple_GET_SIZE(sizes)));
  for (Py_ssize_t i = 0; items && i < PyTuple_GET_SIZE(sizes); ++i) {
    PyObject* size = PyTuple_GET_ITEM(sizes, i);
    PyObject* own = own_size(tensor, static_cast<int>(i), size);
    PyTuple_SET_ITEM(items.get(), i, own ? own : Py_NewRef(size));
  }
  PyObject* own = items ? PyObject_CallOneArg(reinterpret_cast<PyObject*>(Py_TYPE(sizes)), items.get()) : nullptr;
  if (own) return top().stack.replace(1, own);
  PyErr_Clear();
  host_.on_size(host_.context, tensor, -1, nullptr);
}

// A new reference; null where there is no memory for it.
PyObject* Tracer::own_size(int64_t tensor, int dim, PyObject* number) {
  PyObject* own = own_copy(number);
  if (!own) PyErr_Clear();
  host_.on_size(host_.context, tensor, dim, own);
  if (own) numbers_.watch(own, WatchedNumbers::From::Size);
  return own;
}

// Ints alone, some of them sizes.
bool Tracer::is_size_list(PyObject* o) const {
  if (numbers_.empty() || !host_.on_sizes_used || !(PyTuple_Check(o) || PyList_CheckExact(o))) return false;
  if (PyTuple_Check(o) ? !holds_only_items(Py_TYPE(o)) : !is_known(o)) return false;
  return holds_ints(o) && std::ranges::any_of(items_of(o), [&](PyObject* item) { return is_size(item); });
}

// The value at this place of the stack is put into the text that torch._assert() is given with a condition that holds:
// nothing reads that.
bool Tracer::is_in_unread_message(int place) {
  constexpr int kCallee = PY_VERSION_HEX < 0x030D0000 ? 1 : 2;  // below the condition: there a null lies above it
  static PyObject* const assertion = Py_XNewRef(imported("torch:_assert").get());
  int condition = place + 1;
  while (top().stack.at_or_null(condition) && PyUnicode_CheckExact(at(condition))) ++condition;
  return assertion && top().stack.at_or_null(condition) == Py_True &&
         top().stack.at_or_null(condition + kCallee) == assertion &&
         makes_second_argument(top().ops, top().offset, condition - place);
}

void Tracer::close_sizes(Args operands) {
  for (PyObject* o : operands)
    if (is_size(o)) touch(o);
}

// An operator is given these. Two arguments by name may stand in another order than its parameters.
void Tracer::use_sizes(Args args) {
  if (numbers_.empty() || !host_.on_sizes_used) return;
  PyObject* names = top().kwnames ? top().kwnames : unpacked_names_;
  const size_t by_name = names ? static_cast<size_t>(PyTuple_GET_SIZE(names)) : 0;
  std::vector<SizeOperand> ints;
  size_t named = 0;
  bool has_sizes = false;
  const auto add = [&](PyObject* o) {
    const bool is_one = is_size(o);
    has_sizes |= is_one;
    ints.push_back({is_one ? static_cast<int64_t>(numbers_.find(o)) : -1, PyLong_AsLongLong(o)});
  };
  for (size_t i = 0; i < args.size(); ++i) {
    const size_t before = ints.size();
    PyObject* arg = args[i];
    const bool is_list = PyTuple_Check(arg) || PyList_CheckExact(arg);
    if (PyLong_CheckExact(arg)) add(arg);
    for (Py_ssize_t k = 0; is_list && k < PySequence_Fast_GET_SIZE(arg); ++k)
      if (PyObject* item = PySequence_Fast_ITEMS(arg)[k]; PyLong_CheckExact(item)) {
        if (!is_size(item)) touch(item);  // beside sizes in a list other numbers of the call's are facts
        add(item);
      }
    named += i + by_name >= args.size() && ints.size() > before;
  }
  if (!has_sizes) return PyErr_Clear();
  if (named > 1 || PyErr_Occurred()) {
    PyErr_Clear();
    for (PyObject* arg : args) touch(arg);
    for (const SizeOperand& one : ints)
      if (one.number >= 0) close_number(static_cast<size_t>(one.number));
    return;
  }
  host_.on_sizes_used(host_.context, ints);
  using_scalars_ = true;
}

// An index of ints and slices alone. False: nobody knows the tensor, or it holds more.
bool Tracer::tells_slices(PyObject* tensor, Args items) {
  using Kind = IndexItem::Kind;
  if (!host_.on_index) return false;
  bool is_plain = true;
  const auto operand = [&](PyObject* o, int64_t otherwise) -> SizeOperand {
    is_plain &= o == Py_None || PyLong_CheckExact(o);
    if (!PyLong_CheckExact(o)) return {-1, otherwise};
    return {is_size(o) ? static_cast<int64_t>(numbers_.find(o)) : -1, PyLong_AsLongLong(o)};
  };
  std::vector<IndexItem> told;
  for (PyObject* o : items) {
    const auto* slice = reinterpret_cast<PySliceObject*>(o);
    if (PySlice_Check(o))
      told.push_back(
          {Kind::Slice, operand(slice->start, 0), operand(slice->stop, PY_SSIZE_T_MAX), operand(slice->step, 1)});
    else if (PyLong_CheckExact(o))
      told.push_back({Kind::Int, operand(o, 0), {}, {}});
    else if (o == Py_None || o == Py_Ellipsis)
      told.push_back({o == Py_None ? Kind::NewDim : Kind::Rest, {}, {}, {}});
    else
      is_plain = false;
  }
  for (PyObject* o : items)  // other numbers of the caller's are facts
    if (!PySlice_Check(o) && !is_size(o)) touch(o);
  if (PyErr_Occurred()) return PyErr_Clear(), false;
  if (!is_plain || !host_.on_index(host_.context, tensor, told)) return false;
  using_scalars_ = true;
  return true;
}

// True: what the comparison says is what the host says of these sizes.
bool Tracer::compares_sizes(int comparison, Derivation how, Args operands) {
  const auto is_else = [&](PyObject* o) { return numbers_.is_open(o) && !is_size(o); };
  if (std::ranges::any_of(operands, is_else)) {
    close_sizes(operands);
    return compares_open(comparison, operands[0], operands[1]);
  }
  how.comparison = comparison;
  how.text = comparison_text(comparison);
  how.scalar = Derivation::kUnwatched;
  how.where = where();
  host_.on_derived(host_.context, how);
  return true;
}

// x.shape == y.shape: up to the first two that differ.
bool Tracer::compares_size_lists(int comparison, PyObject* left, PyObject* right) {
  if (comparison != Py_EQ && comparison != Py_NE) return false;
  if (!PyTuple_Check(left) || !PyTuple_Check(right) || !(is_size_list(left) || is_size_list(right))) return false;
  if (Py_SIZE(left) != Py_SIZE(right)) return true;
  if (!holds_ints(left) || !holds_ints(right)) return false;
  for (Py_ssize_t i = 0; i < Py_SIZE(left); ++i) {
    PyObject *a = PyTuple_GET_ITEM(left, i), *b = PyTuple_GET_ITEM(right, i);
    if (!compares_open(Py_EQ, a, b)) touch(a), touch(b);
    if (PyObject_RichCompareBool(a, b, Py_EQ) != 1) return true;
  }
  return true;
}

}  // namespace fastjit::observe
#endif
