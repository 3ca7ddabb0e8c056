#include "dispatch/call/value_tree.h"

#include <algorithm>
#include <bit>
#include <set>

#include "dispatch/learn/compile.h"
#include "python/verify.h"
#include "support/mix.h"

namespace fastjit::dispatch {
namespace {

using capture::ValueGuard;

std::string number_text(uint64_t bits, ir::DType dtype) {
  if (dtype == ir::DType::Bool) return bits ? "True" : "False";
  if (!ir::is_floating(dtype)) return std::to_string(static_cast<int64_t>(bits));
  char* chars = PyOS_double_to_string(std::bit_cast<double>(bits), 'r', 0, Py_DTSF_ADD_DOT_0, nullptr);
  std::string out = chars ? chars : "?";
  PyMem_Free(chars);
  return out;
}

bool is_same(const ValueGuard& a, const ValueGuard& b) { return a.expected == b.expected && a.dtype == b.dtype; }

// Whether `values` begins as `path` does.
bool begins_as(const std::vector<ValueGuard>& values, const std::vector<ValueGuard>& path) {
  return values.size() >= path.size() && std::equal(path.begin(), path.end(), values.begin(), is_same);
}

// The same of two variants, of which one may find sizes as numbers that the other compares.
bool agrees(const std::vector<ValueGuard>& values, const std::vector<ValueGuard>& path) {
  const auto is_sizes = [&](auto at, const auto& all) { return at != all.end() && at->of == ValueGuard::Of::Sizes; };
  auto value = values.begin();
  for (auto seen = path.begin(); seen != path.end(); ++seen) {
    if (is_sizes(seen, path) && !is_sizes(value, values)) continue;
    while (is_sizes(value, values) && !is_sizes(seen, path)) ++value;
    if (value == values.end() || !is_same(*value++, *seen)) return false;
  }
  return true;
}

std::vector<ValueGuard> path_of(const Variant& variant, const ValueCheck& check) {
  const size_t read = check.held + !check.is_of_other_sizes;
  std::vector<ValueGuard> path(variant.guards.values.begin(),
                               variant.guards.values.begin() + static_cast<std::ptrdiff_t>(read));
  if (!check.is_of_other_sizes) path.back().expected = check.seen;
  return path;
}

// One call on its way through the tree.
class Search {
 public:
  Search(FunctionObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames, const Modes& modes)
      : self_(self), function_(*self->function), args_(args), nargsf_(nargsf), kwnames_(kwnames), modes_(modes) {}

  PyObject* run(std::shared_ptr<Variant> variant) {
    if (!serves_now(*variant)) return learn(self_, args_, nargsf_, kwnames_, modes_);
    for (;;) {
      miss_.tried.push_back(variant);
      PyObject* result = nullptr;
      if (!differs(variant, result)) return result;
      variant = next();
      if (!variant) ++function_.patience.unknown_values;
      if (!variant || retire(function_, variant)) return learn(self_, args_, nargsf_, kwnames_, modes_, &miss_);
      const Settled settled = variant->pending ? settle(function_, variant) : Settled::Ready;
      if (settled == Settled::Raises) return nullptr;
      if (settled == Settled::Eager) return eager("");
      if (!variant->program.executable) {
        // The one that leads to it goes later than it: nothing else does.
        function_.variants.used(variant, function_.stats.calls - 1);
        return eager(variant->reason);
      }
    }
  }

 private:
  PyObject* eager(const std::string& why) { return run_eager(function_, why, args_, nargsf_, kwnames_); }

  bool serves_now(const Variant& variant) {
    tensors_.resize(variant.key.spec.object_count());
    numbers_.resize(variant.number_count());
    return serves(variant, modes_, args_, PyVectorcall_NARGS(nargsf_), kwnames_, tensors_.data(), numbers_.data());
  }

  // The newest variant not tried yet that serves the call and knows the values read so far.
  std::shared_ptr<Variant> next() {
    const auto& all = function_.variants.all();
    const auto found = std::find_if(all.rbegin(), all.rend(), [&](const auto& variant) {
      return agrees(variant->guards.values, miss_.path) &&
             std::ranges::find(miss_.tried, variant) == miss_.tried.end() && serves_now(*variant);
    });
    return found == all.rend() ? nullptr : *found;
  }

