// Watched numbers: which uses leave their value open, and numbers that follow from them.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>
#include <array>
#include <cmath>

#include "observe/events/opcode_numbers.h"
#include "observe/judge/tracer.h"

namespace fastjit::observe {
namespace {

using support::Arithmetic;
using support::IntArithmetic;

PyObject* power(PyObject* base, PyObject* exponent) { return PyNumber_Power(base, exponent, Py_None); }

// By BINARY_OP's argument; the in-place forms are the same for numbers.
constexpr struct {
  const char* text;
  binaryfunc apply;  // null: not of numbers that the program may take
  const char* method;
  std::optional<Arithmetic> arithmetic{};
  std::optional<IntArithmetic> integers{};
} kOperators[kFirstInPlace] = {{"+", PyNumber_Add, "add", Arithmetic::Add, IntArithmetic::Add},
                               {"&", nullptr, "and"},
                               {"//", PyNumber_FloorDivide, "floordiv", std::nullopt, IntArithmetic::FloorDiv},
                               {"<<", nullptr, "lshift"},
                               {"@", nullptr, "matmul"},
                               {"*", PyNumber_Multiply, "mul", Arithmetic::Mul, IntArithmetic::Mul},
                               {"%", PyNumber_Remainder, "mod", std::nullopt, IntArithmetic::Mod},
                               {"|", nullptr, "or"},
                               {"**", power, "pow", Arithmetic::Pow},
                               {">>", nullptr, "rshift"},
                               {"-", PyNumber_Subtract, "sub", Arithmetic::Sub, IntArithmetic::Sub},
                               {"/", PyNumber_TrueDivide, "truediv", Arithmetic::Div},
                               {"^", nullptr, "xor"}};

}  // namespace

void Tracer::watch_scalar(PyObject* fresh_number, PyObject* original, bool is_size) {
  using From = WatchedNumbers::From;
  if (original) originals_[fresh_number] = original;
  numbers_.watch(fresh_number, is_size ? From::Size : From::Caller);
}

void Tracer::touch(PyObject* o) {
  if (numbers_.empty()) return;
  if (numbers_.is_open(o)) close_number(numbers_.find(o));
  if (PyTuple_Check(o))
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i) touch(PyTuple_GET_ITEM(o, i));
  if (!PySlice_Check(o)) return;
  const auto* slice = reinterpret_cast<PySliceObject*>(o);
  for (PyObject* bound : {slice->start, slice->stop, slice->step}) touch(bound);
}

void Tracer::touch_inside(PyObject* o, int depth) {
  constexpr int kDeepest = 8;
  if (numbers_.empty() || depth > kDeepest) return;
  touch(o);
  for (Py_ssize_t i = 0; PyList_CheckExact(o) && i < PyList_GET_SIZE(o); ++i)
    touch_inside(PyList_GET_ITEM(o, i), depth + 1);
  for (Py_ssize_t i = 0; PyTuple_Check(o) && i < PyTuple_GET_SIZE(o); ++i)
    touch_inside(PyTuple_GET_ITEM(o, i), depth + 1);
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Check(o) && PyDict_Next(o, &at, &key, &value);) touch_inside(value, depth + 1);
}

// What reads the container touches it, unless that is C code which nobody sees: an iterator that was made before, or a
// function that has called what runs now.
void Tracer::keep(PyObject* value) {
  if (walks_in_c_ || std::ranges::any_of(frames_, &Frame::reads_items)) touch_inside(value);
}

void Tracer::close_number(size_t which) {
  differ();  // another round may have another number there
  if (numbers_.is_asked(which)) guard_asked(which);
  numbers_.close(which);
}

void Tracer::use_scalars(Args operands, bool forwards) {
  if (numbers_.empty() || !host_.on_scalar_use) return;
  auto is_number = [](PyObject* o) { return PyFloat_CheckExact(o) || PyLong_CheckExact(o) || PyBool_Check(o); };
  auto equal = [](PyObject* a, PyObject* b) {
    const double x = PyFloat_CheckExact(a) ? PyFloat_AS_DOUBLE(a) : 0,
                 y = PyFloat_CheckExact(b) ? PyFloat_AS_DOUBLE(b) : 0;
    return PyObject_RichCompareBool(a, b, Py_EQ) == 1 || (x != x && y != y);
  };
  for (size_t i = 0; i < operands.size(); ++i) {
    const size_t which = numbers_.find(operands[i]);
    const bool is_size_int = PyLong_CheckExact(operands[i]) && is_size(operands[i]);
    if (which == WatchedNumbers::kNone || (!forwards && is_size_int)) continue;  // see use_sizes()
    bool alone = true;
    for (size_t k = 0; k < operands.size(); ++k)
      if (k != i && is_number(operands[k]) && equal(operands[i], operands[k])) alone = false;
    host_.on_scalar_use(host_.context, which, alone, forwards, -1);
    using_scalars_ = true;
  }
}

