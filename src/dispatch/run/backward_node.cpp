#include "dispatch/run/backward_node.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "dispatch/run/node_in_parts.h"
#include "dispatch/run/node_of_some.h"
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

class BackwardNode final : public autograd::Node, public MakesSome {
 public:
  BackwardNode(std::shared_ptr<const Backward> backward, std::span<const uint64_t> scalars,
               std::span<const int64_t> sizes)
      : backward_(std::move(backward)), numbers_{{scalars.begin(), scalars.end()}, {sizes.begin(), sizes.end()}} {}
  ~BackwardNode() override {
    if (!as_maker_) return;
    const std::lock_guard lock(as_maker_->mutex);
    as_maker_->maker = nullptr;
  }
  BackwardNode(const BackwardNode&) = delete;
  BackwardNode& operator=(const BackwardNode&) = delete;

  std::string name() const override { return kNodeName; }

  // For nodes that take those sources on that not all results reach.
  void set_as_maker(const std::shared_ptr<Maker>& maker) {
    maker->maker = this;
    as_maker_ = maker;
  }

  // Before the results have the node. `edges`: of the sources; `some`: as said; `way`: not null where it goes on in
  // parts, whose nodes are there but for this one.
  void lead_to(std::vector<autograd::Edge> edges, std::span<const NodePointer> some, std::shared_ptr<InParts> way,
               NodePointer next) {
    if (some.empty() && !way) return set_next_edges(std::move(edges));
    places_ = way ? way->places : std::vector<Place>(edges.size());
    for (size_t source = 0; source < edges.size(); ++source) {
      if (way && places_[source].node) continue;  // of a later part
      const auto* of = find_some(some, backward_->sources[source].reached_by);
      places_[source].lead_to(of ? **of : *this, std::move(edges[source]));
    }
    if (next) add_next_edge(autograd::Edge(std::move(next), 0));
    if (!way) return;
    way->places = places_;
    way->nodes[0] = this;
    way_ = std::move(way);
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
    refuse_if_over();
    autograd::variable_list out(num_outputs());
    BackwardRequest request;
    request.results = defined(gradients);
    if (!request.results) return out;
    for (size_t i = 0; i < backward_->sources.size(); ++i) request.sources.push_back(wants(i, request.results));
    Way way = begin(std::move(request), gradients, true);
    if (way_) {
      way_->go_on(std::move(way), 0, out);
      return out;
    }
    way.run_all();
    for (size_t i = 0; i < backward_->sources.size(); ++i)
      if (backward_->sources[i].reached_by & way.results()) place(i).give(way.gradient(i), this, out);
    return out;
  }

  autograd::variable_list make_some(const SourcesOfSome& of, const autograd::variable_list& gradients) override {
    const std::lock_guard lock(mutex_);
    refuse_if_over();
    autograd::variable_list out(of.num_outputs()), all(backward_->results.size());
    for (size_t i = 0, at = 0; i < all.size(); ++i)
      if (of.results() >> i & 1) all[i] = gradients[at++];
    BackwardRequest request;
    request.results = defined(all);
    for (size_t i = 0; i < places_.size(); ++i)
      request.sources.push_back(places_[i].node == &of && wants(i, request.results));
    if (std::ranges::find(request.sources, true) == request.sources.end()) return out;
    Way way = begin(std::move(request), all, false);
    way.run_all();
    for (size_t i = 0; i < places_.size(); ++i)
      if (places_[i].node == &of) out[places_[i].edge] = way.gradient(i);
    return out;
  }

  // Of several that come to sources of some results in one task, each takes what it needs; then all that is over.
  void release_some() override {
    const std::lock_guard lock(mutex_);
    if (is_to_come()) return;
    over_behind_ |= results_;
    task_ = autograd::get_current_graph_task_id();
  }

  // Computations that have run are over; what no other one needs goes.
  void release_variables() override {
    const std::lock_guard lock(mutex_);
    let_go();
  }

