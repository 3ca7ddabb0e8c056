#pragma once
// Calls whose path depends on values that Python reads out of tensors (item(), bool(t), tolist()). The variants of one
// key form a tree over the values read: each program compares what it reads with what was recorded, and where a value
// is another one, the variant is sought that knows it.
#include "dispatch/call/function.h"

namespace fastjit::dispatch {

/// A call for whose values no variant is known.
struct ValueMiss {
  std::vector<std::shared_ptr<Variant>> tried;
  std::vector<capture::ValueGuard> path;  // what was read, up to the value that is new
  bool is_of_other_sizes = false;         // no value of it is new: no program is for the sizes that were found then
};

/// Whether this call's values, as far as a variant's guards see, agree with what it recorded.
enum class Values : uint8_t {
  Hold,
  Differ,      // `path` has them up to the one that differs
  OtherSizes,  // all up to where it is not for the sizes that a run finds, which `path` has, hold
  Unknown      // the call cannot be served: `why`
};
Values compare_values(const Variant& variant, PyObject* const* tensors, PyObject* const* numbers,
                      std::vector<capture::ValueGuard>& path, std::string& why);

/// "value of b at model.py:9 was True, is False": why `variant` is not for this call, which it serves but for its
/// values; empty if it is. `path` is what other variants were found to read of it. `eager`, not empty: the call runs
/// eagerly because of it.
std::string other_values(const Variant& variant, PyObject* const* tensors, PyObject* const* numbers,
                         std::vector<capture::ValueGuard>& path, std::string& eager);

/// A call that `variant` serves but for its values.
PyObject* call_by_values(FunctionObject* self, std::shared_ptr<Variant> variant, PyObject* const* args, size_t nargsf,
                         PyObject* kwnames, const Modes& modes);

/// "b at model.py:9 took 65 values": the ones known for the last place of `path`, and the one there.
std::string varied_value(const Function& function, const std::vector<capture::ValueGuard>& path);

/// The same for the same values.
uint64_t hash_of(const std::vector<capture::ValueGuard>& path);

/// "True", "2.5", "[1, 2]"
std::string text(const capture::ValueGuard& value);

bool same_values(const std::vector<capture::ValueGuard>& a, const std::vector<capture::ValueGuard>& b);

}  // namespace fastjit::dispatch