// A list with a number for each of a list of tensors. False: it is none, or holds none that is watched.
bool Tracer::uses_list(PyObject* list) {
  if (!PyList_CheckExact(list) || !is_known(list) || numbers_.empty() || !host_.on_scalar_use) return false;
  const std::span<PyObject* const> items(PySequence_Fast_ITEMS(list), static_cast<size_t>(PyList_GET_SIZE(list)));
  const auto is_open = [&](PyObject* o) { return numbers_.is_open(o); };
  if (!std::ranges::all_of(items, is_number) || std::ranges::none_of(items, is_open)) return false;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!is_open(items[i])) continue;
    host_.on_scalar_use(host_.context, numbers_.find(items[i]), true, false, static_cast<int>(i));
    using_scalars_ = true;
  }
  return true;
}

// True if the instruction makes nothing but a number of watched numbers and constants; its result is watched then.
bool Tracer::derives(Derivation how, Args operands) {
  if (numbers_.empty() || sum_.frame || !host_.on_derived) return false;  // of a sum's place only the type is a fact
  if (!std::ranges::all_of(operands, is_number)) return false;
  for (PyObject* o : operands) numbers_.add_operand(how, o);
  if (how.of_size && !how.of_tensor) {
    const auto is_else = [&](PyObject* o) { return numbers_.is_open(o) && !is_size(o); };
    if (std::ranges::any_of(operands, is_else)) {  // no program knows it before the call nor when it runs
      close_sizes(operands);
      how.operands.clear();
      how.of_size = false;
      return derives(std::move(how), operands);
    }
    if (!how.integers && !how.arithmetic) return false;
  }
  const bool follows = std::ranges::any_of(how.operands, [](const auto& operand) { return operand.scalar >= 0; });
  if (!follows || (how.of_tensor && !runs_in_program(how))) return false;
  derivation_ = std::move(how);
  top().derived_result = true;
  return true;
}

// A float that the call read out of a tensor, or that follows from such ones.
bool Tracer::is_read_from_tensor(PyObject* o) const {
  const size_t which = numbers_.find(o);
  return which != WatchedNumbers::kNone && numbers_.from(which) == WatchedNumbers::From::Tensor &&
         PyFloat_CheckExact(o);
}

// Whether the program can do what Python does with a value that was read out of a tensor. A number that the call asked
// for is a constant of such an operation.
bool Tracer::runs_in_program(Derivation& how) {
  if (!how.arithmetic && !how.test) return false;
  for (Derivation::Operand& operand : how.operands) {
    PyObject* value = operand.value.get();
    constexpr double kExact = 9007199254740992;  // every int up to there is a float
    if (PyLong_CheckExact(value) && std::abs(PyLong_AsDouble(value)) > kExact) return PyErr_Clear(), false;
    const bool is_asked = operand.scalar >= 0 && numbers_.is_asked(static_cast<size_t>(operand.scalar));
    if (is_asked) touch(value), operand.scalar = -1;
  }
  how.of_asked = how.of_clock = false;
  return true;
}

// What a branch makes of a value that was read out of a tensor: a variant for each answer, and not for each value.
bool Tracer::tests_read(support::Test test, std::string text, Args operands) {
  if (numbers_.empty() || sum_.frame || !host_.on_derived || !std::ranges::all_of(operands, is_number)) return false;
  Derivation how;
  how.test = test;
  const auto is_read = [&](PyObject* o) { return numbers_.is_open(o) && !is_size(o); };
  if (std::ranges::any_of(operands, is_read)) close_sizes(operands);
  for (PyObject* o : operands) numbers_.add_operand(how, o);
  if (!how.of_tensor || !runs_in_program(how)) return false;
  how.text = std::move(text);
  how.scalar = Derivation::kUnwatched;
  how.where = where();
  host_.on_derived(host_.context, how);
  return true;
}

bool Tracer::tests_read_by_call(PyObject* callee, Args args) {
  if (callee != plain_callee_ || args.size() != 1 || !is_read_from_tensor(args[0])) return false;
  const std::string text = callee_text(callee);
  for (const auto& [name, test] : {std::pair{"isnan", support::Test::IsNan},
                                   {"isinf", support::Test::IsInf},
                                   {"isfinite", support::Test::IsFinite}})
    if (text == name) return tests_read(test, text, args);
  return false;
}

std::string_view Tracer::comparison_text(int comparison) {
  constexpr const char* kTexts[] = {"<", "<=", "==", "!=", ">", ">="};  // by Py_LT ...
  return kTexts[comparison];
}

bool Tracer::compares_read(int comparison, PyObject* left, PyObject* right) {
  return tests_read(static_cast<support::Test>(comparison), std::string(comparison_text(comparison)),
                    std::array{left, right});
}

// The methods of a tensor that a binary operator or a comparison calls.
void Tracer::note_operator(PyObject* tensor, int oparg) {
  if (oparg == kComparison) return note_comparisons(Py_TYPE(tensor));
  const std::string name = kOperators[oparg % kFirstInPlace].method;
  for (const char* form : {"__", "__r", "__i"}) {
    if (form[2] == 'i' && oparg < kFirstInPlace) continue;
    class_attr(Py_TYPE(tensor), intern(PyUnicode_FromString((form + name + "__").c_str())));
  }
}

