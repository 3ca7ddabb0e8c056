// Why a call is a hit, a new variant or eager, in words.
#include <algorithm>
#include <set>

#include "dispatch/call/function.h"
#include "dispatch/call/value_tree.h"
#include "dispatch/learn/refuse.h"
#include "python/stance.h"

namespace fastjit::dispatch {
namespace {

std::string brief(const TensorSpec& spec) {
  return text(spec) + (spec.requires_grad ? " requiring grad" : "") + (spec.parameter ? " in a Parameter" : "");
}

std::string brief(const ArgSpec& spec) {
  switch (spec.kind) {
    case ArgKind::Tensor:
      return brief(spec.tensor);
    case ArgKind::None:
      return "None";
    case ArgKind::Number:
      return std::string("any ") + spec.type->tp_name;
    case ArgKind::Tuple:
      return std::string("a ") + (spec.type ? spec.type->tp_name : "tuple") + " of " + std::to_string(spec.length);
    case ArgKind::List:
      return "a list of " + std::to_string(spec.length);
    case ArgKind::Dict:
      return "a dict of " + std::to_string(spec.length);
    case ArgKind::Instance:
      return std::string("a ") + spec.type->tp_name + " of " + std::to_string(spec.length) + " attributes";
    case ArgKind::Object:
      return std::string("a certain ") + Py_TYPE(referent(spec))->tp_name;
    default:
      return repr(spec.object);
  }
}

std::string name_of(Py_ssize_t argument, Py_ssize_t nargs, PyObject* kwnames) {
  if (argument < nargs) return std::to_string(argument);
  const char* chars = PyUnicode_AsUTF8(PyTuple_GET_ITEM(kwnames, argument - nargs));
  return "'" + std::string(chars ? chars : "?") + "'";
}

// The first argument in which two calls differ.
std::string difference(const CallSpec& known, const CallSpec& call, Py_ssize_t nargs, PyObject* kwnames) {
  const auto &a = known.specs(), &b = call.specs();
  Py_ssize_t argument = -1, rest = 0;  // rest: nodes of this argument still to come
  size_t tensors = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const bool inside = rest > 0;
    if (inside)
      --rest;
    else
      ++argument;
    rest += b[i].length;
    const bool number = a[i].kind == ArgKind::Number && (b[i].kind == ArgKind::Int || b[i].kind == ArgKind::Float) &&
                        a[i].type == Py_TYPE(b[i].object);
    const std::string was = brief(a[i]), now = brief(b[i]);
    if (!number && was != now)
      return (inside ? "something in argument " : "argument ") + name_of(argument, nargs, kwnames) + " was " + was +
             ", is " + now;
    if (a[i].kind == ArgKind::Tensor && a[i].tensor.key_set != b[i].tensor.key_set)
      return "argument " + name_of(argument, nargs, kwnames) + " has other dispatch keys (an inference tensor, say)";
    const bool is_tensor = b[i].kind == ArgKind::Tensor;
    if (is_tensor && has_attributes(call.flat().tensors[tensors++]) && a[i].bare)
      return "argument " + name_of(argument, nargs, kwnames) + " has attributes of its own";
    if (a[i].same_as >= 0 && a[i].same_as != b[i].same_as) return "two arguments were the same tensor, and are not now";
  }
  if (a.size() != b.size()) return "the number of arguments differs";
  return "";
}

struct PythonCall {
  PyObject* const* args;
  Py_ssize_t nargs;
  PyObject* kwnames;
};

// What keeps sizes from being any size, as the newest recording found: ": x.size(0) is one size for …"; empty: nothing.
std::string fixed_sizes(const Variant& variant) {
  std::string out;
  for (const std::string& one : variant.inspection.fixed_sizes) out += (out.empty() ? ": " : ", ") + one;
  return out;
}

std::string fixed_sizes(const Function& function, Patience::Cause cause) {
  const auto variants = function.variants.recent_first();
  const auto newest = std::ranges::max_element(variants, {}, [](const auto& variant) { return variant->recording; });
  return newest == variants.end() || cause != Patience::Cause::Unused ? "" : fixed_sizes(**newest);
}

// Why a variant does not serve a call, and how far the comparison came; empty: it does, and the call runs its program,
// or eagerly because of `eager`.
struct Misfit {
  int stage = -1;
  std::string why, eager = {};
};
constexpr int kByNumbers = 4, kByValues = 5;  // the last stages

Misfit misfit_of(const Variant& variant, const CallSpec& spec, const Modes& modes, const PythonCall& call,
                 std::vector<capture::ValueGuard>& path) {
  std::vector<PyObject*> tensors(variant.key.spec.object_count()), numbers(variant.number_count());
  const auto arguments = [&] {
    const std::string why = difference(variant.key.spec, spec, call.nargs, call.kwnames);
    if (why.empty()) return std::string("an argument or the name of a keyword differs");
    return why + fixed_sizes(variant);
  };
  if (!variant.key.spec.match(call.args, call.nargs, call.kwnames, tensors.data(), numbers.data()))
    return {0, arguments()};
  const Sized* sized = variant.program.sized.get();
  const auto fits = [&] { return !sized || sized->fits(tensors.data(), numbers.data()); };
  const auto size_guard = [&] { return "guard failed: " + sized->first_failure(tensors.data(), numbers.data()); };
  const bool fits_late = sized && sized->finds_ints();
  if (!fits_late && !fits()) return {1, size_guard()};
  if (!(variant.key.modes == modes)) return {1, difference(variant.key.modes, modes)};
  if (variant.guards.facts && !variant.guards.facts->check())
    return {2, "guard failed: " + variant.guards.facts->first_failure()};
  if (!variant.find_numbers(numbers.data())) return {2, "guard failed: a number is too large for a program"};
  if (fits_late && !fits()) return {2, size_guard()};
  if (variant.program.device >= 0 && !variant.on_its_device(tensors.data())) return {0, arguments()};
  for (size_t i = 0; i < variant.guards.captured.size(); ++i) {
    if (variant.guards.captured.matches(i)) continue;
    PyObject* object = variant.guards.captured.object(i);
    const std::string was = brief(variant.guards.captured.spec(i));
    const std::string is = is_plain_tensor(object) ? brief(TensorSpec::of(object)) : "no tensor";
    return {3, "guard failed: tensor " + variant.guards.captured.name(i) + " was " + was + ", is " +
                   (was == is ? "another kind" : is)};
  }
  if (variant.program.derived.has_guards())
    if (const Derived::Numbers all(variant.program.derived, numbers.data(), numbers.size()); all.differs())
      return {kByNumbers, all.why()};
  std::string why = variant.program.executable ? why_not_run(variant, tensors.data(), numbers.data()) : "";
  if (!why.empty()) return {kByValues, "", why};
  std::string other = other_values(variant, tensors.data(), numbers.data(), path, why);
  return {kByValues, other, why};
}

// "opt.lr at model.py:9", of what facts say of the first one that holds no more, without its values; empty: none is
// such.
std::string changed_fact(const Variant& variant) {
  if (!variant.guards.facts || variant.guards.facts->check()) return "";
  const std::string failure = variant.guards.facts->first_failure();
  const size_t was = failure.find(" was "), place = failure.rfind(" (");
  if (was == std::string::npos || place == std::string::npos || place < was) return "";
  return failure.substr(0, was) + " at " + failure.substr(place + 2, failure.size() - place - 3);
}

// What the newest variant found changed: "opt.lr at model.py:9 keeps changing". What is asked of numbers is looked at
// where all facts hold.
std::string changing_fact(const Function& function) {
  const auto variants = function.variants.recent_first();
  if (variants.empty()) return "";
  std::string what = changed_fact(*variants[0]);
  if (what.empty()) what = variants[0]->program.derived.last_guard();
  return what.empty() ? "" : what + " keeps changing";
}

}  // namespace

