#pragma once
// Which sizes of a call's tensors are any size in the program that is recorded.
#include <cstdint>
#include <string>
#include <vector>

#include "dispatch/learn/recording.h"

namespace fastjit::dispatch {

inline constexpr const char* kOnDevice = "its tensors are on a CUDA device";  // whose programs are for one size

/// See CallInputs::free_sizes. Where sizes differ from other calls, and none of them may, the recording says why.
std::vector<uint64_t> free_sizes(Recording& recording, const std::vector<std::string>& names);

}  // namespace fastjit::dispatch
