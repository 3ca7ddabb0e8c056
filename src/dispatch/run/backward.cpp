#include "dispatch/run/backward.h"

#if __has_include(<ATen/NodeCreationHooks.h>)
#include <ATen/NodeCreationHooks.h>
#endif
#include <ATen/SavedTensorHooks.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <set>
#include <stdexcept>

namespace fastjit::dispatch {
namespace {

namespace autograd = torch::autograd;
using NodePointer = decltype(autograd::Edge::function);  // what owns a node differs between releases of torch

class BackwardNode final : public autograd::Node {
 public:
  BackwardNode(std::shared_ptr<const Backward> backward, std::span<const uint64_t> scalars,
               std::span<const int64_t> sizes)
      : backward_(std::move(backward)), scalars_(scalars.begin(), scalars.end()), sizes_(sizes.begin(), sizes.end()) {}

  std::string name() const override { return "FastJITBackward"; }

  // Once the results have the node.
  void save(const Tensors& outputs, std::span<const at::Tensor> extras, const at::Tensor* const* inputs) {
    saved_.reserve(backward_->given.size());
    for (const Given& given : backward_->given) {
      Saved& saved = saved_.emplace_back();
      if (given.is_found)
        saved.own = inputs[given.index]->variable_data();
      else if (given.from == Given::From::Input)
        saved.shared = {*inputs[given.index], false};
      if (given.from == Given::From::Result) saved.shared = {outputs[given.index], true};
      if (given.from == Given::From::Extra) saved.own = extras[given.index - outputs.size()];
    }
  }

  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    const std::lock_guard lock(mutex_);
    if (backward_->is_over) throw std::runtime_error(autograd::ERR_BACKWARD_TWICE);
    autograd::variable_list out(num_outputs());
    BackwardRequest request;
    for (size_t i = 0; i < gradients.size(); ++i)
      if (gradients[i].defined()) request.results |= uint64_t{1} << i;
    if (!request.results) return out;
    if (at::GradMode::is_enabled()) refuse_again();
    if (backward_->changed) refuse_changed();
    for (size_t i = 0; i < out.size(); ++i) request.sources.push_back(task_should_compute_output(i));
    results_ = request.results;
    backward_->with_program(request, sizes_, [&](const BackwardProgram& program, const Sized::Lease& at_sizes) {
      std::vector<at::Tensor> held = gather(program, gradients);
      const Tensors made = run_program(program, at_sizes, held, give_up(program));
      for (size_t i = 0; i < out.size(); ++i) {
        const int output = program.gradients[i];
        if (output < 0) continue;
        const plan::Program& plan = program.executable->program;
        const plan::Slot& slot = plan.slots[plan.outputs[static_cast<size_t>(output)]];
        out[i] = slot.kind == plan::SlotKind::Input ? held[slot.index] : made[static_cast<size_t>(output)];
      }
    });
    return out;
  }

  // Computations that have run are over; what no other one needs goes.
  void release_variables() override {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < saved_.size(); ++i)
      if (ends(i)) {
        saved_[i].shared.reset_data();
        saved_[i].own.reset();
      }
  }

 private:
  // One of the two; of a gradient, neither.
  struct Saved {
    autograd::SavedVariable shared;  // a tensor that the caller has
    at::Tensor own;
  };

  [[noreturn]] void refuse_again() const {
    *backward_->again = true;
    throw std::runtime_error("fastjit: gradients of " + backward_->function +
                             " are to be differentiated again (create_graph=True), which its program cannot do. Its "
                             "calls run eagerly from now on: call it again, and then backward()");
  }

  void refuse_changed() const {
    if (const std::string what = backward_->changed(); !what.empty())
      throw std::runtime_error("fastjit: a torch.autograd.Function in " + backward_->function +
                               " reads what has changed since the call: " + what +
                               ". Call it again, and then backward()");
  }

