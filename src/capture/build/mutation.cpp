// In-place operators as new values, and the stores that give arguments their last value.
#include <algorithm>

#include "capture/build/build.h"
#include "capture/lower/util.h"
#include "capture/record/effects.h"

namespace fastjit::capture {

bool may_overlap_itself(const TensorMeta& meta) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size
  for (size_t d = 0; d < meta.sizes.size(); ++d) {
    if (meta.sizes[d] == 0) return false;
    if (meta.sizes[d] > 1) dims.emplace_back(meta.strides[d], meta.sizes[d]);
  }
  std::ranges::sort(dims);
  int64_t reach = 0;  // of the dims so far
  for (const auto& [stride, size] : dims) {
    if (stride <= reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

// Gives what it writes a new value. False: the operator must run in torch.
bool GraphBuilder::rebind(const Action& step) {
  const Event& event = trace_.events[step.event];
  if (flat_results(event).size() > 1) return renew_statistics(step);
  const uint32_t target = event.args[step.target].uses[0].tensor;
  if (trace_.root(target)) input_node(target);
  const ir::NodeId old = states_[target].node;
  if (old == ir::kNoNode) return false;
  ir::NodeId node = new_value(step);
  if (node == ir::kNoNode) return false;
  node = graph_.convert(node, graph_[old].dtype);
  if (!std::ranges::equal(graph_.sizes(node), graph_.sizes(old))) return false;
  if (const Use& written = event.args[step.target].uses[0]; is_parted(written)) {
    refuse_overlap(event, written);
    write_part(written, node);
    return true;
  }
  give_value(target, node);
  return true;
}

void GraphBuilder::give_value(uint32_t target, ir::NodeId node) {
  State& state = states_[target];
  state.node = node;
  state.real = ir::kNoNode;
  state.view_step = state.base = kNone;
  if (trace_.root(target)) rebound_.push_back(target);
}

// What an operator computes beside its results, and writes: the row gives it behind these.
bool GraphBuilder::renew_statistics(const Action& step) {
  const Event& event = trace_.events[step.event];
  const std::span<const Use> uses = flat_results(event);
  std::vector<TensorMeta> results;
  for (const Use& use : uses) results.push_back(expected(use, event));
  std::vector<uint32_t> targets;
  for (const size_t i : written_arguments(event)) {
    const Use& written = event.args[i].uses[0];
    if (trace_.root(written.tensor)) input_node(written.tensor);
    if (states_[written.tensor].node == ir::kNoNode || is_parted(written)) return false;
    results.push_back(meta_of(written));
    targets.push_back(written.tensor);
  }
  std::vector<ir::NodeId> out;
  if (mask_of(event) != ir::kNoNode || !call_lowering(step, arguments(event), results, false, out)) return false;
  const std::unordered_set<uint32_t> made(step.results.begin(), step.results.end());
  for (size_t i = 0; i < uses.size(); ++i)
    if (made.contains(uses[i].tensor)) set_result(uses[i], out[i], event);
  for (size_t i = 0; i < targets.size(); ++i) give_value(targets[i], out[uses.size() + i]);
  return true;
}

ir::NodeId GraphBuilder::new_value(const Action& step) {
  const Event& event = trace_.events[step.event];
  if (is_masked_store(event)) return masked_store(step);
  if (const ir::NodeId mask = mask_of(event); mask != ir::kNoNode) {
    if (step.target) return ir::kNoNode;
    const bool own_mask = states_[event.args[0].uses[0].tensor].mask == mask;
    const std::vector<ir::NodeId> out = own_mask ? lower_compressed(step, mask) : std::vector<ir::NodeId>();
    return out.empty() ? ir::kNoNode : out[0];
  }
  if (step.target) {
    std::vector<ir::NodeId> out;
    std::vector<Arg> args = arguments(event);
    args.pop_back();
    const Use& given = event.args[step.target].uses[0];
    return call_lowering(step, args, {meta_of(given)}, false, out) ? out[0] : ir::kNoNode;
  }
  const Use& self = event.args[0].uses[0];
  const auto dtype = to_ir(self.meta->dtype);
  if (!dtype) return ir::kNoNode;
  const std::string_view base = base_name(event.name);
  if (base == "aten::zero_") {
    return graph_.expand(zero(graph_, *dtype), meta_of(self)->layout().sizes);
  }
  if (base == "aten::copy_") {
    const Value source = value(event.args[1].uses[0], event);
    if (source.node == ir::kNoNode) return ir::kNoNode;
    return graph_.expand(graph_.convert(source.node, *dtype), meta_of(self)->layout().sizes);
  }
  if (event.name == kDraws) return drawn(step);
  std::vector<ir::NodeId> out;
  // The functional form's type may be wider than self's: the result is converted by the caller, as torch does.
  if (!step.row || !call_lowering(step, arguments(event), {meta_of(self)}, true, out)) return ir::kNoNode;
  return out[0];
}

// The numbers as a new tensor: torch's functional form makes one by rows and fills it as the form in place does, so
// that it draws the same. Of its argument it reads the layout alone.
ir::NodeId GraphBuilder::drawn(const Action& step) {
  const Event& event = trace_.events[step.event];
  const TensorMeta meta = meta_of(event.args[0].uses[0]);
  const ir::Layout layout = meta.layout();
  if (!std::ranges::equal(layout.strides, ir::row_major(layout.sizes))) return ir::kNoNode;
  if (const ScalarBindings::Place* place = scalars_.find(step.event, 1))
    if (!is_settled(place->scalar)) baked_.insert(place->scalar);
  const ir::NodeId blank = graph_.undef(*to_ir(meta.dtype), layout);
  return run("aten::bernoulli", "p", {{blank}, {ir::kNoNode, {}, event.args[1].constant}}, meta);
}

void GraphBuilder::add_stores() {
  std::map<uint32_t, uint32_t> targets;  // -> how often it got a value
  for (uint32_t target : rebound_) ++targets[target];
  std::unordered_map<uint32_t, size_t> in_memory;  // storage -> targets in it
  for (const auto& [target, times] : targets) ++in_memory[analysis_.storage[target]];
  for (const auto& [target, times] : targets) {
    const Source& root = *trace_.root(target);
    uint32_t bumps = times;
    // Views of one base share a counter; alone, eager's own count is exact.
    if (in_memory[analysis_.storage[target]] == 1 && root.before.version >= 0)
      bumps = static_cast<uint32_t>(root.tensor.unsafeGetTensorImpl()->version_counter().current_version() -
                                    root.before.version);
    graph_.stores.push_back({graph_[input_nodes_.at(target)].attr, states_[target].node, bumps});
  }
}

}  // namespace fastjit::capture
