#pragma once
#include <vector>

#include "capture/record/trace.h"

namespace fastjit::capture {

/// What autograd has to do with a call.
struct Gradients {
  bool suspended = false;         // grad mode is on for the caller, and off while the program runs
  bool inference = false;         // the program runs in inference mode, and its caller does not
  std::vector<int8_t> creations;  // see Capture::view_creations
  std::string unsound;            // not empty: why the call must stay eager
};

/// The first `results` of the leaves are those of the result, the others gradients.
Gradients judge_gradients(const Trace& trace, const std::vector<Use>& leaves, size_t results);

}  // namespace fastjit::capture
