// Calls that every hit makes again, in their order: of clocks, of the generators behind the functions of the modules
// random and numpy.random, and of what tells a setting of torch's. Answers of the first two are numbers that no two
// calls share, so what may depend on them is a tensor, a result, a stored value or the outcome of a comparison.
#include "observe/observe.h"

#if FASTJIT_OBSERVES
#include <algorithm>
#include <string_view>

#include "observe/events/opcode_numbers.h"
#include "observe/judge/tracer.h"

namespace fastjit::observe {
namespace {

// "random.getrandbits" for the row "_random:Random.getrandbits".
std::string asked_text(PyObject* callee) {
  const std::string_view row = known_name(known_function(callee));
  const std::string_view module = row.substr(0, row.find(':'));
  const std::string package = module == "_random"               ? "random"
                              : module == "numpy.random.mtrand" ? "np.random"
                              : module == "torch._C"            ? "torch._C"
                                                                : "time";
  return package + "." + std::string(row.substr(row.find_last_of(":.") + 1));
}

PyObject* bound(PyObject* function, PyObject* self) {
  const descrgetfunc bind = Py_TYPE(function)->tp_descr_get;
  if (PyCFunction_Check(function) || !bind) return Py_NewRef(function);
  return bind(function, self, reinterpret_cast<PyObject*>(Py_TYPE(self)));
}

}  // namespace

// `args` are without `self`.
void Tracer::ask(Asked whom, PyObject* callee, PyObject* self, Args args) {
  const bool is_plain = !top().kwnames && !unpacked_names_ && std::ranges::all_of(args, is_number);
  Derivation how;
  how.function = self ? Ref::steal(bound(callee, self)) : Ref::share(callee);
  if (!is_plain || !host_.on_derived || !how.function) return PyErr_Clear(), deny("call of " + callee_text(callee));
  for (PyObject* o : args) {
    const bool is_given = numbers_.is_open(o) && !is_read_from_tensor(o) && !is_size(o);
    if (!is_given) touch(o);
    numbers_.add_operand(how, o);
  }
  how.asked = whom;
  how.of_asked = true;
  how.of_clock |= whom == Asked::Clock;
  how.text = asked_text(callee);
  derivation_ = std::move(how);
  top().derived_result = true;
}

void Tracer::judge_clock(PyObject* callee, Args args) { ask(Asked::Clock, callee, nullptr, args); }

void Tracer::judge_random(PyObject* callee, Args args) {
  if (args.empty() || args[0] != imported("random:_inst").get()) return deny("call of " + callee_text(callee));
  ask(Asked::Random, callee, args[0], args.subspan(1));
}

void Tracer::judge_numpy_random(PyObject* callee, Args args) {
  if (args.empty() || args[0] != imported("numpy.random.mtrand:_rand").get())
    return deny("call of " + callee_text(callee));
  ask(Asked::NumpyRandom, callee, args[0], args.subspan(1));
}

void Tracer::judge_setting(PyObject* callee, Args args) { ask(Asked::Torch, callee, nullptr, args); }

// What a branch makes of watched numbers is the same in many calls, the numbers are not.
bool Tracer::compares_open(int comparison, PyObject* left, PyObject* right) {
  if (numbers_.empty() || sum_.frame || !host_.on_derived || !is_number(left) || !is_number(right)) return false;
  Derivation how;
  for (PyObject* o : {left, right}) numbers_.add_operand(how, o);
  const bool is_open = how.operands[0].scalar >= 0 || how.operands[1].scalar >= 0;
  if (!is_open || how.of_tensor) return false;
  if (how.of_size) return compares_sizes(comparison, std::move(how), std::array{left, right});
  how.comparison = comparison;
  how.text = comparison_text(comparison);
  const Ref answer = Ref::steal(PyObject_RichCompare(left, right, comparison));
  guard_number(std::move(how), answer.get());
  return true;
}

// The number has no name of its own: every hit computes it and compares it with this one.
void Tracer::guard_number(Derivation how, PyObject* number) {
  how.scalar = Derivation::kUnwatched;
  how.number = Ref::share(number);
  how.where = where();
  host_.on_derived(host_.context, how);
  const bool repeats = PyBool_Check(number) || (PyLong_CheckExact(number) && !how.of_clock);
  if (!repeats) return deny("use of the number " + how.text);
  numbers_.derived(std::move(how));
}

// Python code uses the number itself. An int that was drawn may come again.
void Tracer::guard_asked(size_t scalar) {
  const Derivation* how = numbers_.derivation_of(scalar);
  if (!how || (PyLong_CheckExact(how->number.get()) && !how->of_clock)) return;
  deny("use of the number " + how->text + " other than in arithmetic and comparisons");
}

}  // namespace fastjit::observe
#endif
