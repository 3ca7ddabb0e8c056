#include "dispatch/run/backward_node.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

#include "dispatch/run/way.h"

namespace fastjit::dispatch {
namespace {

namespace autograd = torch::autograd;
using NodePointer = decltype(autograd::Edge::function);  // what owns a node differs between releases of torch

template <class Node, class... Args>
NodePointer make_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<autograd::Node>>)
    return NodePointer(new Node(std::forward<Args>(args)...), [](auto* node) { deleteNode(node); });
  else
    return c10::make_intrusive<Node>(std::forward<Args>(args)...);
}

constexpr const char* kName = "FastJITBackward";

// The nodes of a way back that goes on in parts: autograd comes to each from the one before, and between them to what
// waits for the gradients that are there.
struct InParts {
  std::shared_ptr<const Backward> backward;
  const std::vector<uint32_t>& of;       // per source: its part
  std::vector<autograd::Node*> nodes{};  // per part; the first one has the others
  std::vector<uint32_t> edges{};         // per source: which of its node's
  std::mutex mutex{};
  std::map<int, Way> under_way{};  // by autograd's task

  bool wants(size_t source) const { return nodes[of[source]]->task_should_compute_output(edges[source]); }

  // Part `part` of the run, and the rest later.
  void go_on(Way way, uint32_t part, autograd::variable_list& gradients) {
    const bool is_last = part + 1 == nodes.size();
    way.run_until(of, part, is_last);
    for (size_t source = 0; source < of.size(); ++source)
      if (of[source] == part) gradients[edges[source]] = way.gradient(source);
    way.let_go(of, part);
    if (is_last || !nodes[part]->task_should_compute_output(gradients.size() - 1)) return;
    gradients.back() = token(nodes[part + 1]->input_metadata(0).options());
    const std::lock_guard lock(mutex);
    under_way.erase(autograd::get_current_graph_task_id());
    under_way.emplace(autograd::get_current_graph_task_id(), std::move(way));
  }

  // Leads autograd to the next node, on the device of the others.
  static at::Tensor token(const at::TensorOptions& options) { return at::empty({0}, options); }

  std::optional<Way> take() {
    const std::lock_guard lock(mutex);
    auto way = under_way.extract(autograd::get_current_graph_task_id());
    if (way.empty()) return {};
    return std::move(way.mapped());
  }
};

class LaterNode final : public autograd::Node {
 public:
  LaterNode(std::shared_ptr<InParts> way, uint32_t part) : way_(std::move(way)), part_(part) {}
  std::string name() const override { return kName; }
  autograd::variable_list apply(autograd::variable_list&&) override {
    autograd::variable_list gradients(num_outputs());
    if (std::optional<Way> way = way_->take()) way_->go_on(std::move(*way), part_, gradients);
    return gradients;
  }

 private:
  const std::shared_ptr<InParts> way_;
  const uint32_t part_;
};

class BackwardNode final : public autograd::Node {
 public:
  BackwardNode(std::shared_ptr<const Backward> backward, std::span<const uint64_t> scalars,
               std::span<const int64_t> sizes)
      : backward_(std::move(backward)), numbers_{{scalars.begin(), scalars.end()}, {sizes.begin(), sizes.end()}} {}

  std::string name() const override { return kName; }

  // Before the results have the node. `edges`: of the sources.
  void lead_to(std::vector<autograd::Edge> edges, const at::TensorOptions& options) {
    if (backward_->is_over || !std::ranges::any_of(edges, is_waited_for)) return set_next_edges(std::move(edges));
    const std::vector<uint32_t>& of = backward_->parts();
    way_ = std::make_shared<InParts>(backward_, of);
    const uint32_t count = *std::ranges::max_element(of) + 1;
    way_->nodes.resize(count);
    way_->edges.resize(of.size());
    NodePointer next;
    for (uint32_t part = count; part-- > 0;) {
      NodePointer later = part > 0 ? make_node<LaterNode>(way_, part) : NodePointer();
      autograd::Node& node = part > 0 ? *later : *this;
      for (size_t source = 0; source < of.size(); ++source) {
        if (of[source] != part) continue;
        way_->edges[source] = node.num_outputs();
        node.add_next_edge(std::move(edges[source]));
      }
      if (next) node.add_next_edge(autograd::Edge(std::move(next), 0));
      if (later) later->add_input_metadata(InParts::token(options));
      way_->nodes[part] = &node;
      next = std::move(later);
    }
  }

  // Once the results have it.
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
    if (backward_->changed && (request.results & backward_->python)) refuse_changed();
    const size_t sources = backward_->sources.size();
    for (size_t i = 0; i < sources; ++i)
      request.sources.push_back(way_ ? way_->wants(i) : task_should_compute_output(i));
    if (backward_->runs_any_trip()) request.sources.assign(sources, true);
    results_ = request.results;
    Way way(*backward_, numbers_, request);
    std::vector<at::Tensor> inputs = gather(way.program(), gradients);
    way.set_inputs(std::move(inputs), give_up(way.program()));
    if (way_) {
      way_->go_on(std::move(way), 0, out);
      return out;
    }
    way.run_all();
    for (size_t i = 0; i < sources; ++i) out[i] = way.gradient(i);
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

  // Somebody takes the gradient as soon as it is there.
  static bool is_waited_for(const autograd::Edge& edge) {
    return edge.function && (!edge.function->post_hooks().empty() || edge.function->tensor_post_acc_grad_hooks());
  }

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
    if (numbers_.sizes.empty()) return {};
    std::vector<int64_t> registers(backward_->shapes.registers());
    std::ranges::copy(numbers_.sizes, registers.begin());
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
    if (numbers_.sizes.empty()) return as_planned(gradient, result);
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

  const std::shared_ptr<const Backward> backward_;
  const Numbers numbers_;
  std::shared_ptr<InParts> way_;  // null: it makes all gradients itself
  std::vector<Saved> saved_;      // per Backward::given
  uint64_t results_ = 0;          // of the last apply()
  std::set<uint64_t> over_;       // Given::uses
};

}  // namespace

void hang_node(const std::shared_ptr<const Backward>& backward, Tensors& outputs, std::span<const at::Tensor> extras,
               const at::Tensor* const* inputs, std::span<const uint64_t> scalars, std::span<const int64_t> sizes) {
  const NodePointer pointer = make_node<BackwardNode>(backward, scalars, sizes);
  auto& node = static_cast<BackwardNode&>(*pointer);
  std::vector<autograd::Edge> edges;
  for (const Backward::Source& source : backward->sources)
    edges.push_back(autograd::impl::gradient_edge(source.is_result ? outputs[source.index] : *inputs[source.index]));
  node.lead_to(std::move(edges), outputs[backward->results[0].output].options());
  for (const Backward::Result& result : backward->results) {
    at::Tensor& output = outputs[result.output];
    if (output.is_view()) output = output.variable_data();
    autograd::set_history(output, pointer);
  }
  node.save(outputs, extras, inputs);
}

}  // namespace fastjit::dispatch