// An operator of a class written in Python, which is watched. In-place forms fall back to the plain ones.
bool Tracer::computes_in_python(PyObject* left, PyObject* right, int oparg) {
  const auto method = [&](PyObject* o, const char* form) -> PyObject* {
    if (is_tensor(o) || PyType_Check(o) || !is_instance(o)) return nullptr;
    const std::string name = kOperators[oparg % kFirstInPlace].method;
    return class_attr(Py_TYPE(o), intern(PyUnicode_FromString((form + name + "__").c_str())));
  };
  const auto is_python = [](PyObject* found) { return found && PyFunction_Check(found); };
  if (is_python(method(left, "__"))) {
    note_instance(left);
    method(left, "__i");
    if (PyObject* other = method(right, "__r")) return note_instance(right), is_python(other);
    return readable(right) || is_instance(right);
  }
  if (!is_python(method(right, "__r")) || !(is_plain_value(left) || PyTuple_CheckExact(left))) return false;
  note_instance(right);
  return readable(left);
}

// An instance whose class says in Python what functions of torch do with it.
bool Tracer::takes_functions(PyObject* o) {
  if (is_tensor(o) || PyType_Check(o) || is_module(o) || is_plain_value(o) || !is_instance(o)) return false;
  PyObject* method = class_attr(Py_TYPE(o), "__torch_function__");
  if (!method || !Py_IS_TYPE(method, &PyClassMethod_Type)) return false;
  note_instance(o);
  return true;
}

// It is an operand beside a tensor: its own methods are asked, or the tensor's, which asks its __torch_function__.
bool Tracer::meets_tensors(PyObject* o, int oparg) {
  if (oparg == kComparison || !takes_functions(o)) return false;
  for (const char* form : {"__", "__r", "__i"}) {
    const std::string name = form + std::string(kOperators[oparg % kFirstInPlace].method) + "__";
    PyObject* method = class_attr(Py_TYPE(o), intern(PyUnicode_FromString(name.c_str())));
    if (method && !PyFunction_Check(method)) return false;
  }
  return true;
}

bool Tracer::derives_by_operator(int oparg, PyObject* left, PyObject* right) {
  const auto& row = kOperators[oparg % kFirstInPlace];
  if (!row.apply) return false;
  Derivation how;
  how.binary = row.apply;
  how.text = row.text;
  how.arithmetic = row.arithmetic;
  how.integers = row.integers;
  return derives(std::move(how), std::array{left, right});
}

bool Tracer::derives_by_call(PyObject* callee, Args args) {
  if (callee != plain_callee_ || args.empty()) return false;
  Derivation how;
  how.function = Ref::share(callee);
  how.text = callee_text(callee);
  // Which of two numbers it gives the comparison says that it makes.
  const bool is_max = callee == imported("builtins:max").get();
  if (args.size() == 2 && (is_max || callee == imported("builtins:min").get())) {
    const int comparison = is_max ? Py_GT : Py_LT;
    if (compares_open(comparison, args[1], args[0]) || compares_read(comparison, args[1], args[0])) return true;
  }
  if (how.text == "sqrt" && args.size() == 1) how.arithmetic = Arithmetic::Sqrt;
  return derives(std::move(how), args);
}

bool Tracer::derives_by_minus(PyObject* o) {
  Derivation how;
  how.unary = PyNumber_Negative;
  how.text = "-";
  how.arithmetic = Arithmetic::Neg;
  how.integers = IntArithmetic::Neg;
  return derives(std::move(how), std::array{o});
}

// Operands that are handed on have an identity of their own. In the place of an int that Python shares there is now one
// of the call's.
void Tracer::take_derived(PyObject* number) {
  Derivation how = std::move(derivation_);
  if (how.of_asked && PyBool_Check(number)) return guard_number(std::move(how), number);
  if (how.of_asked && !is_number(number)) return deny("call of " + how.text + ", which gives no int or float,");
  if (is_shared(number))
    if (PyObject* own = own_copy(number)) {
      top().stack.replace(1, own);
      number = own;
    }
  const bool is_of_size = how.of_size && !how.of_tensor;
  const bool is_known = PyLong_CheckExact(number) ? how.integers.has_value() : how.arithmetic.has_value();
  const bool is_watchable = (!is_of_size || is_known) && fits_program(number) && Py_REFCNT(number) == 1;
  if (how.of_asked && !is_watchable) return guard_number(std::move(how), number);
  if (!is_watchable) {
    for (const Derivation::Operand& operand : how.operands) touch(operand.value.get());
    return;
  }
  how.scalar = numbers_.size();
  how.number = Ref::share(number);
  how.where = where();
  using From = WatchedNumbers::From;
  numbers_.watch(number, how.of_tensor  ? From::Tensor
                         : how.of_clock ? From::Clock
                         : how.of_asked ? From::Asked
                         : is_of_size   ? From::Size
                                        : From::Caller);
  host_.on_derived(host_.context, how);
  if (is_of_size) return;  // the host knows what it is in another call
  numbers_.derived(std::move(how));
}

}  // namespace fastjit::observe
#endif
