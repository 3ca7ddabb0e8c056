// Autograd's way back from the results of a call, recorded behind it: the derivative of any operator is had by
// watching, without a table of ours. The graph is run once more than the user's own backward will run it, so that is
// done only where nobody can tell: a walk over the graph shows that all of it is torch's own, and that no hook waits.
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <ATen/ops/ones_like.h>
#include <c10/util/Type.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <set>
#include <unordered_set>

#include "capture/record/recorder.h"
#include "support/error.h"

namespace fastjit::capture {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using Place = std::pair<const Node*, uint32_t>;

Place place_of(const Edge& edge) { return {edge.function.get(), edge.input_nr}; }

bool has_hooks(Node& node) {
  return !node.tensor_pre_hooks().empty() || !node.pre_hooks().empty() || !node.post_hooks().empty() ||
         !node.retains_grad_hooks().empty();
}

// Why a run through the node would be noticed, or might do something else than computing. Not all of torch's classes of
// nodes are there to be asked for.
std::string why_not_plain(Node& node) {
  const std::string type = c10::demangle(typeid(node).name());
  constexpr std::string_view kAutograd = "torch::autograd::";
  const std::string_view own =
      type.starts_with(kAutograd) ? std::string_view(type).substr(kAutograd.size()) : std::string_view();
  if (own == "PyNode") return "the torch.autograd.Function of " + node.name() + " computes a part of them";
  if (own == "AccumulateGrad") return "the call makes a tensor that requires grad";
  if (has_hooks(node)) return "a hook waits for gradients inside the call (at " + node.name() + ")";
  if (own.starts_with("generated::") || own == "CopySlices" || own == "CopyBackwards") return "";
  return "they go through a node of autograd's that is not torch's own (" + node.name() + ")";
}

/// The graph between the results of a call and the tensors that were there before.
class Walk {
 public:
  explicit Walk(const Trace& trace) : trace_(trace) {
    for (uint32_t i = 0; i < trace.roots.size(); ++i) {
      const Source& root = trace.roots[i];
      if (!root.before.requires_grad || !trace.tensors[root.before.tensor].unusual.empty()) continue;
      Edge edge = torch::autograd::impl::gradient_edge(root.tensor);
      if (roots_.try_emplace(place_of(edge), i).second) begins_.emplace_back(i, std::move(edge));
    }
  }

  // Not empty: why autograd may not go back from these once more.
  std::string from(const std::vector<Edge>& results) {
    for (uint32_t i = 0; i < results.size(); ++i) results_.try_emplace(place_of(results[i]), i);
    for (const Edge& result : results) visit(result.function.get());
    while (!todo_.empty()) {
      Node* node = todo_.back();
      todo_.pop_back();
      if (std::string why = why_not_plain(*node); !why.empty()) return why;
      for (const Edge& next : node->next_edges())
        if (std::string why = follow(next); !why.empty()) return why;
    }
    return "";
  }

  /// Roots that the walk came to, in order, and how gradients get there.
  std::vector<std::pair<uint32_t, Edge>> sources() const {
    std::vector<std::pair<uint32_t, Edge>> out;
    std::ranges::copy_if(begins_, std::back_inserter(out),
                         [&](const auto& begin) { return reached_.contains(place_of(begin.second)); });
    return out;
  }

  /// Of the results, those that others are computed from.
  std::vector<uint32_t> inner() const { return {inner_.begin(), inner_.end()}; }

 private:
  std::string follow(const Edge& edge) {
    if (!edge.is_valid()) return "";
    if (const auto result = results_.find(place_of(edge)); result != results_.end()) inner_.insert(result->second);
    const auto root = roots_.find(place_of(edge));
    if (root == roots_.end()) return visit(edge.function.get()), "";
    if (!reached_.insert(place_of(edge)).second) return "";
    const Source& source = trace_.roots[root->second];
    Node& node = *edge.function;
    const bool is_leaf = source.tensor.is_leaf();
    const bool waits = !node.tensor_pre_hooks().empty() || (!is_leaf && !node.retains_grad_hooks().empty());
    return waits ? "a hook waits for that of '" + source.name + "'" : "";
  }

  void visit(Node* node) {
    if (seen_.insert(node).second) todo_.push_back(node);
  }

  const Trace& trace_;
  std::vector<std::pair<uint32_t, Edge>> begins_;  // of the roots
  std::map<Place, uint32_t> roots_;
  std::set<Place> reached_;
  std::map<Place, uint32_t> results_;
  std::set<uint32_t> inner_;
  std::unordered_set<const Node*> seen_;
  std::vector<Node*> todo_;
};

bool is_view_of_root(const Trace& trace, const Use& result) {
  return std::ranges::any_of(trace.roots, [&](const Source& root) { return root.before.storage == result.storage; });
}

// What keeps a tensor of the result from having a node of autograd's of its own.
std::string why_not_own(const Trace& trace, const Use& result, const std::map<uint32_t, std::set<uint32_t>>& tensors) {
  if (is_view_of_root(trace, result)) return "a result that requires grad shares memory with an argument";
  if (tensors.at(result.storage).size() > 1) return "two results share memory, and one requires grad";
  return "";
}

}  // namespace

