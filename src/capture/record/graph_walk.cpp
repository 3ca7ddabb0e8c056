#include "capture/record/graph_walk.h"
#include "capture/record/tensor_hooks.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_function.h>
#include <torch/csrc/autograd/variable.h>

#include <c10/util/Type.h>

#include <algorithm>

namespace fastjit::capture {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;

bool has_hooks(Node& node) {
  return !node.tensor_pre_hooks().empty() || !node.pre_hooks().empty() || !node.post_hooks().empty() ||
         !node.retains_grad_hooks().empty();
}

constexpr std::string_view kPython = "PyNode";  // an autograd.Function
constexpr std::string_view kLeaf = "AccumulateGrad";

// The name of a class of torch's autograd; empty: it is someone else's.
std::string class_of(const Node& node) {
  const std::string type = c10::demangle(typeid(node).name());
  constexpr std::string_view kAutograd = "torch::autograd::";
  return type.starts_with(kAutograd) ? type.substr(kAutograd.size()) : "";
}

// Why a run through the node would be noticed, or might do something else than computing. Not all of torch's classes of
// nodes are there to be asked for.
std::string why_not_plain(Node& node, const std::string& own) {
  if (has_hooks(node)) return "a hook waits for gradients inside the call (at " + node.name() + ")";
  if (own.starts_with("generated::") || own == kPython || own == kLeaf || own == "CopySlices" || own == "CopyBackwards")
    return "";
  return "they go through a node of autograd's that is not torch's own (" + node.name() + ")";
}

/// The graph behind a tensor that was there before the call.
class End final : public Node {
 public:
  End(const at::Tensor& tensor, uint32_t input) {
    for (uint32_t i = 0; i < input; ++i) add_input_metadata(undefined_input());
    add_input_metadata(tensor);
  }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    return std::move(gradients);
  }
};

class NoneHook final : public torch::autograd::FunctionPostHook {
 public:
  NoneHook(std::shared_ptr<Nones::Edges> seen, const Node* node) : seen_(std::move(seen)), node_(node) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& /*inputs*/) override {
    for (size_t i = 0; i < outputs.size(); ++i)
      if (!outputs[i].defined()) seen_->emplace(node_, i);
    return outputs;
  }

 private:
  const std::shared_ptr<Nones::Edges> seen_;
  const Node* node_;
};

template <class Pointer>
Pointer make_end(const at::Tensor& tensor, uint32_t input) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<Node>>)
    return std::make_shared<End>(tensor, input);
  else
    return c10::make_intrusive<End>(tensor, input);
}

}  // namespace

GraphWalk::GraphWalk(const Trace& trace, const std::vector<at::Tensor>& shown, bool ends_before)
    : trace_(trace), ends_before_(ends_before) {
  for (const at::Tensor& tensor : shown) shown_.insert(tensor.unsafeGetTensorImpl());
  for (uint32_t i = 0; i < trace.roots.size(); ++i) {
    const Source& root = trace.roots[i];
    if (!root.before.requires_grad || !trace.tensors[root.before.tensor].unusual.empty()) continue;
    Edge edge = torch::autograd::impl::gradient_edge(root.tensor);
    if (roots_.try_emplace(place_of(edge), i).second) begins_.emplace_back(i, std::move(edge));
  }
}

std::string GraphWalk::from(const std::vector<Edge>& results) {
  for (uint32_t i = 0; i < results.size(); ++i) results_.try_emplace(place_of(results[i]), i);
  for (const Edge& result : results) visit(result);
  while (!todo_.empty()) {
    const Edge edge = std::move(todo_.back());
    todo_.pop_back();
    Node* node = edge.function.get();
    const std::string own = class_of(*node);
    if (own == kPython) add_function(edge);
    if (own == kLeaf && !is_own_leaf(*node)) return "the call makes a tensor that requires grad";
    if (std::string why = why_not_plain(*node, own); !why.empty()) return why;
    for (const Edge& next : node->next_edges())
      if (std::string why = follow(next); !why.empty()) return why;
  }
  return "";
}

GraphWalk::Sources GraphWalk::sources() const {
  Sources out;
  std::ranges::copy_if(begins_, std::back_inserter(out),
                       [&](const auto& begin) { return reached_.contains(place_of(begin.second)); });
  return out;
}

