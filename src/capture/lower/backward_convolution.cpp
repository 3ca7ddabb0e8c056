// The gradients of weight and bias of a convolution that takes each channel by itself. That of its operand, and all of
// those of other convolutions, are torch's.
#include <algorithm>

#include "capture/lower/reduce.h"
#include "capture/lower/regions.h"

namespace fastjit::capture {
namespace {

// Of (gradient, x, weight, sizes of the bias, stride, padding, dilation, transposed, output padding, groups, mask).
struct Depthwise {
  Shape weight;  // channels, 1, taps of each dim
  std::vector<int64_t> stride, padding, dilation;
};

// oneDNN 3 has a kernel for 3 x 3 taps only. Of more, it took as long as these rows to 100 times as long where channels
// lie next to each other, and 1.6 to 8 times as long for row-major planes of up to 28 x 28 (0.5 to 0.9 times for 56 x
// 56 and 112 x 112): 28 shapes of 4 x 4 to 7 x 7 and 1 x 11 taps and 96 to 768 channels, on two cores with AVX-512.
constexpr int64_t kFewestTaps = 10, kLargestPlane = 32 * 32;

Depthwise parts(const Call& c) {
  Depthwise out{c.sizes(2), c.integers(4), c.integers(5), c.integers(6)};
  const size_t dims = out.weight.size() - 2;
  const ir::Dim channels = c.sizes(1)[1];
  int64_t taps = 1;
  for (size_t d = 0; d < dims; ++d) taps *= out.weight[2 + d].fixed();
  int64_t plane = 1;
  for (size_t d = 0; d < dims; ++d) plane *= c.meta(1).sizes[2 + d];
  const bool is_small = c.meta(1).layout().strides[1].hint() == 1 || plane <= kLargestPlane;
  const auto fits = [&](const std::vector<int64_t>& each) { return each.size() == dims; };
  const ScalarType type = c.meta(1).dtype;
  const bool is_depthwise = !c.flag(7) && channels == c.integer(9) && channels == out.weight[0];
  if (!is_depthwise || taps < kFewestTaps || !is_small || type != ScalarType::Float || c.meta(0).dtype != type ||
      numel(c.meta(0)) == 0 || numel(c.meta(1)) == 0 || !fits(out.stride) || !fits(out.padding) || !fits(out.dilation))
    throw NotLowered{};
  return out;
}

// Channels last, so that vectors run along them.
Expr channels_last(Expr x) {
  std::vector<int64_t> order{0};
  for (size_t d = 2; d < x.sizes().size(); ++d) order.push_back(static_cast<int64_t>(d));
  order.push_back(1);
  return at(x, permutation(sizes_of(x), order));
}

Expr padded(Expr x, const std::vector<int64_t>& padding) {
  if (std::ranges::count(padding, 0) == static_cast<int64_t>(padding.size())) return x;
  Shape whole = sizes_of(x);
  Region inner{identity_map(whole.size()), whole};
  for (size_t d = 0; d < padding.size(); ++d) {
    whole[1 + d] += 2 * padding[d];
    inner.map.dims[1 + d].offset = padding[d];
  }
  return among_zeros(x, whole, std::move(inner));
}

// What each tap meets of x: taps of each dim, then the sizes of the gradient, channels last.
Expr met_by_taps(Expr x, const Depthwise& how, std::span<const ir::Dim> gradient) {
  const auto dims = static_cast<uint8_t>(how.stride.size());
  Region region{{}, {how.weight.begin() + 2, how.weight.end()}};
  region.sizes.insert(region.sizes.end(), gradient.begin(), gradient.end());
  region.map.dims.push_back({0, {{dims, 1}}});
  for (uint8_t d = 0; d < dims; ++d)
    region.map.dims.push_back({0, {{d, how.dilation[d]}, {static_cast<uint8_t>(dims + 1 + d), how.stride[d]}}});
  region.map.dims.push_back({0, {{static_cast<uint8_t>(2 * dims + 1), 1}}});
  return at(x, std::move(region));
}

Expr weight_gradient(Expr g, Expr x, const Depthwise& how) {
  const auto dims = static_cast<uint8_t>(how.stride.size());
  Dims summed;
  for (uint8_t d = dims; d <= 2 * dims; ++d) summed.push_back(d);
  const Expr taps = reduce(ir::ReduceKind::Sum, met_by_taps(padded(x, how.padding), how, g.sizes()) * g, summed);
  std::vector<int64_t> order{dims};  // taps, channels -> channels, taps
  for (uint8_t d = 0; d < dims; ++d) order.push_back(d);
  return shaped(at(taps, permutation(sizes_of(taps), order)), how.weight);
}

void convolution_backward(Call& c) {
  const Depthwise how = parts(c);
  if (c.result(1).dtype == ScalarType::Undefined) throw NotLowered{};  // nothing of it is ours
  const Expr g = c.node(0);
  c.give_none();
  c.give(weight_gradient(channels_last(g), channels_last(c.node(1)), how));
  if (c.result(2).dtype == ScalarType::Undefined)
    c.give_none();
  else
    c.give(reduce(ir::ReduceKind::Sum, g, beside_channels(c.rank(0))));
}

constexpr LowerRow kRows[] = {lowered("aten::convolution_backward", row<convolution_backward>)};

}  // namespace

std::span<const LowerRow> backward_convolution_rows() { return kRows; }

}  // namespace fastjit::capture
