#include "pass/recurrences.h"

#include <algorithm>
#include <unordered_set>

namespace fastjit::pass {

using namespace ir;

namespace {

constexpr size_t kLongest = 32;               // operations between two values
constexpr size_t kRemembered = 16;            // sources, of which the newest count
constexpr uint32_t kRounds = 6, kBehind = 2;  // a state is followed by another one, and that by what is made of it
constexpr int64_t kFew = 16;                  // a part of the bytes that does not matter

struct Step {
  NodeId from;      // a value
  bool brings_new;  // something is read beside it that it did not follow from
};

class Recurrences {
 public:
  Recurrences(const Graph& graph, const std::vector<bool>& values)
      : graph_(graph),
        values_(values),
        steps_(graph.nodes.size()),
        sources_(graph.nodes.size()),
        before_(graph.nodes.size(), 0),
        behind_(graph.nodes.size(), 0) {}

  std::vector<bool> run() {
    for (NodeId id = 0; id < graph_.nodes.size(); ++id)
      if (is_candidate(id)) walk(id);
    std::vector<bool> found(graph_.nodes.size(), false);
    for (auto id = static_cast<NodeId>(graph_.nodes.size()); id-- > 0;) {
      for (const Step& step : steps_[id])
        behind_[step.from] = std::max(behind_[step.from], behind_[id] + step.brings_new);
      const bool is_state = steps_[id].empty() || std::ranges::any_of(steps_[id], &Step::brings_new);
      found[id] = is_state && behind_[id] >= kBehind && before_[id] + behind_[id] >= kRounds;
    }
    for (NodeId id = 0; id < graph_.nodes.size(); ++id)  // the last ones, which nothing follows
      for (const Step& step : steps_[id]) found[id] = found[id] || (found[step.from] && is_next(step, id));
    return found;
  }

 private:
  bool is_candidate(NodeId id) const { return values_[id] && is_pointwise(graph_[id].op); }

  int64_t bytes_of(NodeId id) const { return graph_.layout(id).numel().hint() * size_of(graph_[id].dtype); }

  bool is_next(const Step& step, NodeId id) const {
    return step.brings_new && graph_[step.from].op == graph_[id].op && graph_[step.from].layout == graph_[id].layout;
  }

  // What is read pointwise to make it: values that could be made again themselves, and others.
  void walk(NodeId id) {
    std::vector<NodeId> todo{id}, from, others;
    std::unordered_set<NodeId> met{id};
    while (!todo.empty()) {
      const NodeId at = todo.back();
      todo.pop_back();
      const bool is_end = at != id && (values_[at] || !(is_pointwise(graph_[at].op) || is_view(graph_[at].op)));
      if (is_end && bytes_of(at) * kFew > bytes_of(id)) (is_candidate(at) ? from : others).push_back(at);
      if (met.size() > kLongest) return;
      for (const NodeId in : graph_.operands(at))
        if (!is_end && in != kNoNode && met.insert(in).second) todo.push_back(in);
    }
    take(id, from, others);
  }

  void take(NodeId id, const std::vector<NodeId>& from, std::vector<NodeId> all) {
    for (const NodeId value : from) all.insert(all.end(), sources_[value].begin(), sources_[value].end());
    std::ranges::sort(all);
    all.erase(std::ranges::unique(all).begin(), all.end());
    if (all.size() > kRemembered) all.erase(all.begin(), all.end() - kRemembered);
    for (const NodeId value : from) {
      const bool brings_new = !std::ranges::includes(sources_[value], all);
      steps_[id].push_back({value, brings_new});
      before_[id] = std::max(before_[id], before_[value] + brings_new);
    }
    sources_[id] = std::move(all);
  }

  const Graph& graph_;
  const std::vector<bool>& values_;
  std::vector<std::vector<Step>> steps_;
  std::vector<std::vector<NodeId>> sources_;  // sorted: what it follows from that is no value made again
  std::vector<uint32_t> before_, behind_;     // steps that bring something new, on the longest way
};

}  // namespace

std::vector<bool> recurrences(const Graph& graph, const std::vector<bool>& values) {
  return Recurrences(graph, values).run();
}

}  // namespace fastjit::pass