  // Runs the program. False: `result` is the call's.
  bool differs(const std::shared_ptr<Variant>& variant, PyObject*& result) {
    std::string why;
    const auto apart = [&] { return !overlaps(*variant, tensors_.data()); };
    const bool checks = checks_recordings() && !function_.options.pure && apart();
    const bool verifies = function_.options.verify > 0 && !variant->program.derived.asks_clock() &&
                          is_verified(function_.options.verify, variant->hits) && apart();
    if (checks || verifies || !variant->reason.empty()) {
      const Values values = compare_values(*variant, tensors_.data(), numbers_.data(), miss_.path, why);
      miss_.is_of_other_sizes = values == Values::OtherSizes;
      if (values == Values::Differ || miss_.is_of_other_sizes) return true;
      if (values == Values::Hold && !variant->reason.empty()) why = variant->reason;
      if (values == Values::Hold) function_.patience.unknown_values = 0;
      result = !why.empty() ? eager(why)
               : checks     ? check_recording(self_, *variant, numbers_.data(), args_, nargsf_, kwnames_)
                            : verified_call(self_, variant, tensors_.data(), numbers_.data(), args_, nargsf_, kwnames_);
      return false;
    }
    ValueCheck check{variant->guards.values};
    result = run_variant(*variant, tensors_.data(), numbers_.data(), why, &check);
    if (result) {
      count_hit(function_, *variant);
      function_.variants.used(variant, function_.stats.calls);
      function_.patience.unknown_values = 0;
      return false;
    }
    if (PyErr_Occurred()) return false;
    if (!why.empty()) {
      result = eager(why);
      return false;
    }
    miss_.path = path_of(*variant, check);
    miss_.is_of_other_sizes = check.is_of_other_sizes;
    return true;
  }

  FunctionObject* self_;
  Function& function_;
  PyObject* const* args_;
  size_t nargsf_;
  PyObject* kwnames_;
  const Modes& modes_;
  std::vector<PyObject*> tensors_, numbers_;
  ValueMiss miss_;
};

}  // namespace

std::string text(const ValueGuard& value) {
  if (!value.is_list) return number_text(value.expected[0], value.dtype);
  std::string out;
  for (uint64_t bits : value.expected) out += (out.empty() ? "" : ", ") + number_text(bits, value.dtype);
  return "[" + out + "]";
}

bool same_values(const std::vector<ValueGuard>& a, const std::vector<ValueGuard>& b) {
  return a.size() == b.size() && begins_as(a, b);
}

Values compare_values(const Variant& variant, PyObject* const* tensors, PyObject* const* numbers,
                      std::vector<ValueGuard>& path, std::string& why) {
  ValueCheck check{.expected = variant.guards.values, .guards_only = true};
  if (PyObject* result = run_variant(variant, tensors, numbers, why, &check)) {
    Py_DECREF(result);
    throw std::logic_error("fastjit: a program ran past its last guard");
  }
  if (!why.empty()) return Values::Unknown;
  const bool holds = check.held == variant.guards.values.size() && !check.is_of_other_sizes;
  if (holds) return Values::Hold;
  path = path_of(variant, check);
  return check.is_of_other_sizes ? Values::OtherSizes : Values::Differ;
}

std::string other_values(const Variant& variant, PyObject* const* tensors, PyObject* const* numbers,
                         std::vector<ValueGuard>& path, std::string& eager) {
  if (variant.guards.values.empty()) return "";
  if (!variant.program.executable) return agrees(path, variant.guards.values) ? "" : "it read other values of tensors";
  const Values values = compare_values(variant, tensors, numbers, path, eager);
  if (values == Values::OtherSizes) return "the sizes that it finds are related otherwise";
  if (values != Values::Differ) return "";
  const ValueGuard& was = variant.guards.values[path.size() - 1];
  return "value of " + was.label + " was " + text(was) + ", is " + text(path.back());
}

PyObject* call_by_values(FunctionObject* self, std::shared_ptr<Variant> variant, PyObject* const* args, size_t nargsf,
                         PyObject* kwnames, const Modes& modes) {
  return Search(self, args, nargsf, kwnames, modes).run(std::move(variant));
}

std::string varied_value(const Function& function, const std::vector<ValueGuard>& path) {
  const size_t last = path.size() - 1;
  const std::vector<ValueGuard> before(path.begin(), path.end() - 1);
  std::set<std::vector<uint64_t>> seen{path[last].expected};
  for (const auto& variant : function.variants.all()) {
    const std::vector<ValueGuard>& values = variant->guards.values;
    if (values.size() > last && begins_as(values, before)) seen.insert(values[last].expected);
  }
  return path[last].label + " took " + std::to_string(seen.size()) + " values";
}

uint64_t hash_of(const std::vector<ValueGuard>& path) {
  uint64_t hash = path.size();
  for (const ValueGuard& value : path)
    for (const uint64_t bits : value.expected) hash = support::mix(hash, bits);
  return hash;
}

}  // namespace fastjit::dispatch
