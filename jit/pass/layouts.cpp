// Convolutions of images in channels_last: the library then reads and writes them as they lie, where row-major ones are
// reordered before and after each call. Kernels write an image in the order that its reader wants for nothing. What
// torch or the caller gets keeps eager's strides; what decides a guard stays torch's, bit for bit.
#include <algorithm>

#include "pass/pass.h"
#include "pass/rewrite.h"

namespace fastjit::pass {

using namespace ir;

namespace {

std::vector<Dim> channels_last(std::span<const Dim> sizes) {
  return {sizes[1] * sizes[2] * sizes[3], 1, sizes[3] * sizes[1], sizes[1]};
}

/// Several channels of more than a point, of which row-major and channels_last differ.
bool is_image(const Graph& graph, NodeId id) {
  const auto sizes = graph.sizes(id);
  return sizes.size() == 4 && sizes[1] > 1 && sizes[2] * sizes[3] > 1;
}

bool is_row_major(const Graph& graph, NodeId id) {
  return identical(graph.layout(id).strides, row_major(graph.sizes(id)));
}

/// Nodes that keep eager's strides: a guard depends on them, or a call writes or gives views of their memory.
std::vector<bool> fixed(const Graph& graph) {
  std::vector<bool> result = decides_guard(graph);
  const auto fix = [&](NodeId id) {
    for (; !result[id]; id = graph[id].in[0]) {
      result[id] = true;
      if (!ir::is_view(graph[id].op)) return;
    }
  };
  for (const ExternAttr& call : graph.externs) {
    for (const uint32_t index : call.written) fix(call.operands[index]);
    if (call.kind == ExternKind::View) fix(call.operands[0]);
  }
  return result;
}

bool is_fast_type(DType type) { return is_floating(type) && type != DType::F64; }

bool is_convolution(const Graph& graph, NodeId id) {
  const Node& node = graph[id];
  if (node.op != Op::Contract || !is_fast_type(node.dtype)) return false;
  const ContractAttr& attr = graph.contracts[node.attr];
  if (attr.kind != Product::Convolution || !attr.keeps_layout) return false;
  return is_image(graph, id) && is_image(graph, attr.operands[0]);
}

/// What the gradients of a convolution are of, in the order of the results.
enum Of : uint32_t { kImage, kWeight, kBias };

/// A call for the gradients of a convolution: of (gradient, image, weight). It reads the gradient in the order of the
/// image, and gives those of image and weight in that order.
bool is_way_back(const Graph& graph, NodeId id) {
  if (graph[id].op != Op::Extern) return false;
  const ExternAttr& call = graph.externs[graph[id].attr];
  if (!call.keeps_layout || call.outputs != 3 || call.operands.size() != 3) return false;
  const NodeId gradient = call.operands[0], image = call.operands[1];
  return is_fast_type(graph[image].dtype) && is_image(graph, gradient) && is_image(graph, image);
}

bool is_given_by_way_back(const Graph& graph, NodeId id) {
  return graph[id].op == Op::Result && is_way_back(graph, graph[id].in[0]);
}

/// The image that the result of a call lies like, or kNoNode.
NodeId followed(const Graph& graph, NodeId id) {
  if (graph[id].op != Op::Result) return kNoNode;
  const ExternAttr& call = graph.externs[graph[graph[id].in[0]].attr];
  if (call.outputs != 1 || call.operands.empty()) return kNoNode;
  return call.keeps_layout && is_image(graph, call.operands[0]) ? call.operands[0] : kNoNode;
}

/// Each index of the result is the same one of the operand, from some place on.
bool is_slice(const Graph& graph, const Node& view) {
  const std::vector<Affine>& dims = graph.maps[view.attr].dims;
  for (size_t k = 0; k < dims.size(); ++k)
    if (dims[k].terms.size() != 1 || dims[k].terms[0].first != k) return false;
  return dims.size() == view.rank;
}

class Choice {
 public:
  explicit Choice(const Graph& graph)
      : last(graph.nodes.size(), false),
        graph_(graph),
        keeps_(fixed(graph)),
        follows_(graph.nodes.size(), false),
        wanted_(graph.nodes.size(), false) {
    for (NodeId id = 0; id < graph.nodes.size(); ++id) trains_ = trains_ || is_way_back(graph, id);
    for (NodeId id = 0; id < graph.nodes.size(); ++id)
      if (keeps_[id] && is_given_by_way_back(graph, id)) keeps_[graph[id].in[0]] = true;
    // Gradients are copied: their call is given what lies in channels_last anyway.
    for (const NodeId id : graph.outputs)
      if (is_tensor(graph[id].op) && !is_given_by_way_back(graph, id)) keeps_[id] = true;
    for (auto id = static_cast<NodeId>(graph.nodes.size()); id-- > 0;) want(id);
    for (NodeId id = 0; id < graph.nodes.size(); ++id) {
      follows_[id] = !keeps_[id] && follows(id);
      const bool is_weight = is_given_by_way_back(graph, id) && graph[id].attr == kWeight;  // whatever its sizes are
      last[id] = follows_[id] && (is_weight || (is_image(graph, id) && is_row_major(graph, id)));
    }
  }

