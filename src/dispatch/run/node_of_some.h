#pragma once
// The nodes around one that has several results. Autograd comes to a node with whichever gradients there are, and calls
// the hooks of all of its results and sources, with None for those without: what eager keeps apart is kept apart here.
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace fastjit::dispatch {

constexpr const char* kNodeName = "FastJITBackward";

/// One of several results of a node: autograd comes to it, and to its hooks, only with a gradient of its own.
class ResultNode final : public torch::autograd::Node {
 public:
  std::string name() const override { return kNodeName; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    return torch::autograd::variable_list(num_outputs(), gradients[0]);
  }
};

class SourcesOfSome;

/// Makes gradients of some sources alone, where autograd does not come to the node of all of them.
struct MakesSome {
  virtual torch::autograd::variable_list make_some(const SourcesOfSome& of,
                                                   const torch::autograd::variable_list& gradients) = 0;
  virtual void release_some() = 0;
  virtual ~MakesSome() = default;
};

/// The maker while it is there: what has this does not own it.
struct Maker {
  std::mutex mutex;
  MakesSome* maker = nullptr;
};

/// Leads to sources that some of the results reach, and others do not. The node of all results makes their gradients
/// too, as a rule before autograd comes here, and leaves them. A ResultNode owns both, so while autograd is here, the
/// other is there.
class SourcesOfSome final : public torch::autograd::Node {
 public:
  /// `results`: bits of Backward::results, an input for each.
  SourcesOfSome(uint64_t results, std::shared_ptr<Maker> maker) : results_(results), maker_(std::move(maker)) {}
  std::string name() const override { return kNodeName; }
  uint64_t results() const { return results_; }

  /// The gradient of the source that edge `edge` leads to, for autograd's task that runs now.
  void leave(uint32_t edge, at::Tensor gradient) {
    const std::lock_guard lock(mutex_);
    auto [left, is_new] = left_.try_emplace(torch::autograd::get_current_graph_task_id());
    if (is_new) left->second.resize(num_outputs());
    left->second[edge] = std::move(gradient);
  }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (auto left = take()) return std::move(*left);
    MakesSome* maker = find_maker();
    if (!maker) return torch::autograd::variable_list(num_outputs());
    has_made_ = true;
    return maker->make_some(*this, gradients);
  }

  void release_variables() override {
    MakesSome* maker = has_made_.exchange(false) ? find_maker() : nullptr;
    if (maker) maker->release_some();
  }

 private:
  std::optional<torch::autograd::variable_list> take() {
    const std::lock_guard lock(mutex_);
    auto left = left_.extract(torch::autograd::get_current_graph_task_id());
    if (left.empty()) return {};
    return std::move(left.mapped());
  }

  MakesSome* find_maker() const {
    const std::lock_guard lock(maker_->mutex);
    return maker_->maker;
  }

  const uint64_t results_;
  const std::shared_ptr<Maker> maker_;
  std::atomic<bool> has_made_ = false;  // since it was released
  std::mutex mutex_;
  std::map<int, torch::autograd::variable_list> left_;  // by autograd's task
};

}  // namespace fastjit::dispatch
