// The program as a picture: the graph that was planned, with a box round what each launch computes.
#include <unordered_set>

#include "plan/program.h"
#include "plan/repeat.h"
#include "plan/stage.h"

namespace fastjit::plan {

namespace {

class Clusters {
 public:
  Clusters(const ir::Graph& graph, const Program& program) : graph_(graph), taken_(graph.nodes.size()) {
    for (const auto& launch : program.made) roots_.insert(launch.begin(), launch.end());
    for_each_step(program, [&](const auto& step) { add(program, step); });
  }
  std::string dot() const {
    std::string out = ir::dot(graph_, made_);
    out.insert(out.rfind('}'), copies_);
    return out;
  }

 private:
  void add(const Program& program, const auto& step) {
    for (const KernelStep& launch : launches_of(step))
      add_launch("kernel " + std::to_string(launch.kernel) + " " + name(program.kernels[launch.kernel]),
                 program.made[next_++]);
  }
  void add(const Program& program, const LoopStep& loop) {
    const auto& values = program.made[next_];
    const bool is_node = !values.empty() && graph_[values[0]].op == ir::Op::Loop;  // of all its rounds
    for (int64_t round = 0; round < (is_node ? 1 : loop.trip); ++round)
      for (const KernelStep& launch : loop.body) add(program, launch);
  }

  void add_launch(std::string label, const std::vector<ir::NodeId>& values) {
    made_.push_back({std::move(label), {}});
    for (const ir::NodeId root : values) take(root);
    if (made_.back().nodes.empty()) add_copy(values);
  }

  // What several launches compute again is drawn in the first.
  void take(ir::NodeId id) {
    std::vector<ir::NodeId> left{id};
    while (!left.empty()) {
      id = left.back();
      left.pop_back();
      const ir::Op op = graph_[id].op;
      if (taken_[id] || is_tensor(op) || op == ir::Op::Scalar || op == ir::Op::Extern) continue;
      taken_[id] = true;
      made_.back().nodes.push_back(id);
      for (const ir::NodeId in : graph_.operands(id))
        if (in != ir::kNoNode && !roots_.contains(in)) left.push_back(in);
    }
  }

  // A launch that computes nothing, which only moves values of the caller's or of another launch.
  void add_copy(const std::vector<ir::NodeId>& values) {
    const std::string copy = "copy" + std::to_string(copied_++);
    copies_ += "  subgraph cluster_" + copy + " {\n    label=\"" + made_.back().label + "\";\n    " + copy + ";\n  }\n";
    for (const ir::NodeId id : values) copies_ += "  n" + std::to_string(id) + " -> " + copy + ";\n";
    made_.pop_back();
  }

  const ir::Graph& graph_;
  std::string copies_;
  size_t copied_ = 0, next_ = 0;
  std::vector<bool> taken_;
  std::unordered_set<ir::NodeId> roots_;
  std::vector<ir::Cluster> made_;
};

}  // namespace

std::string dot(const ir::Graph& graph, const Program& program) {
  PlanOptions options;
  options.own_products = program.own_products;
  options.no_library = program.no_library;
  options.cuda = program.for_cuda;
  const Staged made = staged(graph, options);
  return Clusters(made.of(graph), program).dot();
}

}  // namespace fastjit::plan
