#pragma once
// The nodes of a way back whose gradients somebody takes as soon as they are there: it goes on from node to node.
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "dispatch/run/node_of_some.h"
#include "dispatch/run/way.h"

namespace fastjit::dispatch {

/// Who takes the gradient of a source on: an edge of one of the nodes of a way back.
struct Place {
  torch::autograd::Node* node = nullptr;
  uint32_t edge = 0;

  void lead_to(torch::autograd::Node& from, torch::autograd::Edge to) {
    node = &from;
    edge = from.num_outputs();
    from.add_next_edge(std::move(to));
  }
  bool is_wanted() const { return node->task_should_compute_output(edge); }
  /// `out`: of the node that is running.
  void give(at::Tensor gradient, const torch::autograd::Node* running, torch::autograd::variable_list& out) const {
    if (node == running)
      out[edge] = std::move(gradient);
    else
      static_cast<SourcesOfSome*>(node)->leave(edge, std::move(gradient));
  }
};

/// The nodes of a way back that goes on in parts: autograd comes to each from the one before, and between them to what
/// waits for the gradients that are there.
struct InParts {
  std::shared_ptr<const Backward> backward;
  std::vector<uint32_t> of;                     // per source: its part
  std::vector<Place> places;                    // per source
  std::vector<torch::autograd::Node*> nodes{};  // per part; the first one has the others
  std::mutex mutex{};
  std::map<int, Way> under_way{};  // by autograd's task

  /// Part `part` of the run, which makes gradients of these results, and the rest later.
  void go_on(Way way, uint32_t part, torch::autograd::variable_list& gradients) {
    const bool is_last = part + 1 == nodes.size();
    way.run_until(of, part, is_last);
    for (size_t source = 0; source < of.size(); ++source)
      if (of[source] == part && (backward->sources[source].reached_by & way.results()))
        places[source].give(way.gradient(source), nodes[part], gradients);
    way.let_go(of, part);
    if (is_last || !nodes[part]->task_should_compute_output(gradients.size() - 1)) return;
    gradients.back() = token(nodes[part + 1]->input_metadata(0).options());
    const std::lock_guard lock(mutex);
    under_way.erase(torch::autograd::get_current_graph_task_id());
    under_way.emplace(torch::autograd::get_current_graph_task_id(), std::move(way));
  }

  /// Leads autograd to the next node, on the device of the others.
  static at::Tensor token(const at::TensorOptions& options) { return at::empty({0}, options); }

  std::optional<Way> take() {
    const std::lock_guard lock(mutex);
    auto way = under_way.extract(torch::autograd::get_current_graph_task_id());
    if (way.empty()) return {};
    return std::move(way.mapped());
  }
};

class LaterNode final : public torch::autograd::Node {
 public:
  LaterNode(std::shared_ptr<InParts> way, uint32_t part) : way_(std::move(way)), part_(part) {}
  std::string name() const override { return kNodeName; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
    torch::autograd::variable_list gradients(num_outputs());
    if (std::optional<Way> way = way_->take()) way_->go_on(std::move(*way), part_, gradients);
    return gradients;
  }

 private:
  const std::shared_ptr<InParts> way_;
  const uint32_t part_;
};

}  // namespace fastjit::dispatch
