#pragma once
// Memory that an operator only allocated. Until another operator writes to it, it holds a pattern of ours: where the
// pattern is gone, something wrote that no operator shows (TorchScript's torch.tensor, a pointer), which no program
// would do again.
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "capture/record/trace.h"

namespace fastjit::capture {

class BlankMemory {
 public:
  explicit BlankMemory(const Trace& trace) : trace_(trace) {}

  /// To be called with each outermost event, when it begins and when it has ended. begins() and the end of the call
  /// return why the recording is unsound, or nothing.
  std::string begins(const Event& event);
  void ended(const Event& event);
  std::string call_ended() const;

 private:
  bool is_intact(uint32_t storage) const;
  bool is_silent(uint32_t storage) const;  // written unseen, and by no operator since

  const Trace& trace_;
  std::unordered_map<uint32_t, unsigned char> blank_;  // storage -> the byte that it was filled with
  std::unordered_set<uint32_t> silent_;                // copies of memory that was written unseen
};

}  // namespace fastjit::capture