std::vector<uint64_t> GraphWalk::reached_by(const std::vector<Edge>& results, const Nones& nones,
                                            std::vector<FunctionOnWay>& python) const {
  std::map<Place, uint64_t> by;
  std::map<const Node*, uint64_t> functions;
  for (size_t i = 0; i < results.size(); ++i) {
    std::unordered_set<const Node*> seen{results[i].function.get()};
    std::vector<const Node*> todo(seen.begin(), seen.end());
    while (!todo.empty()) {
      const Node* node = todo.back();
      todo.pop_back();
      if (python_.contains(node)) functions[node] |= uint64_t{1} << i;
      for (uint32_t edge = 0; edge < node->num_outputs(); ++edge) {
        const Edge& next = node->next_edge(edge);
        if (!next.is_valid() || nones.contains(node, edge)) continue;
        if (const Place place = place_of(next); roots_.contains(place) || results_.contains(place))
          by[place] |= uint64_t{1} << i;
        else if (seen.insert(next.function.get()).second)
          todo.push_back(next.function.get());
      }
    }
  }
  for (const auto& [node, bits] : functions) python.push_back({bits, python_.at(node)});
  std::vector<uint64_t> out;
  for (const auto& [root, edge] : sources()) out.push_back(by[place_of(edge)]);
  for (const uint32_t inner : inner_) out.push_back(by[place_of(results[inner])]);
  return out;
}

std::vector<PyObject*> GraphWalk::contexts() const {
  std::vector<PyObject*> out;
  for (const pybind11::object& context : contexts_) out.push_back(context.ptr());
  return out;
}

std::string GraphWalk::follow(const Edge& edge) {
  if (!edge.is_valid()) return "";
  if (const auto result = results_.find(place_of(edge)); result != results_.end()) inner_.insert(result->second);
  const auto root = roots_.find(place_of(edge));
  if (root == roots_.end()) return visit(edge), "";
  if (!reached_.insert(place_of(edge)).second || ends_before_) return "";
  const Source& source = trace_.roots[root->second];
  Node& node = *edge.function;
  const bool is_leaf = source.tensor.is_leaf();
  const bool waits = is_leaf ? has_tensor_hooks(source.tensor)
                             : !node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty();
  return waits ? "a hook waits for that of '" + source.name + "'" : "";
}

// A tensor that nobody has when the call has ended, and so nobody asks for its gradient.
bool GraphWalk::is_own_leaf(Node& node) const {
  const at::Tensor& leaf = static_cast<torch::autograd::AccumulateGrad&>(node).variable;
  return trace_.own_leaves.contains(trace_.find(leaf.unsafeGetTensorImpl())) && !node.tensor_post_acc_grad_hooks() &&
         !shown_.contains(leaf.unsafeGetTensorImpl());
}

void GraphWalk::visit(const Edge& edge) {
  if (seen_.insert(edge.function.get()).second) todo_.push_back(edge);
}

void GraphWalk::add_function(const Edge& edge) {
  Node* node = edge.function.get();
  contexts_.push_back(
      pybind11::reinterpret_steal<pybind11::object>(torch::autograd::functionToPyObject(edge.function)));
  python_.emplace(node, !reinterpret_cast<const THPFunction*>(contexts_.back().ptr())->materialize_grads);
  if (node->num_inputs() > 1) joins_ = node->name();
}

Nones::Nones(const std::map<const Node*, bool>& functions) {
  for (const auto& [node, is_given_none] : functions) {
    auto* const watched = const_cast<Node*>(node);
    hooks_.emplace_back(watched, watched->add_post_hook(std::make_unique<NoneHook>(seen_, node)));
  }
}

Nones::~Nones() {
  for (const auto& [node, hook] : hooks_) node->del_post_hook(hook);
}

CutOff::CutOff(const std::unordered_set<const Node*>& nodes, const Trace& trace, GraphWalk::Sources& sources) {
  Ends ends;
  for (auto& [root, edge] : sources) {
    const at::Tensor& tensor = trace.roots[root].tensor;
    if (tensor.is_leaf() && edge.function->tensor_pre_hooks().empty()) continue;
    const std::pair<const Node*, uint32_t> place{edge.function.get(), edge.input_nr};
    edge = Edge(make_end<decltype(Edge::function)>(tensor, edge.input_nr), edge.input_nr);
    ends.emplace(place, edge);
  }
  if (ends.empty()) return;
  for (const Node* node : nodes) {
    cut(const_cast<Node*>(node)->next_edges(), ends);
    if (const auto* copy = dynamic_cast<const torch::autograd::CopySlices*>(node)) cut(copy->fn->next_edges(), ends);
  }
}

CutOff::~CutOff() {
  for (auto& [edges, index, edge] : was_) (*edges)[index] = std::move(edge);
}

void CutOff::cut(torch::autograd::edge_list& edges, const Ends& ends) {
  for (size_t i = 0; i < edges.size(); ++i) {
    const auto end = ends.find({edges[i].function.get(), edges[i].input_nr});
    if (end == ends.end()) continue;
    was_.push_back({&edges, i, edges[i]});
    edges[i] = end->second;
  }
}

}  // namespace fastjit::capture