  /// Per node: stored, it would lie in channels_last here and in row-major order in eager.
  std::vector<bool> last;

  /// A call for the gradients of a convolution that is given channels_last here.
  bool changes(NodeId way_back) const { return follows_[way_back]; }

 private:
  /// The elements of `id` come in the order of those of `in`.
  bool is_like(NodeId id, NodeId in) const {
    const Node& node = graph_[id];
    if (in == kNoNode) return false;
    if (node.op == Op::View) return is_slice(graph_, node);
    const bool moves_none = is_pointwise(node.op) || node.op == Op::Reshape;
    return moves_none && identical(graph_.layout(in).numel(), graph_.layout(id).numel());
  }

  // In channels_last oneDNN adds the products of an element one after another, else in blocks. Its rms error from f64
  // in channels_last, over that in row-major order, measured with oneDNN 3 and AVX-512 at 3 x 3 taps: 16 channels 1.0,
  // 32 1.4, 64 2.0, 128 2.7, 256 3.7, 512 4.9; at one tap: 512 channels 1.4, 2048 2.0. All layers before and behind
  // such a convolution have that error in their gradients, and from 64 channels on channels_last gains 10 % of the call
  // or less. That of 16-bit floats is the rounding of their results.
  bool is_less_exact(NodeId weight) const {
    constexpr int64_t kMostProducts = 512;
    if (!trains_ || graph_[weight].dtype != DType::F32) return false;
    return graph_.layout(weight).numel().hint() > kMostProducts * graph_.sizes(weight)[0].hint();
  }

  // Measured with oneDNN 3 on two cores with AVX-512, some 100 shapes of six models: 1.1 to 14 times as fast where
  // image and result have half the elements of the weight or more; below, reordering the weight costs up to twice the
  // call. A convolution in between, whose image lies so anyway, saves a reordering of that.
  bool is_worth_it(NodeId convolution, bool lies_so) const {
    const auto operands = graph_.operands(convolution);
    return is_worth_it(operands[0], convolution, operands[1], lies_so);
  }

  bool is_worth_it(NodeId image, NodeId result, NodeId weight, bool lies_so) const {
    const auto numel = [&](NodeId id) { return graph_.layout(id).numel().hint(); };
    return !is_less_exact(weight) && (lies_so ? 4 : 2) * (numel(image) + numel(result)) >= numel(weight);
  }

  bool is_worth_going_back(NodeId call) const {
    const auto operands = graph_.operands(call);
    return !overruns(call) && is_worth_it(operands[1], operands[0], operands[2], true);
  }

