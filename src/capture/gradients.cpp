// Programs compute without autograd: what of a call it would see, and under which grad mode the rest may run.
#include "capture/gradients.h"

#include <algorithm>

#include "capture/build.h"

namespace fastjit::capture {
namespace {

// The operator's result is part of a graph, because of this argument or of something in it.
std::string recorded_by_autograd(const Trace& trace, const Event& event) {
  const auto requires_grad = [](const Use& use) { return use.tensor != kNone && use.requires_grad; };
  const std::vector<Use> results = flat_results(event);
  // One that gives nothing writes to arguments: torch._foreach_add_.
  if (!event.grad || (!results.empty() && std::ranges::none_of(results, requires_grad))) return "";
  for (const Item& item : event.args)
    for (const Use& use : item.uses)
      if (requires_grad(use)) return describe(trace, use.tensor, event) + " requires grad";
  return results.empty() ? "" : "a result of " + where(trace, event) + " requires grad";
}

// A result, or a tensor of the caller, that hits would leave without its gradients.
std::string loses_gradients(Trace& trace, const std::vector<Use>& leaves) {
  for (const Root& root : trace.roots)
    if (trace.use(root.tensor).requires_grad != root.before.requires_grad)
      return "requires_grad of " + root.name + " changed during the call";
  for (const Use& leaf : leaves) {
    const auto explains = [&](const Root& root) {
      return root.before.requires_grad && root.before.storage == leaf.storage;
    };
    if (leaf.requires_grad && std::ranges::none_of(trace.roots, explains)) return "a result requires grad";
  }
  return "";
}

}  // namespace

Gradients judge_gradients(Trace& trace, const std::vector<Use>& leaves) {
  Gradients out;
  bool without = false;  // an operator ran while grad mode was off
  for (const Event& event : trace.events) {
    if (event.parent != kNone) continue;
    without |= !event.grad;
    out.unsound = recorded_by_autograd(trace, event);
    out.needed = trace.grad && !out.unsound.empty();
    if (!out.unsound.empty()) return out;
  }
  out.unsound = loses_gradients(trace, leaves);
  // Operators may read tensors that require grad in other ways than eager did, which detached them.
  const auto requires_grad = [](const Root& root) { return root.before.requires_grad; };
  out.suspended = trace.grad && (without || std::ranges::any_of(trace.roots, requires_grad));
  // A view knows whether grad mode was on when it was made, and may not be written otherwise.
  const bool grad = trace.grad && !out.suspended;
  for (const Use& leaf : leaves)
    if (leaf.view && !trace.root(leaf.tensor) && trace.tensors[leaf.tensor].grad != grad && out.unsound.empty())
      out.unsound = "a view is returned that was made under another grad mode than the rest";
  return out;
}

}  // namespace fastjit::capture