Varied most_varied(const Function& function, const CallSpec& call, const std::vector<std::string>& names,
                   const std::vector<capture::ValueGuard>& path) {
  if (!path.empty())
    return {varied_value(function, path),
            "keep it a tensor, as torch.where does, or compare it, instead of its digits"};
  const std::vector<ArgSpec>& specs = call.specs();
  const auto is_object = [](const ArgSpec& spec) { return spec.kind == ArgKind::Object; };
  const auto look = [&](const ArgSpec& spec) {  // of objects: which one it is
    return is_object(spec) ? std::to_string(reinterpret_cast<uintptr_t>(referent(spec))) : brief(spec);
  };
  Varied out;
  const std::vector<size_t> arguments = call.arguments();
  size_t most = 1;
  for (size_t i = 0; i < specs.size(); ++i) {
    std::set<std::string> seen{look(specs[i])};
    for (const auto& variant : function.variants.siblings(call)) {
      const std::vector<ArgSpec>& known = variant->key.spec.specs();
      if (known.size() == specs.size() && known[i].kind == specs[i].kind) seen.insert(look(known[i]));
    }
    if (seen.size() <= most) continue;
    most = seen.size();
    const bool is_layout = specs[i].kind == ArgKind::Tensor;
    out.what = (arguments[i] < names.size() ? names[arguments[i]] : "an argument") + " took " + std::to_string(most) +
               (is_layout             ? " layouts"
                : is_object(specs[i]) ? " objects"
                                      : " values");
    out.advice = is_layout             ? "call it with tensors of fewer sizes, strides and dtypes"
                 : is_object(specs[i]) ? "pass the tensors in it as arguments of their own"
                                       : "pass what changes as a tensor";
  }
  if (!out.what.empty()) return out;
  out.what = changing_fact(function);
  out.advice =
      out.what.empty() ? "pass the tensors in what changes as arguments of their own" : "pass what changes as a tensor";
  return out;
}