  // Where oneDNN computes the gradient of a weight of 1 x 1 that takes every other point of such an image, it writes
  // past its own memory if there are fewer channels than it takes at once:
  // https://github.com/uxlfoundation/oneDNN/issues/6035.
  bool overruns(NodeId call) const {
    constexpr int64_t kAtOnce = 16;
    const auto operands = graph_.operands(call);
    const auto gradient = graph_.sizes(operands[0]), image = graph_.sizes(operands[1]),
               weight = graph_.sizes(operands[2]);
    const bool is_point = weight.size() == 4 && weight[2].hint() == 1 && weight[3].hint() == 1;
    const bool takes_all = identical(gradient[2], image[2]) && identical(gradient[3], image[3]);
    return is_point && !takes_all && weight[1].hint() < kAtOnce;
  }

  // One alone is not worth it: its image is reordered before it, and its result after it.
  void want(NodeId id) {
    if (is_convolution(graph_, id)) {
      if (is_worth_it(id, true)) wanted_[graph_.operands(id)[0]] = true;
    } else if (is_way_back(graph_, id)) {
      if (is_worth_going_back(id))
        for (const NodeId in : graph_.operands(id).first(2)) wanted_[in] = true;
    } else if (const NodeId image = followed(graph_, id); wanted_[id] && image != kNoNode) {
      wanted_[image] = true;
    } else if (wanted_[id]) {
      for (const NodeId in : graph_.operands(id))
        if (is_like(id, in)) wanted_[in] = true;
    }
  }

  bool follows(NodeId id) const {
    if (is_convolution(graph_, id)) {
      const bool lies_so = follows_[graph_.operands(id)[0]];
      return (lies_so || wanted_[id]) && is_worth_it(id, lies_so);
    }
    if (is_way_back(graph_, id)) {
      const auto in = graph_.operands(id);
      return (follows_[in[0]] || follows_[in[1]]) && is_row_major(graph_, in[1]) && is_worth_going_back(id);
    }
    if (is_given_by_way_back(graph_, id)) return graph_[id].attr != kBias && follows_[graph_[id].in[0]];
    if (const NodeId image = followed(graph_, id); image != kNoNode) return last[image];
    return std::ranges::any_of(graph_.operands(id), [&](NodeId in) { return is_like(id, in) && follows_[in]; });
  }

  const Graph& graph_;
  bool trains_ = false;        // gradients of a convolution are computed here
  std::vector<bool> keeps_;    // eager's strides
  std::vector<bool> follows_;  // its elements come in the order of an image that lies so
  std::vector<bool> wanted_;   // a convolution reads them in that order
};

}  // namespace

Changed layouts(const Graph& graph, const PassContext& context) {
  const auto convolves = [](const ContractAttr& attr) { return attr.kind == Product::Convolution; };
  if (!context.channels_last || std::ranges::none_of(graph.contracts, convolves)) return {};
  const Choice choice(graph);
  const std::vector<bool>& last = choice.last;
  if (std::ranges::find(last, true) == last.end()) return {};
  Rewriter rewriter(graph);
  const auto image_like = [&](NodeId operand) { return channels_last(graph.sizes(operand)); };
  for (NodeId id = 0; id < graph.nodes.size(); ++id) {
    const bool calls = graph[id].op == Op::Contract || graph[id].op == Op::Extern;
    const NodeId result = graph[id].op == Op::Extern ? id + 1 : id;
    const bool gives = result < graph.nodes.size() && last[result] && (result == id || graph[result].in[0] == id);
    const bool goes_back = is_way_back(graph, id);
    if (goes_back ? !choice.changes(id) : !gives)
      rewriter.copy(id);
    else if (goes_back)
      rewriter.call(id, {image_like(graph.operands(id)[0]), image_like(graph.operands(id)[1])});
    else if (calls)
      rewriter.call(id, {image_like(graph.operands(id)[0])}, image_like(result));
    else
      rewriter.copy(id, image_like(id));
  }
  return rewriter.finish();
}

}  // namespace fastjit::pass
