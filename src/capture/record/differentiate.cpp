// Autograd's way back from the results of a call, recorded behind it: the derivative of any operator is had by
// watching, without a table of ours. The graph is run once more than the user's own backward will run it, so that is
// done only where nobody can tell: a walk over the graph shows that no hook waits, and that all of it is torch's own,
// or else an autograd.Function, whose Python code is watched as it runs.
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/python_cpp_function.h>
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

constexpr std::string_view kPython = "PyNode";  // an autograd.Function
constexpr std::string_view kLeaf = "AccumulateGrad";

// The name of a class of torch's autograd; empty: it is someone else's.
std::string class_of(const Node& node) {
  const std::string type = c10::demangle(typeid(node).name());
  constexpr std::string_view kAutograd = "torch::autograd::";
  return type.starts_with(kAutograd) ? type.substr(kAutograd.size()) : "";
}

// Why a run through the node would be noticed, or might do something else than computing. Not all of torch's classes of
// nodes are there to be asked for.
std::string why_not_plain(Node& node) {
  const std::string own = class_of(node);
  if (has_hooks(node)) return "a hook waits for gradients inside the call (at " + node.name() + ")";
  if (own.starts_with("generated::") || own == kPython || own == kLeaf || own == "CopySlices" || own == "CopyBackwards")
    return "";
  return "they go through a node of autograd's that is not torch's own (" + node.name() + ")";
}