std::string explain(const Function& function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  if (stance() == Stance::Eager) return "eager: stance is eager";
  const Modes modes = current_modes();
  if (const char* why = unusual(modes)) return std::string("eager: ") + why;
  if (observe::tracer_active()) return "eager: tracer active";
  const uint64_t calls = function.stats.calls + 1;  // with this one
  const bool waits = in_stretch(function, calls, coming(function, nullptr, args, nargs, kwnames));
  CallSpec call;
  if (!function.options.refused.empty()) return "eager: " + function.options.refused;
  std::string why;
  if (!call.build(args, nargs, kwnames, function.by_content, why))
    return "eager: " + (waits ? function.patience.why : why);
  Misfit nearest;
  ValueMiss miss;
  std::vector<capture::ValueGuard>& path = miss.path;
  auto variants = function.variants.recent_first();
  std::ranges::stable_partition(variants, [](const auto& variant) { return variant->program.executable != nullptr; });
  for (const auto& variant : variants) {
    Misfit misfit = misfit_of(*variant, call, modes, {args, nargs, kwnames}, path);
    if (misfit.stage == kByValues && !variant->guards.values.empty() && skips_values(function, calls))
      return "eager: " + function.patience.why;
    if (misfit.why.empty() && !misfit.eager.empty()) return "eager: " + misfit.eager;
    if (misfit.why.empty() && variant->reason.empty()) return "a hit: " + variant->key.spec.signature();
    if (misfit.why.empty() && !may_retire(function, *variant, calls)) return "eager: " + variant->reason;
    if (misfit.why.empty()) misfit.why = "what was in the way may have passed: " + variant->reason;
    if (misfit.stage > nearest.stage) nearest = misfit;
  }
  if (nearest.stage != kByValues) path.clear();
  const Coming what = coming(function, &miss, args, nargs, kwnames);
  if (in_stretch(function, calls, what))
    return "eager: " + function.patience.why + fixed_sizes(function, function.patience.cause);
  const std::vector<std::string> names = argument_names(function.callable, nargs, kwnames);
  std::string advice;
  why = refuse(function, call, names, advice);
  if (!why.empty()) return "eager: " + why;
  if (const Patience::Cause cause = why_wait(function, call, calls, what); cause != Patience::Cause::None)
    return "eager: " + stretch_reason(function, cause, most_varied(function, call, names, path), call) +
           fixed_sizes(function, cause);
  if (nearest.why.empty() && function.state_recordings)
    nearest.why = "the last recorded call changed what it had read: " + function.state;
  return "a new variant: " + (nearest.why.empty() ? "the function has not been recorded yet" : nearest.why);
}

}  // namespace fastjit::dispatch
