// Autograd's way back from the results of a call, recorded behind it: the derivative of any operator is had by
// watching, without a table of ours. The graph is run once more than the user's own backward will run it, so that is
// done only where nobody can tell: a walk over the graph shows that no hook waits, and that all of it is torch's own,
// or else an autograd.Function, whose Python code is watched as it runs.
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <ATen/ops/ones_like.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <queue>
#include <set>

#include "capture/record/graph_walk.h"
#include "capture/record/one_thread.h"
#include "capture/record/recorder.h"
#include "support/error.h"

namespace fastjit::capture {
namespace {

using torch::autograd::CreationMeta, torch::autograd::Edge, torch::autograd::Node;

CreationMeta creation_of(const at::Tensor& view) {
  return torch::autograd::impl::get_view_autograd_meta(view)->get_creation_meta();
}

// As autograd has it, which takes what flows back through the view on to the base.
bool is_view_of(const at::Tensor& view, const at::Tensor& base) {
  if (!view.requires_grad() || !view.is_view() || !view._base().is_same(base)) return false;
  return creation_of(view) == CreationMeta::DEFAULT || creation_of(view) == CreationMeta::MULTI_OUTPUT_NODE;
}

bool shares_memory(const at::Tensor& one, const at::Tensor& other) {
  return !one.is_same(other) && one.has_storage() && one.storage().is_alias_of(other.storage());
}

// What was there before and shares memory with the result; null: nothing.
const Source* root_below(const Trace& trace, const Use& result) {
  const auto found =
      std::ranges::find_if(trace.roots, [&](const Source& root) { return root.before.storage == result.storage; });
  return found == trace.roots.end() ? nullptr : &*found;
}

std::string shares_with(const Source& root) {
  return "a result that requires grad shares memory with '" + root.name + "'";
}

// The result as a view of what was there before, which a hit can make again. Of several tensors in that memory nobody
// knows which one autograd comes to.
std::optional<ResultView> view_of_root(const Trace& trace, const at::Tensor& result, uint32_t place, const Use& use) {
  const Source* root = root_below(trace, use);
  const auto is_beside = [&](const Source& other) { return other.before.storage == use.storage && &other != root; };
  if (!root || !root->before.requires_grad || root->tensor.scalar_type() != result.scalar_type() ||
      std::ranges::any_of(trace.roots, is_beside))
    return std::nullopt;
  const at::Tensor base = root->tensor.is_view() ? at::Tensor(root->tensor._base()) : root->tensor;
  if (!is_view_of(result, base) || creation_of(result) != CreationMeta::DEFAULT) return std::nullopt;
  return ResultView{place, static_cast<uint32_t>(root - trace.roots.data()), false, true};
}

// What keeps a tensor of the result from having a node of autograd's of its own. Besides its own views, only what is
// detached from it may share its memory, as state that is kept does.
std::string why_not_own(const Trace& trace, const at::Tensor& result, const Use& use,
                        const std::vector<at::Tensor>& results) {
  if (const Source* root = root_below(trace, use)) return shares_with(*root);
  const auto clashes = [&](const at::Tensor& other) {
    return shares_memory(other, result) && (result.is_view() || (other.requires_grad() && !is_view_of(other, result)));
  };
  return std::ranges::any_of(results, clashes) ? "two results share memory, and one requires grad" : "";
}

// The result that this one is a view of, if another is: the nearest on autograd's way to their base.
std::optional<ResultView> view_among(const std::vector<at::Tensor>& results, uint32_t view) {
  const auto is_base = [&](const at::Tensor& base) { return is_view_of(results[view], base); };
  if (std::ranges::none_of(results, is_base)) return std::nullopt;
  const bool is_one_of_several = creation_of(results[view]) == CreationMeta::MULTI_OUTPUT_NODE;
  for (const Node* node = results[view].grad_fn().get(); node && node->num_outputs();
       node = node->next_edge(0).function.get())
    for (uint32_t base = 0; base < results.size(); ++base)
      if (results[base].requires_grad() && torch::autograd::impl::gradient_edge(results[base]) == node->next_edge(0))
        return ResultView{view, base, is_one_of_several};
  return std::nullopt;
}

// None before the one that it is a view of.
std::vector<ResultView> in_order(std::vector<ResultView> views) {
  std::vector<ResultView> out;
  while (!views.empty()) {
    const auto waits = [&](const ResultView& one) {
      const auto is_base = [&](const ResultView& other) { return !one.is_of_input && other.view == one.base; };
      return std::ranges::any_of(views, is_base);
    };
    const auto rest = std::ranges::stable_partition(views, std::not_fn(waits));
    out.insert(out.end(), views.begin(), rest.begin());
    views.assign(rest.begin(), rest.end());
  }
  return out;
}

// Indices of the gradients that came, those of inner results last. The node of a hit has them all at once: the engine
// puts what each edge leads to on a heap, leaves of the graph on top. They are in the order in which it takes the
// leaves from there as their gradients came in eager, so that hooks on them run in eager's order.
std::vector<size_t> order_of_edges(const Trace& trace, uint32_t begin, const GraphWalk::Sources& sources,
                                   const std::vector<at::Tensor>& got) {
  std::unordered_map<uint32_t, uint32_t> made;  // tensor -> event of the way back
  for (uint32_t event = begin; event < trace.events.size(); ++event)
    for (const Use& use : flat_results(trace.events[event]))
      if (use.tensor != kNone) made.try_emplace(use.tensor, event);
  const auto came = [&](size_t i) {
    const auto found = made.find(trace.find(got[i].unsafeGetTensorImpl()));
    return found == made.end() ? 0 : found->second;
  };
  std::vector<size_t> leaves, others;
  for (size_t i = 0; i < got.size(); ++i) {
    const bool is_inner = i >= sources.size();
    if (!is_inner && !got[i].defined()) continue;
    const bool is_leaf = !is_inner && trace.roots[sources[i].first].tensor.is_leaf();
    (is_leaf ? leaves : others).push_back(i);
  }
  std::ranges::stable_sort(leaves, std::ranges::less(), came);
  using Task = std::pair<bool, size_t>;  // a leaf, place
  const auto is_later = [](const Task& a, const Task& b) { return a.first < b.first; };
  std::priority_queue<Task, std::vector<Task>, decltype(is_later)> heap(is_later);
  for (size_t place = 0; place < leaves.size() + others.size(); ++place) heap.emplace(place < leaves.size(), place);
  std::vector<size_t> out(leaves.size());
  for (const size_t leaf : leaves) {
    out[heap.top().second] = leaf;
    heap.pop();
  }
  out.insert(out.end(), others.begin(), others.end());
  return out;
}

}  // namespace

std::vector<at::Tensor> Recorder::bases_of(const std::vector<at::Tensor>& results) const {
  std::vector<at::Tensor> bases;
  const auto is_there = [](const std::vector<at::Tensor>& all, const at::Tensor& tensor) {
    return std::ranges::any_of(all, [&](const at::Tensor& one) { return one.is_same(tensor); });
  };
  for (const at::Tensor& result : results) {
    if (!result.requires_grad() || !result.is_view()) continue;
    const at::Tensor base(result._base());
    if (!is_view_of(result, base)) continue;
    const auto shares = [&](const at::Tensor& other) { return shares_memory(other, result); };
    if (!counts_own_writes(base) || is_there(results, base) || is_there(bases, base)) continue;
    if (std::ranges::any_of(results, shares)) bases.push_back(base);
  }
  return bases;
}

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
  if (out.why = impl_->why_not_again(); !out.why.empty()) return out;
  GraphWalk walk(trace, {}, false);
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
  DerivativeTrace derivative;  // but what comes to the sources
  std::vector<Edge> from;      // per DerivativeTrace::results
  GraphWalk::Sources sources;  // where gradients may come to
  const GraphWalk& walk;
};