void Recorder::leaves_gradients(const std::vector<at::Tensor>& gradients) {
  for (const at::Tensor& gradient : gradients) impl_->trace.left_gradients.insert(impl_->trace.use(gradient).tensor);
}

// What runs there are operators of torch's, and what gets a gradient is a leaf.
GraphEnds Recorder::goes_back(const std::vector<at::Tensor>& from) const {
  const Trace& trace = impl_->trace;
  GraphEnds out;
  std::vector<Edge> edges;
  for (const at::Tensor& tensor : from)
    if (tensor.requires_grad()) edges.push_back(torch::autograd::impl::gradient_edge(tensor));
  Walk walk(trace);
  if (out.why = walk.from(edges); !out.why.empty()) return out;
  for (const auto& [root, edge] : walk.sources()) {
    const Source& source = trace.roots[root];
    if (!source.tensor.is_leaf()) return {"the graph of '" + source.name + "' begins before the call", {}};
    out.leaves.push_back(source.object);
  }
  return out;
}

void Recorder::differentiate(const std::vector<at::Tensor>& results) {
  if (impl_->trace.broken.empty()) impl_->trace.no_derivative = impl_->differentiate(results);
}

std::string Recorder::Impl::differentiate(const std::vector<at::Tensor>& results) {
  if (inputs.adopt_unknown) adopt_unknown(trace);
  DerivativeTrace derivative{};
  std::vector<Edge> edges;
  std::map<uint32_t, std::set<uint32_t>> tensors;  // per storage
  std::vector<Use> uses;
  for (const at::Tensor& result : results) {
    uses.push_back(trace.use(result));
    tensors[uses.back().storage].insert(uses.back().tensor);
  }
  std::set<uint32_t> met;
  for (uint32_t i = 0; i < results.size(); ++i) {
    if (!results[i].requires_grad() || trace.root(uses[i].tensor) || !met.insert(uses[i].tensor).second) continue;
    if (!trace.grad && is_view_of_root(trace, uses[i])) continue;  // without grad mode a view is what its base is
    if (const std::string why = why_not_own(trace, uses[i], tensors); !why.empty()) return why;
    if (results[i].is_leaf()) return "the call makes a tensor that requires grad";
    derivative.results.push_back(i);
    edges.push_back(torch::autograd::impl::gradient_edge(results[i]));
  }
  if (edges.empty()) return "";
  if (!trace.device.is_cpu()) return "it runs on " + trace.device.str();
  constexpr size_t kMostResults = 64;
  if (edges.size() > kMostResults) return "more than 64 results require grad";
  Walk walk(trace);
  if (std::string why = walk.from(edges); !why.empty()) return why;
  derivative.inner = walk.inner();
  return go_back(std::move(derivative), results, edges, walk.sources());
}

std::string Recorder::Impl::go_back(DerivativeTrace derivative, const std::vector<at::Tensor>& results,
                                    const std::vector<torch::autograd::Edge>& edges,
                                    const std::vector<std::pair<uint32_t, torch::autograd::Edge>>& sources) {
  std::vector<at::Tensor> given;
  for (uint32_t i = 0; i < derivative.results.size(); ++i) {
    const at::DisableRecordFunctionGuard unseen;
    const at::NoGradGuard without_grad;
    given.push_back(at::ones_like(results[derivative.results[i]]));
    Source root{trace.use(given.back(), true), given.back(), nullptr, kNone, "gradient" + std::to_string(i)};
    root.gradient = i;
    trace.add_root(std::move(root));
  }
  derivative.begin = static_cast<uint32_t>(trace.events.size());
  std::vector<Edge> ends;
  for (const auto& [root, edge] : sources) ends.push_back(edge);
  for (const uint32_t inner : derivative.inner) ends.push_back(edges[inner]);
  std::vector<at::Tensor> got;
  try {
    const CastScope casts(CastMode::of_backward());
    const pybind11::gil_scoped_release released;  // which autograd's engine demands
    got = torch::autograd::Engine::get_default_engine().execute(edges, given, true, false, false, ends);
  } catch (const std::exception& error) {
    const std::string said = support::first_line(error);
    derivative.is_over = said.starts_with(std::string_view(torch::autograd::ERR_BACKWARD_TWICE).substr(0, 40));
    if (!derivative.is_over) return "their computation raised: " + said;
    trace.events.resize(derivative.begin);
    derivative.inner.clear();
    trace.derivative = std::move(derivative);
    return "";
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    if (!got[i].defined()) continue;
    derivative.sources.push_back(sources[i].first);
    derivative.gradients.push_back(std::move(got[i]));
  }
  std::move(got.begin() + static_cast<ptrdiff_t>(sources.size()), got.end(), std::back_inserter(derivative.gradients));
  trace.derivative = std::move(derivative);
  return "";
}

}  // namespace fastjit::capture
