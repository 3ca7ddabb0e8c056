#pragma once
// Which sizes of a call's tensors are any size in the program that is recorded.
#include <cstdint>
#include <string>
#include <vector>

#include "dispatch/learn/fresh_call.h"
#include "dispatch/learn/recording.h"

namespace fastjit::dispatch {

inline constexpr const char* kOnDevice = "its tensors are on a CUDA device";  // whose programs are for one size

/// Whether this number of the call, which differs from other calls', is an int that programs held as a constant, and
/// may be any in this one: see may_be_symbol().
bool may_be_free(const Recording& recording, PyObject* number, const std::string& name);

/// See CallInputs::free_ints.
std::vector<bool> free_ints(const Recording& recording, const FreshCall& call);

/// See CallInputs::free_sizes. Where sizes differ from other calls, and none of them may, the recording says why.
std::vector<uint64_t> free_sizes(Recording& recording, const std::vector<std::string>& names);

}  // namespace fastjit::dispatch