/// The graph between the results of a call and the tensors that were there before.
class Walk {
 public:
  /// `shown`: what the call gives.
  Walk(const Trace& trace, const std::vector<at::Tensor>& shown) : trace_(trace) {
    for (const at::Tensor& tensor : shown) shown_.insert(tensor.unsafeGetTensorImpl());
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
    for (const Edge& result : results) visit(result);
    while (!todo_.empty()) {
      Node* node = todo_.back();
      todo_.pop_back();
      if (class_of(*node) == kLeaf && !is_own_leaf(*node))
        return "a result is a tensor that the call lets require grad";
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

  /// From which of the results autograd comes to each place through no other one, as bits. `python`: the same of each
  /// autograd.Function.
  std::map<Place, uint64_t> reached_by(const std::vector<Edge>& results, std::vector<uint64_t>& python) const {
    std::map<Place, uint64_t> out;
    std::map<const Node*, uint64_t> functions;
    for (size_t i = 0; i < results.size(); ++i) {
      std::unordered_set<const Node*> seen{results[i].function.get()};
      std::vector<const Node*> todo{results[i].function.get()};
      while (!todo.empty()) {
        const Node* node = todo.back();
        todo.pop_back();
        if (python_.contains(node)) functions[node] |= uint64_t{1} << i;
        for (const Edge& next : node->next_edges()) {
          if (!next.is_valid()) continue;
          if (const Place place = place_of(next); roots_.contains(place) || results_.contains(place))
            out[place] |= uint64_t{1} << i;
          else if (seen.insert(next.function.get()).second)
            todo.push_back(next.function.get());
        }
      }
    }
    for (const auto& [node, bits] : functions) python.push_back(bits);
    return out;
  }

  /// Contexts of autograd.Functions.
  std::vector<PyObject*> contexts() const {
    std::vector<PyObject*> out;
    for (const pybind11::object& context : contexts_) out.push_back(context.ptr());
    return out;
  }

  /// One of them gives several tensors that require grad: it is called for any of these, with zeros for the others.
  const std::string& joins_results() const { return joins_; }

 private:
  std::string follow(const Edge& edge) {
    if (!edge.is_valid()) return "";
    if (const auto result = results_.find(place_of(edge)); result != results_.end()) inner_.insert(result->second);
    const auto root = roots_.find(place_of(edge));
    if (root == roots_.end()) return visit(edge), "";
    if (!reached_.insert(place_of(edge)).second) return "";
    const Source& source = trace_.roots[root->second];
    Node& node = *edge.function;
    const bool is_leaf = source.tensor.is_leaf();
    const bool waits = !node.tensor_pre_hooks().empty() || (!is_leaf && !node.retains_grad_hooks().empty());
    return waits ? "a hook waits for that of '" + source.name + "'" : "";
  }

  // A tensor that nobody has when the call has ended, and so nobody asks for its gradient.
  bool is_own_leaf(Node& node) const {
    const at::Tensor& leaf = static_cast<torch::autograd::AccumulateGrad&>(node).variable;
    return trace_.own_leaves.contains(trace_.find(leaf.unsafeGetTensorImpl())) && !node.tensor_post_acc_grad_hooks() &&
           !shown_.contains(leaf.unsafeGetTensorImpl());
  }

  void visit(const Edge& edge) {
    Node* node = edge.function.get();
    if (!seen_.insert(node).second) return;
    todo_.push_back(node);
    if (class_of(*node) != kPython) return;
    python_.insert(node);
    contexts_.push_back(
        pybind11::reinterpret_steal<pybind11::object>(torch::autograd::functionToPyObject(edge.function)));
    if (node->num_inputs() > 1) joins_ = node->name();
  }

  const Trace& trace_;
  std::unordered_set<const c10::TensorImpl*> shown_;
  std::vector<std::pair<uint32_t, Edge>> begins_;  // of the roots
  std::map<Place, uint32_t> roots_;
  std::set<Place> reached_;
  std::map<Place, uint32_t> results_;
  std::set<uint32_t> inner_;
  std::unordered_set<const Node*> seen_;
  std::vector<Node*> todo_;
  std::unordered_set<const Node*> python_;
  std::vector<pybind11::object> contexts_;
  std::string joins_;
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

bool Recorder::made_going_back(const at::Tensor& tensor) const {
  const Trace& trace = impl_->trace;
  if (!counts_own_writes(tensor)) return false;
  return trace.storage_ids.find(tensor.storage().unsafeGetStorageImpl())->second >= impl_->storages_before;
}

// What runs there are operators of torch's, and methods that the observer sees; what gets a gradient is a leaf.
GraphEnds Recorder::goes_back(const std::vector<at::Tensor>& from) {
  Trace& trace = impl_->trace;
  GraphEnds out;
  std::vector<Edge> edges;
  for (const at::Tensor& tensor : from)
    if (tensor.requires_grad()) edges.push_back(torch::autograd::impl::gradient_edge(tensor));
  Walk walk(trace, {});
  if (out.why = walk.from(edges); !out.why.empty()) return out;
  trace.goes_back_in_python |= !walk.contexts().empty();
  for (const auto& [root, edge] : walk.sources()) {
    const Source& source = trace.roots[root];
    if (!source.tensor.is_leaf()) return {"the graph of '" + source.name + "' begins before the call", {}};
    out.leaves.push_back(source.object);
  }
  return out;
}

/// How autograd goes back from the results of a call.
struct Recorder::Impl::Way {
  DerivativeTrace derivative;
  std::vector<Edge> from;                          // per DerivativeTrace::results
  std::vector<std::pair<uint32_t, Edge>> sources;  // Trace::roots, and how gradients get there
  std::map<Place, uint64_t> reached_by;
  std::vector<PyObject*> contexts;
};

void Recorder::differentiate(const std::vector<at::Tensor>& results, const Rehearse& rehearse) {
  if (impl_->trace.broken.empty()) impl_->trace.no_derivative = impl_->differentiate(results, rehearse);
}

std::string Recorder::Impl::differentiate(const std::vector<at::Tensor>& results, const Rehearse& rehearse) {
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
  Walk walk(trace, results);
  if (std::string why = walk.from(edges); !why.empty()) return why;
  derivative.inner = walk.inner();
  trace.goes_back_in_python |= !walk.contexts().empty();
  if (!walk.joins_results().empty() && edges.size() > 1)
    return "the torch.autograd.Function of " + walk.joins_results() + " gives several results, as the call does";
  std::map<Place, uint64_t> reached_by = walk.reached_by(edges, derivative.python);
  return go_back({std::move(derivative), edges, walk.sources(), std::move(reached_by), walk.contexts()}, results,
                 rehearse);
}

std::string Recorder::Impl::go_back(Way way, const std::vector<at::Tensor>& results, const Rehearse& rehearse) {
  DerivativeTrace& derivative = way.derivative;
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
  storages_before = trace.storages.size();
  std::vector<Edge> ends;
  for (const auto& [root, edge] : way.sources) ends.push_back(edge);
  for (const uint32_t inner : derivative.inner) ends.push_back(way.from[inner]);
  std::vector<at::Tensor> got;
  const auto go = [&] {
    const CastScope casts(CastMode::of_backward());
    const pybind11::gil_scoped_release released;  // which autograd's engine demands
    got = torch::autograd::Engine::get_default_engine().execute(way.from, given, true, false, false, ends);
  };
  try {
    const std::string why = way.contexts.empty() ? (go(), std::string()) : rehearse(way.contexts, go);
    if (!why.empty()) return why;
  } catch (const std::exception& error) {
    const std::string said = support::first_line(error);
    derivative.is_over = said.starts_with(std::string_view(torch::autograd::ERR_BACKWARD_TWICE).substr(0, 40));
    if (!derivative.is_over) return "their computation raised: " + said;
    trace.events.resize(derivative.begin);
    derivative.inner.clear();
    trace.derivative = std::move(derivative);
    return "";
  }
  for (size_t i = 0; i < ends.size(); ++i) {
    const bool is_inner = i >= way.sources.size();
    if (!got[i].defined() && !is_inner) continue;
    if (!is_inner) derivative.sources.push_back(way.sources[i].first);
    derivative.reached_by.push_back(way.reached_by[capture::place_of(ends[i])]);
    derivative.gradients.push_back(std::move(got[i]));
  }
  trace.derivative = std::move(derivative);
  return "";
}

}  // namespace fastjit::capture
