// Programs compute without autograd: what of a call it would see, and under which grad mode the rest may run.
#include "capture/build/gradients.h"

#include <algorithm>
#include <unordered_set>

#include "capture/build/build.h"
#include "support/work.h"

namespace fastjit::capture {
namespace {

// A hit would give it without its gradients. What the caller's own tensors come to require, check_roots() compares.
bool loses_gradients(const Trace& trace, const Use& leaf) {
  const auto explains = [&](const Source& root) {
    return root.before.requires_grad && root.before.storage == leaf.storage;
  };
  if (leaf.requires_grad) support::count_work(trace.roots.size());
  return leaf.requires_grad && std::ranges::none_of(trace.roots, explains);
}

// Of a call that turns inference mode on or off: which mode the program runs in. Its caller can tell by the results.
void judge_inference(const Trace& trace, const std::vector<Use>& leaves, Gradients& out) {
  const auto is_other = [&](const Event& event) { return event.parent == kNone && event.inference != trace.inference; };
  if (std::ranges::none_of(trace.events, is_other)) return;
  std::unordered_set<uint32_t> given;  // storages: what lies there is of the mode that its owner was made in
  for (const Source& root : trace.roots) given.insert(root.before.storage);
  size_t plain = 0, inference = 0;
  for (const Use& leaf : leaves) {
    const bool is_view = given.contains(leaf.storage);
    if (is_view && !trace.root(leaf.tensor) && trace.tensors[leaf.tensor].inference != trace.inference)
      out.unsound = "a view is returned that was made in another inference mode than the caller's";
    if (!is_view) ++(leaf.version < 0 ? inference : plain);
  }
  if (plain > 0 && inference > 0) out.unsound = "some of its results are made in inference mode, others are not";
  if (plain > 0 && trace.inference) out.unsound = "a result is made outside inference mode";
  out.inference = inference > 0 && !trace.inference;
}

// What autograd does in the call that a program does not.
std::string refuse_graph(const Trace& trace) {
  for (size_t i = trace.derivative ? trace.derivative->begin : trace.events.size(); i < trace.events.size(); ++i)
    if (const Event& event = trace.events[i]; event.facts.is(OpFlag::Draws))
      return "its gradients draw random numbers in " + where(trace, event);
  for (const Source& root : trace.roots) {
    if (!root.before.requires_grad || root.tensor.is_leaf()) continue;
    if (root.before.version != static_cast<int64_t>(root.tensor._version()))
      return "'" + root.name + "' requires grad and is written";
  }
  return "";
}

}  // namespace

Gradients judge_gradients(const Trace& trace, const std::vector<Use>& leaves, size_t results) {
  Gradients out;
  bool without = false, with = false;  // an operator ran while grad mode was off, or on a tensor that requires grad
  for (uint32_t i = 0, next; i < trace.events.size(); i = next) {
    const Event& event = trace.events[i];
    const bool is_above = is_layered(trace, event) || is_backward(event);  // what it runs counts
    next = is_above ? i + 1 : std::max(event.end, i + 1);
    if (next == i + 1 && event.end > next) continue;
    without |= !event.grad;
    with |= takes_grad(event);
  }
  // Operators may read tensors that require grad in other ways than eager did, which detached them.
  const auto requires_grad = [](const Source& root) { return root.before.requires_grad; };
  out.suspended = trace.grad && (without || with || std::ranges::any_of(trace.roots, requires_grad));
  // A view knows whether grad mode was on when it was made.
  const bool grad = trace.grad && !out.suspended;
  const auto has_node = [&](const Use& leaf) {
    return trace.derivative && leaf.requires_grad && !trace.root(leaf.tensor);
  };
  const auto is_other_view = [&](const Use& leaf) {
    return leaf.view && !has_node(leaf) && !trace.root(leaf.tensor) && !trace.left_gradients.contains(leaf.tensor) &&
           trace.tensors[leaf.tensor].grad != grad;
  };
  const auto is_lost = [&](const Use& leaf) { return !has_node(leaf) && loses_gradients(trace, leaf); };
  out.unsound =
      trace.no_derivative.empty() ? refuse_graph(trace) : "its gradients are not compiled: " + trace.no_derivative;
  if (!out.unsound.empty()) return out;
  if (std::ranges::any_of(leaves, is_lost)) out.unsound = "a result requires grad";
  const std::span shown = std::span(leaves).first(results);
  if (std::ranges::any_of(shown, is_other_view))
    for (const Use& leaf : shown) out.creations.push_back(is_other_view(leaf) ? leaf.creation : kAsMade);
  if (out.unsound.empty()) judge_inference(trace, leaves, out);
  return out;
}

}  // namespace fastjit::capture