  std::vector<at::Tensor> gather(const BackwardProgram& program, const autograd::variable_list& gradients) {
    std::vector<at::Tensor> all(backward_->given.size()), held;
    std::vector<bool> needed(all.size(), false);
    const std::vector<int64_t> known = shapes();
    for (size_t i = 0; i < all.size(); ++i) needed[i] = backward_->given[i].is_checked;
    for (const uint32_t input : program.inputs) needed[input] = true;
    for (size_t i = 0; i < all.size(); ++i) {
      if (!needed[i]) continue;
      const Given& given = backward_->given[i];
      refuse_over(given);
      switch (given.from) {
        case Given::From::Input:
        case Given::From::Result:
          all[i] = given.is_found ? saved_[i].own : saved_[i].shared.unpack(getptr());
          break;
        case Given::From::Extra:
          all[i] = saved_[i].own;
          break;
        case Given::From::Gradient:
          all[i] = as_planned(gradients[given.index], backward_->results[given.index], known);
          break;
      }
    }
    for (const uint32_t input : program.inputs) held.push_back(std::move(all[input]));
    return held;
  }

  // The computations that run now are over; whether no other one needs this value.
  bool ends(size_t i) {
    const std::vector<uint64_t>& uses = backward_->given[i].uses;
    for (const uint64_t use : uses)
      if (use & results_) over_.insert(use);
    return std::ranges::all_of(uses, [&](uint64_t use) { return over_.contains(use); });
  }

  // Which inputs of the program nobody has any more: what the run needs no more is freed on the way, as eager's nodes
  // free what they have kept. None where the graph is retained.
  std::vector<bool> give_up(const BackwardProgram& program) {
    std::vector<bool> given_up(program.inputs.size(), false);
    if (autograd::get_current_graph_task_keep_graph()) return given_up;
    for (size_t i = 0; i < program.inputs.size(); ++i) {
      const uint32_t value = program.inputs[i];
      given_up[i] = backward_->given[value].from == Given::From::Extra && ends(value);
      if (given_up[i]) saved_[value].own.reset();
    }
    return given_up;
  }

  // As eager: what was computed with it once, and not with retain_graph, cannot be computed again.
  void refuse_over(const Given& given) const {
    const auto is_over = [&](uint64_t use) { return (use & results_) && over_.contains(use); };
    if (std::ranges::any_of(given.uses, is_over)) throw std::runtime_error(autograd::ERR_BACKWARD_TWICE);
  }

  // The values of sizes that gradients have in this call.
  std::vector<int64_t> shapes() const {
    if (sizes_.empty()) return {};
    std::vector<int64_t> registers(backward_->shapes.registers());
    std::ranges::copy(sizes_, registers.begin());
    backward_->shapes.run(registers.data());
    return registers;
  }

  std::vector<int64_t> numbers(const std::vector<ir::Dim>& dims, const std::vector<int64_t>& known) const {
    std::vector<int64_t> out;
    for (const ir::Dim dim : dims)
      out.push_back(dim.is_symbolic() ? known[backward_->shapes.place[dim.expr()]] : dim.hint());
    return out;
  }

  at::Tensor as_planned(const at::Tensor& gradient, const Backward::Result& result,
                        const std::vector<int64_t>& known) const {
    if (sizes_.empty()) return as_planned(gradient, result);
    return as_planned(
        gradient,
        {result.output, result.dtype, numbers(result.layout.sizes, known), numbers(result.layout.strides, known), {}});
  }

  static at::Tensor as_planned(const at::Tensor& gradient, const Backward::Result& result) {
    const bool is_plain = gradient.layout() == at::kStrided && !gradient.is_conj() && !gradient.is_neg() &&
                          !gradient.is_mkldnn() && gradient.scalar_type() == result.dtype &&
                          !gradient.unsafeGetTensorImpl()->is_python_dispatch() && !gradient._is_zerotensor();
    if (is_plain && gradient.strides() == at::IntArrayRef(result.strides) && gradient.sizes() == result.sizes)
      return gradient;
    at::Tensor planned =
        at::empty_strided(result.sizes, result.strides, gradient.options().dtype(result.dtype).layout(at::kStrided));
    planned.copy_(gradient.layout() == at::kStrided ? gradient : gradient.to_dense());
    return planned;
  }

