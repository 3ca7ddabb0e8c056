#pragma once
// When a hit asks clocks and generators again. Private to recording.cpp.
#include <string>
#include <vector>

#include "dispatch/learn/recording.h"

namespace fastjit::dispatch {

/// When a hit computes each of the recording's derivations; those of tensors, and those that nothing needs, have none.
/// `refused`, not empty: the call cannot be a program, since a number that no two calls share decides what it does.
struct Schedule {
  std::vector<std::optional<Derived::Use>> uses;
  std::string refused;
};
Schedule schedule_numbers(const Recording& recording);

}  // namespace fastjit::dispatch
