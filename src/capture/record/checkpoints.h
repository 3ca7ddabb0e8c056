#pragma once
// Checkpoints of a recorded call (torch.utils.checkpoint).
#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "capture/record/trace.h"

namespace fastjit::capture {

/// What hooks of checkpoints have packed while the call is recorded.
struct SavedTensors {
  bool is_open = true;
  std::vector<at::Tensor> tensors;
  void close() { is_open = false, tensors.clear(); }
};

/// Which events are of which checkpoint, and which of the way back through one. They are numbered from 1, as in
/// ir::Checkpoints; 0: none.
class CheckpointEvents {
 public:
  explicit CheckpointEvents(const Trace& trace);
  uint32_t made_in(uint32_t event) const { return made_in_.empty() ? 0 : made_in_[event]; }
  uint32_t back_of(uint32_t event) const { return back_of_.empty() ? 0 : back_of_[event]; }

 private:
  std::vector<uint32_t> made_in_, back_of_;  // per event; empty: the call goes through no checkpoint
};

}  // namespace fastjit::capture