  Tensors run_program(const BackwardProgram& program, const Sized::Lease& at_sizes, std::vector<at::Tensor>& held,
                      const std::vector<bool>& gives_up) const {
    const plan::Program& plan = at_sizes ? at_sizes.program() : program.executable->program;
    std::vector<uint64_t> scalars;
    for (size_t i = 0; at_sizes && i < program.sized->scalars(); ++i)
      scalars.push_back(program.sized->is_size(i) ? at_sizes.scalar(i) : scalars_[i]);
    std::vector<const at::Tensor*> inputs;
    std::vector<at::Tensor*> given_up;
    for (size_t i = 0; i < held.size(); ++i) {
      inputs.push_back(&held[i]);
      given_up.push_back(gives_up[i] ? &held[i] : nullptr);
    }
    const capture::CastMode casts = capture::CastMode::of_backward();  // as it was recorded
    std::optional<capture::CastScope> scope;
    if (casts != capture::CastMode::now()) scope.emplace(casts);
    Tensors made;
    try {
      const uint64_t* numbers = at_sizes ? scalars.data() : scalars_.data();
      run_and_give_up(*program.executable, plan, inputs.data(), given_up.data(), numbers, made);
    } catch (const Restart& restart) {
      throw std::runtime_error("fastjit: gradients of " + backward_->function + " cannot be computed: " + restart.why);
    }
    return made;
  }

  const std::shared_ptr<const Backward> backward_;
  const std::vector<uint64_t> scalars_;
  const std::vector<int64_t> sizes_;  // by symbol; none: the program is for one size
  std::vector<Saved> saved_;          // per Backward::given
  uint64_t results_ = 0;              // of the last apply()
  std::set<uint64_t> over_;           // Given::uses
};

template <class Pointer, class... Args>
Pointer make_node(Args&&... args) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<autograd::Node>>)
    return Pointer(new BackwardNode(std::forward<Args>(args)...), [](auto* node) { deleteNode(node); });
  else
    return c10::make_intrusive<BackwardNode>(std::forward<Args>(args)...);
}

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
    if (*lease && !program->sized->wants_plan()) return program;
    lease.reset();
  }
  known.insert(known.begin(), make(request, sizes));
  if (known.size() > kMost) known.pop_back();
  lease.emplace(known.front()->sized->take(sizes));
  if (!*lease) throw std::logic_error("a program does not let in the sizes that it is made for");
  return known.front();
}

void Backward::with_program(const BackwardRequest& request, std::span<const int64_t> sizes, const Use& use) const {
  struct Relock {
    std::unique_lock<std::mutex>& lock;
    ~Relock() { lock.lock(); }
  };
  std::unique_lock lock(mutex_);
  std::shared_ptr<const BackwardProgram> program;
  std::optional<Sized::Lease> lease;  // made and ended under the lock
  program = find(programs_[request], request, sizes, lease);
  lock.unlock();
  const Relock after{lock};
  const Sized::Lease none;
  use(*program, lease ? *lease : none);
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
  for (const std::shared_ptr<const Backward>& backward : nodes) {
    const NodePointer pointer = make_node<NodePointer>(backward, scalars, sizes);
    auto& node = static_cast<BackwardNode&>(*pointer);
    for (const Backward::Source& source : backward->sources)
      node.add_next_edge(
          autograd::impl::gradient_edge(source.is_result ? outputs[source.index] : *inputs[source.index]));
    for (const Backward::Result& result : backward->results) {
      at::Tensor& output = outputs[result.output];
      if (output.is_view()) output = output.variable_data();
      autograd::set_history(output, pointer);
    }
    node.save(outputs, hidden, inputs);
  }
  for (const capture::ResultView& view : views) make_view(outputs[view.base], view, outputs[view.view]);
}

void WayBack::watch(const std::vector<at::Tensor>& results) const {
  for (const at::Tensor& result : results)
    if (const NodePointer& node = result.grad_fn()) node->add_pre_hook(std::make_unique<AgainWatch>(again));
}

}  // namespace fastjit::dispatch
