// Why a call is a hit, a new variant or eager, in words.
#include <set>

#include "dispatch/function.h"
#include "dispatch/refuse.h"

namespace fastjit::dispatch {
namespace {

std::string brief(const ArgSpec& spec) {
  switch (spec.kind) {
    case ArgKind::Tensor:
      return text(spec.tensor) + (spec.tensor.requires_grad ? " requiring grad" : "");
    case ArgKind::None:
      return "None";
    case ArgKind::Number:
      return std::string("any ") + spec.type->tp_name;
    case ArgKind::Tuple:
      return "a tuple of " + std::to_string(spec.length);
    case ArgKind::List:
      return "a list of " + std::to_string(spec.length);
    case ArgKind::Dict:
      return "a dict of " + std::to_string(spec.length);
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
    if (a[i].same_as >= 0 && a[i].same_as != b[i].same_as) return "two arguments were the same tensor, and are not now";
  }
  if (a.size() != b.size()) return "the number of arguments differs";
  return "";
}

}  // namespace

std::string most_varied(const Function& function, const CallSpec& call, const std::vector<std::string>& names) {
  const std::vector<ArgSpec>& specs = call.specs();
  std::string out;
  size_t most = 1, argument = 0, rest = 0;  // rest: nodes of the current argument still to come
  for (size_t i = 0; i < specs.size(); ++i) {
    if (rest == 0)
      ++argument;
    else
      --rest;
    rest += static_cast<size_t>(specs[i].length);
    std::set<std::string> seen{brief(specs[i])};
    for (const Variant* variant : function.variants.siblings(call)) {
      const std::vector<ArgSpec>& known = variant->spec.specs();
      if (known.size() == specs.size() && known[i].kind == specs[i].kind) seen.insert(brief(known[i]));
    }
    if (seen.size() <= most) continue;
    most = seen.size();
    out = (argument <= names.size() ? names[argument - 1] : "an argument") + " took " + std::to_string(most) +
          (specs[i].kind == ArgKind::Tensor ? " layouts" : " values");
  }
  return out;
}

std::string explain(const Function& function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  const Modes modes = current_modes();
  if (const char* why = unusual(modes)) return std::string("eager: ") + why;
  if (observe::tracer_active()) return "eager: tracer active";
  CallSpec call;
  std::string why;
  if (!call.build(args, nargs, kwnames, why)) return "eager: " + why;
  std::string nearest;
  for (const auto& variant : function.variants.recent_first()) {
    std::vector<PyObject*> tensors(variant->spec.tensor_count()), numbers(variant->spec.number_count());
    std::string reason;
    if (!variant->spec.match(args, nargs, kwnames, tensors.data(), numbers.data())) {
      reason = difference(variant->spec, call, nargs, kwnames);
      if (reason.empty()) reason = "an argument or the name of a keyword differs";
    } else if (!(variant->modes == modes)) {
      reason = "grad mode, inference mode, autocast or the default dtype differs";
    } else if (variant->facts && !variant->facts->check()) {
      reason = "guard failed: " + variant->facts->first_failure();
    } else if (variant->device >= 0 && !variant->on_its_device(tensors.data())) {
      reason = difference(variant->spec, call, nargs, kwnames);
    } else {
      for (const CapturedTensor& captured : variant->captured)
        if (!captured.spec.matches(captured.object))
          reason = "guard failed: tensor " + captured.name + " was " + text(captured.spec);
    }
    if (reason.empty())
      return variant->executable ? "a hit: " + variant->spec.signature() : "eager: " + variant->reason;
    if (nearest.empty()) nearest = reason;
  }
  std::string advice;
  why = refuse(function, call, modes, argument_names(function.callable, nargs, kwnames), advice);
  if (why.empty()) why = waiting(function, function.stats.calls + 1);
  if (!why.empty()) return "eager: " + why;
  return "a new variant: " + (nearest.empty() ? "the function has not been recorded yet" : nearest);
}

}  // namespace fastjit::dispatch
