#pragma once
// What Python does to the state of generators of torch, as operators: programs run them in the order of those that
// draw.
#include <string_view>

namespace fastjit::capture {

/// (Generator? generator, int seed) -> ()
inline constexpr const char* kSeedGenerator = "fastjit::seed_generator";
/// (Generator? generator) -> Tensor
inline constexpr const char* kGeneratorState = "fastjit::generator_state";
/// (Generator? generator, Tensor state) -> ()
inline constexpr const char* kSetGeneratorState = "fastjit::set_generator_state";
/// (int seed) -> (): torch.manual_seed, for generators of every device
inline constexpr const char* kManualSeed = "fastjit::manual_seed";

}  // namespace fastjit::capture
