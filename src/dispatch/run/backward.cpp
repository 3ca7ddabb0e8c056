#include "dispatch/run/backward.h"

#if __has_include(<ATen/NodeCreationHooks.h>)
#include <ATen/NodeCreationHooks.h>
#endif
#include <ATen/SavedTensorHooks.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "dispatch/run/backward_node.h"

namespace fastjit::dispatch {
namespace {

namespace autograd = torch::autograd;
using NodePointer = decltype(autograd::Edge::function);  // what owns a node differs between releases of torch

// `output` shares the memory of `base`, and is to be a view of it for autograd too.
void make_view(const at::Tensor& base, const capture::ResultView& view, at::Tensor& output) {
  const at::AutoGradMode with_grad(true);
  output = base.as_strided(output.sizes(), output.strides(), output.storage_offset());
  if (view.is_one_of_several)
    autograd::impl::get_view_autograd_meta(output)->set_creation_meta(autograd::CreationMeta::MULTI_OUTPUT_NODE);
}

class AgainWatch final : public autograd::FunctionPreHook {
 public:
  explicit AgainWatch(std::shared_ptr<std::atomic<bool>> again) : again_(std::move(again)) {}
  autograd::variable_list operator()(const autograd::variable_list& gradients) override {
    if (at::GradMode::is_enabled()) *again_ = true;
    return gradients;
  }

 private:
  const std::shared_ptr<std::atomic<bool>> again_;
};

}  // namespace

BackwardRequest Backward::whole() const {
  return {results.size() == 64 ? ~uint64_t{0} : (uint64_t{1} << results.size()) - 1,
          std::vector<bool>(sources.size(), true)};
}

const BackwardProgram& Backward::program(const BackwardRequest& request) const {
  const std::lock_guard lock(mutex_);
  Programs& known = programs_[request];
  if (known.empty()) known.push_back(make(request, recorded));
  return *known.front();
}

// The latest ones are first. What a plan for other sizes lets in may be less than the call's own program does.
std::shared_ptr<const BackwardProgram> Backward::find(Programs& known, const BackwardRequest& request,
                                                      std::span<const int64_t> sizes,
                                                      std::optional<Sized::Lease>& lease) const {
  constexpr size_t kMost = 8;
  if (sizes.empty()) {
    if (known.empty()) known.push_back(make(request, sizes));
    return known.front();
  }
  for (const auto& program : known) {
    lease.emplace(program->sized->take(sizes));
    if (*lease && (runs_any_trip() || !program->sized->wants_plan())) return program;
    lease.reset();
  }
  known.insert(known.begin(), make(request, sizes));
  if (known.size() > kMost) known.pop_back();
  lease.emplace(known.front()->sized->take(sizes));
  if (!*lease) throw std::logic_error("a program does not let in the sizes that it is made for");
  return known.front();
}

Backward::Held Backward::hold(const BackwardRequest& request, std::span<const int64_t> sizes) const {
  const std::lock_guard lock(mutex_);
  std::optional<Sized::Lease> lease;
  std::shared_ptr<const BackwardProgram> program = find(programs_[request], request, sizes, lease);
  return {this, std::move(program), std::move(lease)};
}

// Leases are made and ended under the lock.
Backward::Held::~Held() {
  if (!at) return;
  const std::lock_guard lock(of->mutex_);
  at.reset();
}

// A part makes so many bytes of gradients, if not more: DistributedDataParallel's first bucket is 1 MiB.
const std::vector<uint32_t>& Backward::parts() const {
  constexpr int64_t kLeastBytes = 1 << 20, kMostParts = 16;
  const BackwardProgram& all = program(whole());
  const std::lock_guard lock(mutex_);
  if (!parts_.empty()) return parts_;
  const plan::Program& plan = all.executable->program;
  std::vector<int64_t> bytes(sources.size(), 0);
  for (size_t i = 0; i < sources.size(); ++i) {
    if (all.gradients[i] < 0) continue;
    const plan::Slot& slot = plan.slots[plan.outputs[static_cast<size_t>(all.gradients[i])]];
    bytes[i] = std::accumulate(slot.sizes.begin(), slot.sizes.end(), ir::size_of(slot.dtype), std::multiplies<>());
  }
  const int64_t total = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  std::vector<uint32_t> order(sources.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](uint32_t source) { return all.source_ends[source]; });
  parts_.resize(sources.size());
  int64_t made = 0;
  uint32_t part = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const bool is_later = i > 0 && all.source_ends[order[i]] > all.source_ends[order[i - 1]];
    if (is_later && made >= std::max(kLeastBytes, total / kMostParts)) {
      made = 0;
      ++part;
    }
    made += bytes[order[i]];
    parts_[order[i]] = part;
  }
  return parts_;
}

void WayBack::make_ahead() const {
  for (const auto& node : nodes)
    if (!node->is_over) node->program(node->whole());
}

const char* WayBack::why_eager() const {
  return *again ? "its gradients are differentiated again (create_graph=True)" : why_no_nodes();
}

bool nodes_are_watched() {
#if __has_include(<ATen/NodeCreationHooks.h>)
  return !at::impl::NodeCreationHooks::empty();
#else
  return false;
#endif
}

const char* why_no_nodes() {
  if (autograd::AnomalyMode::is_enabled()) return "anomaly detection is on";
  if (at::SavedTensorDefaultHooks::get_hooks(true)) return "hooks for saved tensors are active, as in a checkpoint";
  if (nodes_are_watched()) return "a hook waits for new nodes of autograd's graph";
  return nullptr;
}

void WayBack::attach(Tensors& outputs, const at::Tensor* const* inputs, std::span<const uint64_t> scalars,
                     std::span<const int64_t> sizes) const {
  const auto shown = outputs.end() - static_cast<ptrdiff_t>(extras);
  const std::vector<at::Tensor> hidden(std::make_move_iterator(shown), std::make_move_iterator(outputs.end()));
  outputs.erase(shown, outputs.end());
  for (const std::shared_ptr<const Backward>& backward : nodes)
    hang_node(backward, outputs, hidden, inputs, scalars, sizes);
  for (const capture::ResultView& view : views)
    make_view(view.is_of_input ? *inputs[view.base] : outputs[view.base], view, outputs[view.view]);
}

void WayBack::watch(const std::vector<at::Tensor>& results) const {
  for (const at::Tensor& result : results)
    if (const NodePointer& node = result.grad_fn()) node->add_pre_hook(std::make_unique<AgainWatch>(again));
}

}  // namespace fastjit::dispatch
