#pragma once
// Autograd's graph between the results of a call and the tensors that were there before.
#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "capture/record/trace.h"

namespace fastjit::capture {

/// While it lives, autograd.Functions are watched for gradients that they give as None: autograd does not go on there.
class Nones {
 public:
  using Node = torch::autograd::Node;
  using Edges = std::set<std::pair<const Node*, size_t>>;  // of a node, which

  explicit Nones(const std::map<const Node*, bool>& functions);
  ~Nones();
  Nones(const Nones&) = delete;
  bool contains(const Node* node, size_t edge) const { return seen_->contains({node, edge}); }

 private:
  std::shared_ptr<Edges> seen_ = std::make_shared<Edges>();
  std::vector<std::pair<Node*, uintptr_t>> hooks_;
};

/// A walk from the results, past nodes that were made in the call, to where gradients leave it.
class GraphWalk {
 public:
  using Edge = torch::autograd::Edge;
  using Node = torch::autograd::Node;
  using Sources = std::vector<std::pair<uint32_t, Edge>>;  // Trace::roots, and how gradients get there

  /// `shown`: what the call gives. `ends_before`: autograd will not get to tensors that were there before (CutOff), nor
  /// to hooks that wait for their gradients.
  GraphWalk(const Trace& trace, const std::vector<at::Tensor>& shown, bool ends_before);
  /// Not empty: why autograd may not go back from these once more.
  std::string from(const std::vector<Edge>& results);
  /// Roots that the walk came to, in order.
  Sources sources() const;
  /// Of the results, those that others are computed from.
  std::vector<uint32_t> inner() const { return {inner_.begin(), inner_.end()}; }
  /// Behind the way back, on which `nones` watched: per source, then per inner result, the results that gradients come
  /// to it from, past no inner one, as bits. Adds the autograd.Functions to `python`.
  std::vector<uint64_t> reached_by(const std::vector<Edge>& results, const Nones& nones,
                                   std::vector<FunctionOnWay>& python) const;
  const std::unordered_set<const Node*>& nodes() const { return seen_; }
  const std::map<const Node*, bool>& functions() const { return python_; }
  /// Contexts of autograd.Functions, borrowed.
  std::vector<PyObject*> contexts() const;
  /// Not empty: the name of an autograd.Function that gives several tensors that require grad. It is called for any of
  /// these, with zeros for the others.
  const std::string& joins_results() const { return joins_; }

 private:
  using Place = std::pair<const Node*, uint32_t>;
  static Place place_of(const Edge& edge) { return {edge.function.get(), edge.input_nr}; }
  std::string follow(const Edge& edge);
  bool is_own_leaf(Node& node) const;
  void visit(const Edge& edge);
  void add_function(const Edge& edge);  // an autograd.Function

  const Trace& trace_;
  const bool ends_before_;
  std::unordered_set<const c10::TensorImpl*> shown_;
  Sources begins_;  // of the roots
  std::map<Place, uint32_t> roots_;
  std::set<Place> reached_;
  std::map<Place, uint32_t> results_;
  std::set<uint32_t> inner_;
  std::unordered_set<const Node*> seen_;
  std::vector<Edge> todo_;
  std::map<const Node*, bool> python_;  // whether it is given None where a gradient is missing
  std::vector<pybind11::object> contexts_;
  std::string joins_;
};

/// While it lives, the call's own graph ends at tensors that were there before: what autograd would find in the history
/// of one is not the call's, nor are hooks that wait for its gradient.
class CutOff {
 public:
  /// Edges of `sources` lead to these ends then.
  CutOff(const std::unordered_set<const torch::autograd::Node*>& nodes, const Trace& trace,
         GraphWalk::Sources& sources);
  ~CutOff();
  CutOff(const CutOff&) = delete;

 private:
  using Edge = torch::autograd::Edge;
  using Ends = std::map<std::pair<const torch::autograd::Node*, uint32_t>, Edge>;
  struct Was {
    torch::autograd::edge_list* edges;
    size_t index;
    Edge edge;
  };
  void cut(torch::autograd::edge_list& edges, const Ends& ends);
  std::vector<Was> was_;
};

}  // namespace fastjit::capture