 private:
  // One of the two; of a gradient, neither.
  struct Saved {
    autograd::SavedVariable shared;  // a tensor that the caller has
    at::Tensor own;
  };

  Place place(size_t source) { return places_.empty() ? Place{this, static_cast<uint32_t>(source)} : places_[source]; }

  // The place of a source that none of these results reach may be gone.
  bool wants(size_t source, uint64_t results) {
    return (backward_->sources[source].reached_by & results) && place(source).is_wanted();
  }

  static uint64_t defined(const autograd::variable_list& gradients) {
    uint64_t bits = 0;
    for (size_t i = 0; i < gradients.size(); ++i)
      if (gradients[i].defined()) bits |= uint64_t{1} << i;
    return bits;
  }

  static const NodePointer* find_some(std::span<const NodePointer> some, uint64_t reached_by) {
    const auto is_it = [&](const NodePointer& each) {
      return static_cast<const SourcesOfSome&>(*each).results() == reached_by;
    };
    const auto found = std::ranges::find_if(some, is_it);
    return found == some.end() ? nullptr : &*found;
  }

  // Autograd comes to this node too, in the task that runs now.
  bool is_to_come() {
    const auto* wanted = autograd::get_current_graph_task_exec_info();
    if (!wanted || wanted->empty()) return true;
    const auto found = wanted->find(this);
    return found != wanted->end() && found->second.should_execute();
  }

  void refuse_if_over() const {
    if (backward_->is_over) throw std::runtime_error(autograd::ERR_BACKWARD_TWICE);
  }

