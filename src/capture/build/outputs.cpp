// What the caller gets back: arguments as themselves, views as real views, everything else as tensors of their own.
#include <map>
#include <unordered_set>

#include "capture/build/build.h"
#include "capture/record/checkpoints.h"
#include "support/work.h"

namespace fastjit::capture {
namespace {

// Why a result that masked elements make is none of a program: the operator that gave it, and its place, where known.
std::string depends_on_data(const Trace& trace, uint32_t tensor) {
  std::string what = "result of aten::index depends on data";
  for (const Event& event : trace.events)
    for (const CallValue& item : event.results)
      for (const Use& use : item.uses) {
        if (use.tensor != tensor || !event.line) continue;
        if (is_masked_load(event)) what = "result of " + std::string(base_name(event.name)) + " depends on data";
        return what + " at " + trace.lines[event.line];
      }
  return what;
}

// The product that views of it, as those of a transposed one that is transposed again, are all of: its own tensor will
// do. Else the node.
ir::NodeId product_behind(const ir::Graph& graph, ir::NodeId node) {
  ir::NodeId at = node;
  ir::IndexMap map = ir::identity_map(graph[node].rank);
  for (; graph[at].op == ir::Op::View; at = graph[at].in[0]) map = ir::composed(graph.maps[graph[at].attr], map);
  const bool is_all = graph[at].op == ir::Op::Contract && graph.layout(at) == graph.layout(node) &&
                      map == ir::identity_map(graph[node].rank);
  return is_all ? at : node;
}

}  // namespace

// graph.outputs has one entry a leaf; the same node twice is the same tensor twice.
void GraphBuilder::add_outputs(const std::vector<Use>& outputs) {
  for (const Use& use : outputs) {
    const State& state = states_[use.tensor];
    if (trace_.root(use.tensor)) continue;
    if (!state.known) unsound("a result is a tensor of unknown origin");
    if (state.mask != ir::kNoNode) unsound(depends_on_data(trace_, use.tensor));
    if (state.meta->dtype != use.meta->dtype || state.meta->sizes != use.meta->sizes ||
        state.meta->strides != use.meta->strides || analysis_.storage[use.tensor] != use.storage)
      unsound("metadata of a result changed without an operator");
  }
  std::unordered_map<uint32_t, ir::NodeId> made;
  // Memory of the result alone has a counter of its own; an argument's or a captured tensor's shares that one's.
  std::unordered_set<uint32_t> of_roots;
  for (const Source& root : trace_.roots) of_roots.insert(root.before.storage);
  std::unordered_map<uint32_t, size_t> shown;  // storages: in how many outputs
  for (const Use& use : outputs) ++shown[use.storage];
  const size_t gradients = trace_.derivative ? trace_.derivative->gradients.size() : 0;
  // Autograd's user gets what a node makes, and not what that is a view of.
  const auto is_own = [&](const Use& use) {
    const bool is_gradient = &use - outputs.data() >= std::ssize(outputs) - static_cast<ptrdiff_t>(gradients);
    const bool is_alone = shown[use.storage] == 1 && !of_roots.contains(use.storage) && !may_overlap_itself(use.meta);
    return trace_.left_gradients.contains(use.tensor) || (is_gradient && is_alone);
  };
  std::vector<Use> as_in_eager;
  std::ranges::remove_copy_if(outputs, std::back_inserter(as_in_eager), is_own);
  find_private_bases(as_in_eager);
  for (const Use& use : outputs) {
    auto [place, fresh] = made.try_emplace(use.tensor, ir::kNoNode);
    if (fresh) place->second = is_own(use) ? own_value(use) : alias_of(use.tensor);
    graph_.outputs.push_back(place->second);
    capture.result_versions.push_back(of_roots.contains(use.storage) ? -1 : use.version);
  }
}

// A gradient that autograd leaves in a tensor is a view of one that nobody else has.
ir::NodeId GraphBuilder::own_value(const Use& use) {
  if (analysis_.pinned[use.storage]) return alias_of(use.tensor);
  const std::vector<ir::Dim> strides = meta_of(use)->layout().strides;
  const ir::NodeId node = product_behind(graph_, graph_.with_strides(states_[use.tensor].node, strides));
  const bool is_given =
      graph_[node].op == ir::Op::Input || std::ranges::find(graph_.outputs, node) != graph_.outputs.end();
  return is_given ? graph_.fresh_copy(node, strides) : node;
}

// Of the tensors that somebody else has, autograd keeps those that its way back reads: a program may keep no others,
// since a write to one of these is an error from then on.
void GraphBuilder::add_derivative(const std::vector<Use>& outputs) {
  if (!trace_.derivative) return;
  const DerivativeTrace& trace = *trace_.derivative;
  const CheckpointEvents checkpoints(trace_);
  std::unordered_set<uint32_t> kept = trace_.checkpoint_saved, found;  // storages
  for (uint32_t i = 0; i < trace_.events.size(); ++i) {
    const bool is_read_again = checkpoints.made_in(i) || checkpoints.back_of(i);
    if (i < trace.begin && !is_read_again) continue;
    for (const CallValue& item : trace_.events[i].args)
      for (const Use& use : item.uses)
        if (use.tensor != kNone) (is_read_again ? found : kept).insert(use.storage);
  }
  Derivative derivative;
  derivative.results = trace.results;
  derivative.inner = trace.inner;
  derivative.reached_by = trace.reached_by;
  derivative.python = trace.python;
  derivative.is_over = trace.is_over;
  derivative.views = trace.views;
  for (ResultView& view : derivative.views)
    if (view.is_of_input) view.base = graph_[input_node(trace_.roots[view.base].before.tensor)].attr;
  for (const uint32_t result : trace.results) derivative.dtypes.push_back(outputs[result].meta->dtype);
  const size_t results = outputs.size() - trace.gradients.size();
  capture.result_versions.resize(results);
  for (const Use& use : std::span(outputs).first(results))
    derivative.kept_results.push_back(kept.contains(use.storage));
  for (const ResultView& view : trace.views) derivative.kept_results[view.view] = false;  // its memory is the base's
  for (const uint32_t source : trace.sources)
    derivative.sources.push_back(graph_[input_node(trace_.roots[source].before.tensor)].attr);
  derivative.kept_inputs.resize(graph_.inputs.size());
  derivative.found_inputs.resize(graph_.inputs.size());
  for (const auto& [tensor, node] : input_nodes_) {
    const uint32_t storage = trace_.root(tensor)->before.storage;
    derivative.kept_inputs[graph_[node].attr] = kept.contains(storage);
    derivative.found_inputs[graph_[node].attr] = found.contains(storage) && !kept.contains(storage);
  }
  capture.derivative = std::move(derivative);
}

// Passes may find that two values are one. That must not make views of two results share memory: such a base is cloned.
void GraphBuilder::find_private_bases(const std::vector<Use>& outputs) {
  struct Alike {
    ir::Dim count;
    std::set<uint32_t> storages;
  };
  const auto count = [&](uint32_t base) { return states_[base].meta->layout().numel(); };
  std::map<c10::ScalarType, std::map<std::string, Alike>> memory;  // of the bases, by their number of elements
  for (const Use& use : outputs) {
    uint32_t base = use.tensor;
    for (; states_[base].view_step != kNone; support::count_work()) base = states_[base].base;
    if (base != use.tensor) viewed_.insert(base);
    if (trace_.root(base)) continue;
    Alike& alike =
        memory[states_[base].meta->dtype].try_emplace(ir::text(count(base)), Alike{count(base), {}}).first->second;
    alike.storages.insert(analysis_.storage[base]);
  }
  for (uint32_t base : viewed_) {
    if (trace_.root(base)) continue;
    for (const auto& [text, alike] : memory[states_[base].meta->dtype]) {
      const bool is_alone = alike.storages.size() == 1 && alike.storages.contains(analysis_.storage[base]);
      if (!is_alone && alike.count == count(base)) private_.insert(base);  // a guard, where that depends on sizes
    }
  }
}

}  // namespace fastjit::capture
