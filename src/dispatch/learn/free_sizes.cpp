#include "dispatch/learn/free_sizes.h"

#include <algorithm>

#include "dispatch/learn/refuse.h"

namespace fastjit::dispatch {
namespace {

using Dims = std::vector<uint64_t>;  // per tensor, as bits

bool is_none(const Dims& dims) {
  return std::ranges::none_of(dims, [](uint64_t mask) { return mask != 0; });
}

// In which other calls like it differed. Symbols for sizes that never differ would only cost guards.
Dims differing(const Recording& recording) {
  const CallSpec& spec = recording.variant->key.spec;
  Dims out;
  for (const CallSpec* known : recording.known_calls) {
    if (!known->same_but_sizes(spec, true)) continue;
    const Dims differ = spec.other_sizes(*known);
    out.resize(differ.size(), 0);
    for (size_t i = 0; i < differ.size(); ++i) out[i] |= differ[i];
  }
  return out;
}

// That the option names.
void add_named(const Recording& recording, const std::vector<std::string>& names, Dims& out) {
  const CallSpec& spec = recording.variant->key.spec;
  const Options& options = recording.function.options;
  const std::vector<PyObject*>& tensors = spec.flat().tensors;
  if (options.dynamic == Dynamic::All) out.assign(tensors.size(), ~uint64_t{0});
  for (size_t i = 0; !options.dynamic_dims.empty() && i < tensors.size(); ++i) {
    out.resize(tensors.size(), 0);
    const std::string name = tensor_names(spec, names)[i];
    const auto dims = options.dynamic_dims.find(name.substr(0, name.find_first_of(".[")));
    if (dims == options.dynamic_dims.end()) continue;
    const int64_t rank = unpack(tensors[i]).dim();
    for (const int64_t dim : dims->second)
      if (const int64_t wrapped = dim < 0 ? dim + rank : dim; wrapped >= 0 && wrapped < std::min<int64_t>(rank, 64))
        out[i] |= uint64_t{1} << wrapped;
  }
}

std::string why_none(const Recording& recording) {
  const Function& function = recording.function;
  if (function.options.pure) return "pure=True";  // nobody sees what Python asks of sizes
  if (function.options.dynamic == Dynamic::None) return "dynamic=False";
  if (!device_of(recording.variant->key.spec.flat().tensors).is_cpu()) return kOnDevice;
  if (!function.fixes_sizes.empty()) return function.fixes_sizes;
  for (const auto& variant : function.variants.all())
    if (variant->program.sized && variant->program.sized->failed()) return variant->program.sized->why_failed();
  return "";
}

}  // namespace

std::vector<uint64_t> free_sizes(Recording& recording, const std::vector<std::string>& names) {
  Dims out = differing(recording);
  std::string why = why_none(recording);
  if (!why.empty()) {
    if (!is_none(out)) recording.fixes_sizes = std::move(why);
    return {};
  }
  add_named(recording, names, out);
  if (is_none(out)) out.clear();
  return out;
}

bool may_be_free(const Recording& recording, PyObject* number, const std::string& name) {
  int overflow = 0;
  return PyLong_CheckExact(number) && recording.function.fixed_ints.contains(name) &&
         may_be_symbol(PyLong_AsLongLongAndOverflow(number, &overflow)) && why_none(recording).empty();
}

std::vector<bool> free_ints(const Recording& recording, const FreshCall& call) {
  std::vector<bool> out(call.fresh.size(), false);
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = call.varying[i] && may_be_free(recording, call.fresh[i], call.names[i]);
  return std::ranges::find(out, true) == out.end() ? std::vector<bool>() : out;
}

}  // namespace fastjit::dispatch
