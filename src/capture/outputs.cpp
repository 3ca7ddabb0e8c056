// What the caller gets back: arguments as themselves, views as real views, everything else as tensors of their own.
#include <algorithm>

#include "capture/build.h"

namespace fastjit::capture {
namespace {

// " at model.py:14" of the operator that gave the tensor, where it is known.
std::string place_of(const Trace& trace, uint32_t tensor) {
  for (const Event& event : trace.events)
    for (const Item& item : event.results)
      for (const Use& use : item.uses)
        if (use.tensor == tensor && event.line) return " at " + trace.lines[event.line];
  return "";
}

// Memory of the result alone; what lies in an argument's or a captured tensor's shares the counter with that.
bool is_of_the_call(const Trace& trace, const Use& use) {
  return std::ranges::none_of(trace.roots, [&](const Root& root) { return root.before.storage == use.storage; });
}

}  // namespace

// graph.outputs has one entry a leaf; the same node twice is the same tensor twice.
void Builder::add_outputs(const std::vector<Use>& outputs) {
  for (const Use& use : outputs) {
    const State& state = states_[use.tensor];
    if (trace_.root(use.tensor)) continue;
    if (!state.known) unsound("a result is a tensor of unknown origin");
    if (state.mask != ir::kNoNode) unsound("result of aten::index depends on data" + place_of(trace_, use.tensor));
    if (state.meta.dtype != use.meta.dtype || state.meta.sizes != use.meta.sizes ||
        state.meta.strides != use.meta.strides || analysis_.storage[use.tensor] != use.storage)
      unsound("metadata of a result changed without an operator");
  }
  find_private_bases(outputs);
  std::unordered_map<uint32_t, ir::NodeId> made;
  for (const Use& use : outputs) {
    auto [place, fresh] = made.try_emplace(use.tensor, ir::kNoNode);
    if (fresh) place->second = alias_of(use.tensor);
    graph_.outputs.push_back(place->second);
    capture.result_versions.push_back(is_of_the_call(trace_, use) ? use.version : -1);
  }
}

// Passes may find that two values are one. That must not make views of two results share memory: such a base is cloned.
void Builder::find_private_bases(const std::vector<Use>& outputs) {
  std::vector<uint32_t> bases;
  for (const Use& use : outputs) {
    uint32_t base = use.tensor;
    while (states_[base].view_step != kNone) base = states_[base].base;
    if (base != use.tensor) viewed_.insert(base);
    if (!trace_.root(base)) bases.push_back(base);
  }
  for (uint32_t base : viewed_) {
    const TensorMeta& mine = states_[base].meta;
    const bool may_meet = std::ranges::any_of(bases, [&](uint32_t other) {
      const TensorMeta& meta = states_[other].meta;
      return analysis_.storage[other] != analysis_.storage[base] && meta.dtype == mine.dtype &&
             c10::multiply_integers(meta.sizes) == c10::multiply_integers(mine.sizes);
    });
    if (may_meet && !trace_.root(base)) private_.insert(base);
  }
}

}  // namespace fastjit::capture
