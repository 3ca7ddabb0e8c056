// Images are read channels last, among the zeros that lie around them, and weights with the channels that lanes run
// along last: both are copied so where they lie otherwise. What kernels then meet is a Dot like any other.
#include "plan/convolutions.h"

#include <algorithm>

namespace fastjit::plan {

namespace {

using ir::Affine;
using ir::Dim;
using ir::Graph;
using ir::IndexMap;
using ir::NodeId;
using ir::Window;
using Sizes = std::vector<Dim>;

enum Of : uint32_t { kImage, kWeight, kBias };  // results of a call for gradients

Affine along(size_t dim, int64_t step = 1, Dim offset = 0) { return {offset, {{static_cast<uint8_t>(dim), step}}}; }

Sizes sizes_of(const Graph& graph, NodeId id) { return {graph.sizes(id).begin(), graph.sizes(id).end()}; }

// ---- what there is to compute ----

/// Sizes of (images, weight, result), as torch has them.
struct Shapes {
  Sizes image, weight, result;
  size_t dims() const { return image.size() - 2; }
};

/// How far the zeros go that the gradient of an image has around it.
int64_t margin(const Shapes& of, const Window& window, size_t dim) {
  return (of.weight[2 + dim].hint() - 1) * window.dilation[dim] - window.padding[dim];
}

bool fits(const Shapes& of, const Window& window) {
  constexpr size_t kMostDims = 3;
  const size_t rank = of.image.size();
  if (rank < 3 || rank - 2 > kMostDims || of.weight.size() != rank || of.result.size() != rank) return false;
  if (window.stride.size() != rank - 2 || window.padding.size() != rank - 2 || window.dilation.size() != rank - 2)
    return false;
  if (!identical(of.image[0], of.result[0]) || !identical(of.image[1], of.weight[1]) ||
      !identical(of.weight[0], of.result[1]))
    return false;
  for (const Sizes* sizes : {&of.image, &of.weight, &of.result})
    if (std::ranges::any_of(*sizes, [](Dim size) { return size.hint() == 0; })) return false;
  if (std::ranges::any_of(of.weight, &Dim::is_symbolic)) return false;
  for (size_t d = 0; d < of.dims(); ++d) {
    const int64_t reach = window.dilation[d] * (of.weight[2 + d].hint() - 1) + 1;
    const Dim places = of.image[2 + d] + (2 * window.padding[d] - reach);
    if (!identical(places / window.stride[d] + 1, of.result[2 + d])) return false;
  }
  return true;
}

int64_t numel(const Sizes& sizes) { return ir::Layout{sizes, {}}.numel().hint(); }

/// Of a Dot whose lanes run along `columns`: its results, the products of each.
ConvolutionSize size_of(const Sizes& result, const Sizes& weight, int64_t columns, int64_t inner, ir::DType dtype,
                        int lanes) {
  const int64_t points = numel(result) * inner, whole = (columns + lanes - 1) / lanes * lanes;
  return {points, points / columns * whole, numel(weight), ir::size_of(dtype), lanes};
}

int64_t taps_of(const Sizes& weight) {
  int64_t taps = 1;
  for (size_t d = 2; d < weight.size(); ++d) taps *= weight[d].hint();
  return taps;
}

/// Lanes run along the channels of the result or, of the gradient of a weight, along those of the images where they are
/// more.
bool has_image_last(const Sizes& weight, int lanes) {
  return weight[0].hint() < lanes && weight[1].hint() > weight[0].hint();
}

// ---- how it is computed ----

/// All elements; dim k is dim order[k] of the value.
NodeId permuted(Graph& to, NodeId value, const std::vector<size_t>& order) {
  const Sizes sizes = sizes_of(to, value);
  IndexMap map;
  map.dims.resize(order.size());
  Sizes result;
  for (size_t k = 0; k < order.size(); ++k) {
    map.dims[order[k]] = along(k);
    result.push_back(sizes[order[k]]);
  }
  return to.view(value, std::move(map), std::move(result));
}

/// From [batch, channels, dims...] to [batch, dims..., channels].
NodeId channels_last(Graph& to, NodeId images) {
  std::vector<size_t> order{0};
  for (size_t d = 2; d < to.sizes(images).size(); ++d) order.push_back(d);
  order.push_back(1);
  return permuted(to, images, order);
}

NodeId channels_first(Graph& to, NodeId images) {
  const size_t last = to.sizes(images).size() - 1;
  std::vector<size_t> order{0, last};
  for (size_t d = 1; d < last; ++d) order.push_back(d);
  return permuted(to, images, order);
}

/// A copy in row-major order.
NodeId laid_out(Graph& to, NodeId value) {
  const Sizes sizes = sizes_of(to, value);
  return to.update(to.undef(to[value].dtype, {sizes, ir::row_major(sizes)}), value, ir::identity_map(sizes.size()));
}

/// Where an image lies among zeros: so far from the first end, so far from point to point.
struct Border {
  std::vector<int64_t> first, step;
  Sizes whole;  // of the dims
};

Border in_padding(const Shapes& of, const Window& window) {
  Border place{window.padding, std::vector<int64_t>(of.dims(), 1), {}};
  for (size_t d = 0; d < of.dims(); ++d) place.whole.push_back(of.image[2 + d] + 2 * window.padding[d]);
  return place;
}

/// The gradient of the result, from which that of the image is a convolution too: with the taps in reverse order.
Border in_margin(const Shapes& of, const Window& window) {
  Border place{{}, window.stride, {}};
  for (size_t d = 0; d < of.dims(); ++d) {
    place.first.push_back(margin(of, window, d));
    place.whole.push_back(of.image[2 + d] + (of.weight[2 + d].hint() - 1) * window.dilation[d]);
  }
  return place;
}

/// Of images that lie channels last. The zeros are its own: those that several share would be copied.
NodeId among_zeros(Graph& to, NodeId images, const Border& border) {
  const Sizes sizes = sizes_of(to, images);
  Sizes whole{sizes.front()};
  whole.insert(whole.end(), border.whole.begin(), border.whole.end());
  whole.push_back(sizes.back());
  if (std::ranges::equal(whole, sizes, [](Dim a, Dim b) { return identical(a, b); })) return images;
  IndexMap map{{along(0)}};
  for (size_t d = 0; d < border.whole.size(); ++d) map.dims.push_back(along(1 + d, border.step[d], border.first[d]));
  map.dims.push_back(along(sizes.size() - 1));
  const NodeId zeros = laid_out(to, to.expand(to.constant(to[images].dtype, 0), std::move(whole)));
  return to.update(zeros, images, std::move(map));
}

enum class Taps : uint8_t { Forward, Reversed };

/// The weight as [taps..., channels that are summed over, channels of the result].
NodeId packed(Graph& to, NodeId weight, Taps order) {
  const Sizes sizes = sizes_of(to, weight);
  const size_t dims = sizes.size() - 2;
  const bool reversed = order == Taps::Reversed;
  IndexMap map{{along(reversed ? dims : dims + 1), along(reversed ? dims + 1 : dims)}};
  Sizes result;
  for (size_t d = 0; d < dims; ++d) {
    map.dims.push_back(reversed ? along(d, -1, sizes[2 + d] - 1) : along(d));
    result.push_back(sizes[2 + d]);
  }
  result.push_back(sizes[reversed ? 0 : 1]);
  result.push_back(sizes[reversed ? 1 : 0]);
  return laid_out(to, to.view(weight, std::move(map), std::move(result)));
}

/// [batch, dims..., channels] of images among zeros and a packed weight. Dims of the Dot: those of the result, then the
/// taps and the channels that are summed over.
NodeId convolved(Graph& to, NodeId images, NodeId weight, std::span<const Dim> dims, const std::vector<int64_t>& stride,
                 const std::vector<int64_t>& dilation) {
  const Sizes taps = sizes_of(to, weight);
  const size_t count = dims.size(), column = count + 1, tap = count + 2, inner = tap + count;
  Sizes space{to.sizes(images)[0]};
  space.insert(space.end(), dims.begin(), dims.end());
  space.push_back(taps[count + 1]);
  space.insert(space.end(), taps.begin(), taps.begin() + static_cast<std::ptrdiff_t>(count) + 1);
  IndexMap met{{along(0)}}, with;
  std::vector<uint8_t> summed;
  for (size_t d = 0; d < count; ++d) {
    met.dims.push_back({0, {{static_cast<uint8_t>(1 + d), stride[d]}, {static_cast<uint8_t>(tap + d), dilation[d]}}});
    with.dims.push_back(along(tap + d));
    summed.push_back(static_cast<uint8_t>(tap + d));
  }
  met.dims.push_back(along(inner));
  with.dims.push_back(along(inner));
  with.dims.push_back(along(column));
  summed.push_back(static_cast<uint8_t>(inner));
  return to.dot(to.view(images, std::move(met), space), to.view(weight, std::move(with), space), std::move(summed));
}

/// The gradient of the result, channels last, as that of the weight reads it, and where it lies there.
struct Read {
  NodeId value;
  std::vector<int64_t> first;
};

/// The gradient of the weight, [taps..., channels of the images, channels of the result], or these two the other way
/// round. Dims of the Dot: those, then the batch and the dims of the gradient.
NodeId correlated(Graph& to, NodeId images, const Read& gradient, const Shapes& of, const Window& window,
                  bool image_last) {
  const size_t count = of.dims(), batch = count + 2;
  const size_t channel = image_last ? count + 1 : count, column = image_last ? count : count + 1;
  Sizes space(of.weight.begin() + 2, of.weight.end());
  space.push_back(of.weight[image_last ? 0 : 1]);
  space.push_back(of.weight[image_last ? 1 : 0]);
  space.push_back(of.result[0]);
  space.insert(space.end(), of.result.begin() + 2, of.result.end());
  IndexMap met{{along(batch)}}, with{{along(batch)}};
  std::vector<uint8_t> summed{static_cast<uint8_t>(batch)};
  for (size_t d = 0; d < count; ++d) {
    const size_t at = batch + 1 + d;
    met.dims.push_back(
        {0, {{static_cast<uint8_t>(d), window.dilation[d]}, {static_cast<uint8_t>(at), window.stride[d]}}});
    with.dims.push_back(along(at, 1, gradient.first[d]));
    summed.push_back(static_cast<uint8_t>(at));
  }
  met.dims.push_back(along(channel));
  with.dims.push_back(along(column));
  return to.dot(to.view(images, std::move(met), space), to.view(gradient.value, std::move(with), space),
                std::move(summed));
}

/// To torch's order: [channels of the result, channels of the images, taps...].
NodeId weight_first(Graph& to, NodeId taps, bool image_last) {
  const size_t count = to.sizes(taps).size() - 2;
  std::vector<size_t> order{image_last ? count : count + 1, image_last ? count + 1 : count};
  for (size_t d = 0; d < count; ++d) order.push_back(d);
  return permuted(to, taps, order);
}

/// Of a call for gradients.
Shapes shapes_of_call(const Graph& graph, NodeId call) {
  const auto operands = graph.operands(call);
  return {sizes_of(graph, operands[1]), sizes_of(graph, operands[2]), sizes_of(graph, operands[0])};
}

}  // namespace

bool is_own_convolution(const Graph& graph, NodeId id, const PlanOptions& options) {
  const ir::Node& node = graph[id];
  if (node.op != ir::Op::Contract || !ir::is_float(node.dtype)) return false;
  const ir::ContractAttr& attr = graph.contracts[node.attr];
  if (!attr.window || attr.operands.size() < 2) return false;
  const Shapes of{sizes_of(graph, attr.operands[0]), sizes_of(graph, attr.operands[1]), sizes_of(graph, id)};
  if (!fits(of, *attr.window)) return false;
  const int64_t inner = taps_of(of.weight) * of.weight[1].hint();
  const ConvolutionSize size = size_of(of.result, of.weight, of.result[1].hint(), inner, node.dtype, options.lanes);
  return options.no_library || options.costs.own(size) < options.costs.library(size);
}

bool are_own_gradients(const Graph& graph, NodeId call, std::span<const NodeId> results, const PlanOptions& options) {
  const ir::ExternAttr& attr = graph.externs[graph[call].attr];
  if (!attr.window || attr.operands.size() != 3 || results.empty()) return false;
  const Shapes of = shapes_of_call(graph, call);
  const ir::DType dtype = graph[results[0]].dtype;
  if (!ir::is_float(dtype) || !fits(of, *attr.window)) return false;
  const int64_t taps = taps_of(of.weight);
  const ConvolutionSize library =
      size_of(of.result, of.weight, of.result[1].hint(), taps * of.weight[1].hint(), dtype, options.lanes);
  int64_t own = 0, librarys = 0;
  for (const NodeId result : results) {
    if (graph[result].attr == kBias) continue;
    ConvolutionSize size = library;
    if (graph[result].attr == kImage) {
      for (size_t d = 0; d < of.dims(); ++d)
        if (margin(of, *attr.window, d) < 0) return false;
      size = size_of(of.image, of.weight, of.image[1].hint(), taps * of.weight[0].hint(), dtype, options.lanes);
    } else if (has_image_last(of.weight, options.lanes)) {
      size = size_of(of.result, of.weight, of.image[1].hint(), taps * of.weight[1].hint(), dtype, options.lanes);
    }
    own += options.costs.own(size);
    librarys += options.costs.library(library);
  }
  return options.no_library || own < librarys;
}

NodeId OwnConvolutions::convolution(NodeId id) {
  const ir::ContractAttr& attr = from_.contracts[from_[id].attr];
  const Shapes of{sizes_of(from_, attr.operands[0]), sizes_of(from_, attr.operands[1]), sizes_of(from_, id)};
  to_.set_line(from_[id].line);
  const NodeId images = channels_last(to_, rewriter_[attr.operands[0]]);
  const NodeId weight = packed(to_, rewriter_[attr.operands[1]], Taps::Forward);
  NodeId result = convolved(to_, among_zeros(to_, images, in_padding(of, *attr.window)), weight,
                            std::span(of.result).subspan(2), attr.window->stride, attr.window->dilation);
  if (attr.operands.size() > 2 && attr.operands[2] != ir::kNoNode)
    result = to_.pointwise(ir::Op::Add, {result, to_.expand(rewriter_[attr.operands[2]], sizes_of(to_, result))});
  return to_.with_strides(channels_first(to_, result), from_.layout(id).strides);
}

NodeId OwnConvolutions::gradient(NodeId result) {
  const NodeId call = from_[result].in[0];
  to_.set_line(from_[call].line);
  switch (from_[result].attr) {
    case kImage:
      return to_.with_strides(image_gradient(call), from_.layout(result).strides);
    case kWeight:
      return to_.with_strides(weight_gradient(call), from_.layout(result).strides);
    default:
      return bias_gradient(call);
  }
}

/// The gradient of the result among the zeros that the one of the images meets there.
NodeId OwnConvolutions::around(NodeId call) {
  const auto [known, fresh] = around_.try_emplace(call, ir::kNoNode);
  if (!fresh) return known->second;
  const ir::ExternAttr& attr = from_.externs[from_[call].attr];
  const NodeId gradient = channels_last(to_, rewriter_[attr.operands[0]]);
  return known->second = among_zeros(to_, gradient, in_margin(shapes_of_call(from_, call), *attr.window));
}

NodeId OwnConvolutions::image_gradient(NodeId call) {
  const ir::ExternAttr& attr = from_.externs[from_[call].attr];
  const Shapes of = shapes_of_call(from_, call);
  const NodeId weight = packed(to_, rewriter_[attr.operands[2]], Taps::Reversed);
  const std::vector<int64_t> each(of.dims(), 1);
  return channels_first(
      to_, convolved(to_, around(call), weight, std::span(of.image).subspan(2), each, attr.window->dilation));
}

/// It reads the gradient of the result where that of the images does, unless zeros lie between its points there.
NodeId OwnConvolutions::weight_gradient(NodeId call) {
  const ir::ExternAttr& attr = from_.externs[from_[call].attr];
  const Shapes of = shapes_of_call(from_, call);
  const Border margins = in_margin(of, *attr.window);
  const bool is_dense = std::ranges::all_of(margins.step, [](int64_t step) { return step == 1; }) &&
                        std::ranges::all_of(margins.first, [](int64_t first) { return first >= 0; });
  const NodeId given = rewriter_[attr.operands[0]], last = channels_last(to_, given);
  Read gradient{is_dense ? around(call) : last, margins.first};
  if (gradient.value == last) {
    gradient.first.assign(of.dims(), 0);
    if (!ir::identical(to_.layout(given).strides[1], 1)) gradient.value = laid_out(to_, last);
  }
  const NodeId images = channels_last(to_, rewriter_[attr.operands[1]]);
  const bool image_last = has_image_last(of.weight, lanes_);
  return weight_first(
      to_,
      correlated(to_, among_zeros(to_, images, in_padding(of, *attr.window)), gradient, of, *attr.window, image_last),
      image_last);
}

NodeId OwnConvolutions::bias_gradient(NodeId call) {
  const NodeId gradient = rewriter_[from_.operands(call)[0]];
  std::vector<uint8_t> summed;
  for (uint8_t d = 0; d < to_.sizes(gradient).size(); ++d)
    if (d != 1) summed.push_back(d);
  return to_.reduce(ir::ReduceKind::Sum, gradient, std::move(summed), to_[gradient].dtype);
}

}  // namespace fastjit::plan