void Recorder::differentiate(const std::vector<at::Tensor>& results, const Rehearse& rehearse) {
  if (impl_->trace.broken.empty()) impl_->trace.no_derivative = impl_->differentiate(results, rehearse);
}

std::string Recorder::Impl::differentiate(const std::vector<at::Tensor>& results, const Rehearse& rehearse) {
  if (inputs.adopt_unknown) adopt_unknown(trace);
  DerivativeTrace derivative{};
  std::vector<Edge> edges;
  std::vector<Use> uses;
  for (const at::Tensor& result : results) uses.push_back(trace.use(result));
  std::set<uint32_t> met;
  for (uint32_t i = 0; i < results.size(); ++i) {
    if (!results[i].requires_grad() || trace.root(uses[i].tensor) || !met.insert(uses[i].tensor).second) continue;
    if (!trace.grad && root_below(trace, uses[i])) continue;  // without grad mode a view is what its base is
    if (const auto view = view_among(results, i)) {
      derivative.views.push_back(*view);
      continue;
    }
    if (const auto view = view_of_root(trace, results[i], i, uses[i])) {
      derivative.views.push_back(*view);
      continue;
    }
    if (const std::string why = why_not_own(trace, results[i], uses[i], results); !why.empty()) return why;
    if (results[i].is_leaf()) return "the call makes a tensor that requires grad";
    derivative.results.push_back(i);
    edges.push_back(torch::autograd::impl::gradient_edge(results[i]));
  }
  const auto of_input = std::ranges::find_if(derivative.views, &ResultView::is_of_input);
  if (edges.empty())  // there is nothing to hang nodes on
    return of_input == derivative.views.end() ? "" : shares_with(trace.roots[of_input->base]);
  if (std::string why = why_not_again(); !why.empty()) return why;
  derivative.views = in_order(std::move(derivative.views));
  constexpr size_t kMostResults = 64;
  if (edges.size() > kMostResults) return "more than 64 results require grad";
  GraphWalk walk(trace, results, true);
  if (std::string why = walk.from(edges); !why.empty()) return why;
  // Autograd may be asked for the gradient of such a view, which a node would go past.
  for (const ResultView& view : derivative.views)
    if (view.is_of_input && walk.nodes().contains(results[view.view].grad_fn().get()))
      return shares_with(trace.roots[view.base]);
  derivative.inner = walk.inner();
  GraphWalk::Sources sources = walk.sources();
  if (sources.empty()) return "the call makes a tensor that requires grad";
  trace.goes_back_in_python |= !walk.contexts().empty();
  if (!walk.joins_results().empty() && edges.size() > 1)
    return "the torch.autograd.Function of " + walk.joins_results() + " gives several results, as the call does";
  return go_back({std::move(derivative), edges, std::move(sources), walk}, results, rehearse);
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
  std::optional<CutOff> until_then(std::in_place, way.walk.nodes(), trace, way.sources);
  const Nones nones(way.walk.functions());
  std::vector<Edge> ends;
  for (const auto& [root, edge] : way.sources) ends.push_back(edge);
  for (const uint32_t inner : derivative.inner) ends.push_back(way.from[inner]);
  std::vector<at::Tensor> got;
  const auto go = [&] {
    const CastScope casts(CastMode::of_backward());
    const OneThread here;
    const pybind11::gil_scoped_release released;  // which autograd's engine demands
    got = torch::autograd::Engine::get_default_engine().execute(way.from, given, true, false, false, ends);
  };
  try {
    const std::vector<PyObject*> contexts = way.walk.contexts();
    const std::string why = contexts.empty() ? (go(), std::string()) : rehearse(contexts, go);
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
  until_then.reset();  // what it has cut is there again
  const std::vector<uint64_t> reached_by = way.walk.reached_by(way.from, nones, derivative.python);
  for (const size_t i : order_of_edges(trace, derivative.begin, way.sources, got)) {
    const bool is_inner = i >= way.sources.size();
    if (!is_inner) derivative.sources.push_back(way.sources[i].first);
    derivative.gradients.push_back(std::move(got[i]));
    derivative.reached_by.push_back(reached_by[i]);
  }
  trace.derivative = std::move(derivative);
  return "";
}

}  // namespace fastjit::capture