  // `ends`: what it takes is over, unless the graph is retained.
  Way begin(BackwardRequest request, const autograd::variable_list& gradients, bool ends) {
    if (at::GradMode::is_enabled()) refuse_again();
    if (backward_->changed && (request.results & backward_->python)) refuse_changed();
    if (backward_->runs_any_trip()) request.sources.assign(request.sources.size(), true);
    settle();
    results_ = request.results;
    Way way(*backward_, numbers_, request);
    std::vector<at::Tensor> inputs = gather(way.program(), gradients);
    std::vector<bool> given_up(inputs.size(), false);
    if (ends) given_up = give_up(way.program());
    way.set_inputs(std::move(inputs), std::move(given_up));
    return way;
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

  void let_go() {
    for (size_t i = 0; i < saved_.size(); ++i)
      if (ends(i)) {
        saved_[i].shared.reset_data();
        saved_[i].own.reset();
      }
  }

  // What an earlier task of autograd's has left.
  void settle() {
    if (!over_behind_ || task_ == autograd::get_current_graph_task_id()) return;
    results_ = std::exchange(over_behind_, 0);
    let_go();
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
  std::shared_ptr<InParts> way_;     // null: it makes all gradients itself
  std::shared_ptr<Maker> as_maker_;  // null: every result reaches every source
  std::vector<Place> places_;        // per source; none: the edges of this node
  std::vector<Saved> saved_;         // per Backward::given
  uint64_t results_ = 0;             // of the last run
  uint64_t over_behind_ = 0;         // of runs of `task_`: over behind it
  int task_ = -1;
  std::set<uint64_t> over_;  // Given::uses
};

// Somebody takes the gradient as soon as it is there.
bool is_waited_for(const autograd::Edge& edge) {
  return edge.function && (!edge.function->post_hooks().empty() || edge.function->tensor_post_acc_grad_hooks());
}

// For each group of results that reach sources which the others do not: what leads there. `maker`: none is needed where
// there are no such groups.
std::vector<NodePointer> nodes_of_some(const Backward& backward, const Tensors& outputs,
                                       std::shared_ptr<Maker>& maker) {
  const uint64_t all = backward.whole().results;
  std::set<uint64_t> groups;
  for (const Backward::Source& source : backward.sources)
    if (source.reached_by != all) groups.insert(source.reached_by);
  std::vector<NodePointer> nodes;
  if (!groups.empty()) maker = std::make_shared<Maker>();
  for (const uint64_t group : groups) {
    const NodePointer& node = nodes.emplace_back(make_node<SourcesOfSome>(group, maker));
    for (size_t i = 0; i < backward.results.size(); ++i)
      if (group >> i & 1) node->add_input_metadata(outputs[backward.results[i].output]);
  }
  return nodes;
}

// Nodes for all parts but the first one, and the first of them.
std::pair<std::shared_ptr<InParts>, NodePointer> make_parts(const std::shared_ptr<const Backward>& backward,
                                                            std::vector<autograd::Edge>& edges,
                                                            const at::TensorOptions& options) {
  auto way = std::make_shared<InParts>(backward, backward->parts(), std::vector<Place>(edges.size()));
  way->nodes.resize(*std::ranges::max_element(way->of) + 1);
  const uint64_t all = backward->whole().results;
  for (size_t source = 0; source < edges.size(); ++source)
    if (backward->sources[source].reached_by != all) way->of[source] = 0;  // nodes of their own wait for these
  NodePointer next;
  for (auto part = static_cast<uint32_t>(way->nodes.size()); --part > 0;) {
    NodePointer later = make_node<LaterNode>(way, part);
    for (size_t source = 0; source < edges.size(); ++source)
      if (way->of[source] == part) way->places[source].lead_to(*later, std::move(edges[source]));
    if (next) later->add_next_edge(autograd::Edge(std::move(next), 0));
    later->add_input_metadata(InParts::token(options));
    way->nodes[part] = later.get();
    next = std::move(later);
  }
  return {std::move(way), std::move(next)};
}

// Of one of several results.
NodePointer make_result_node(const NodePointer& node, std::span<const NodePointer> some, uint32_t result,
                             const at::Tensor& output) {
  NodePointer front = make_node<ResultNode>();
  node->add_input_metadata(output);
  front->add_next_edge(autograd::Edge(node, result));
  for (const NodePointer& each : some) {
    const uint64_t results = static_cast<const SourcesOfSome&>(*each).results();
    const uint64_t before = results & ((uint64_t{1} << result) - 1);
    if (results >> result & 1) front->add_next_edge(autograd::Edge(each, std::popcount(before)));
  }
  return front;
}

}  // namespace

// Autograd goes on with the node that was made last: results, the node of all of them, sources of some, later parts.
void hang_node(const std::shared_ptr<const Backward>& backward, Tensors& outputs, std::span<const at::Tensor> extras,
               const at::Tensor* const* inputs, std::span<const uint64_t> scalars, std::span<const int64_t> sizes) {
  std::vector<autograd::Edge> edges;
  for (const Backward::Source& source : backward->sources)
    edges.push_back(autograd::impl::gradient_edge(source.is_result ? outputs[source.index] : *inputs[source.index]));
  std::shared_ptr<InParts> way;
  NodePointer next;
  if (!backward->is_over && std::ranges::any_of(edges, is_waited_for))
    std::tie(way, next) = make_parts(backward, edges, outputs[backward->results[0].output].options());
  std::shared_ptr<Maker> maker;
  const std::vector<NodePointer> some = nodes_of_some(*backward, outputs, maker);
  const NodePointer pointer = make_node<BackwardNode>(backward, scalars, sizes);
  auto& node = static_cast<BackwardNode&>(*pointer);
  if (maker) node.set_as_maker(maker);
  node.lead_to(std::move(edges), some, std::move(way), std::move(next));
  const bool is_one = backward->results.size() == 1;
  for (uint32_t i = 0; i < backward->results.size(); ++i) {
    at::Tensor& output = outputs[backward->results[i].output];
    if (output.is_view()) output = output.variable_data();
    autograd::set_history(output, is_one ? pointer : make_result_node(pointer, some, i, output));
  }
  node.save(outputs, extras, inputs);
}

}  // namespace fastjit::dispatch
