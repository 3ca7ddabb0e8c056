// What the caller gets back: arguments as themselves, views as real views, everything else as tensors of their own.
#include "capture/build.h"

namespace fastjit::capture {

void Builder::add_outputs(const std::vector<Use>& outputs) {
  std::unordered_map<uint32_t, uint32_t> place;  // tensor -> index into graph.outputs
  for (const Use& use : outputs) {
    auto [it, fresh] = place.try_emplace(use.tensor, static_cast<uint32_t>(graph_.outputs.size()));
    capture.outputs.push_back(it->second);
    if (!fresh) continue;
    const State& state = states_[use.tensor];
    if (!trace_.root(use.tensor)) {
      if (!state.known) unsound("a result is a tensor of unknown origin");
      if (state.mask != ir::kNoNode) unsound("a result of aten::index that depends on data is returned");
      if (state.meta.dtype != use.meta.dtype || state.meta.sizes != use.meta.sizes ||
          state.meta.strides != use.meta.strides || analysis_.storage[use.tensor] != use.storage)
        unsound("metadata of a result changed without an operator");
    }
    graph_.outputs.push_back(alias_of(use.tensor));
  }
}

}  // namespace fastjit::capture
