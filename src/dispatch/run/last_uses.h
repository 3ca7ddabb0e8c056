#pragma once
// When a run reads its inputs for the last time, for a caller that gives them up.
#include <cstdint>
#include <vector>

#include "plan/program.h"

namespace fastjit::dispatch {

struct LastUse {
  uint32_t step;                  // as plan::for_each_number() counts them
  uint32_t input;                 // of the program
  std::vector<uint32_t> aliases;  // tensors of the run that lie in its memory then
};

/// Of inputs that are no outputs and that some step reads, by step.
std::vector<LastUse> last_uses(const plan::Program& program);

/// After how many steps, as plan::for_each_number() counts them, no other one touches the memory of each input, and
/// that of each output.
struct Ends {
  struct Output {
    uint32_t end;
    plan::SlotId root;              // outputs of one root share memory
    std::vector<uint32_t> tensors;  // of the run, in its memory
  };
  std::vector<uint32_t> inputs;
  std::vector<Output> outputs;
};
Ends ends_of(const plan::Program& program, size_t inputs);

}  // namespace fastjit::dispatch
