#include "capture/build/window.h"

#include <algorithm>

#include "capture/build/named.h"

namespace fastjit::capture {
namespace {

using Numbers = std::optional<std::vector<int64_t>>;

/// Of padding="same": as many zeros before the image as behind it; nothing where that cannot be.
Numbers same(const TensorMeta& weight, const std::vector<int64_t>& dilation) {
  std::vector<int64_t> out;
  for (size_t d = 0; d < dilation.size(); ++d) {
    const int64_t both = (weight.sizes[2 + d] - 1) * dilation[d];
    if (both % 2 != 0) return std::nullopt;
    out.push_back(both / 2);
  }
  return out;
}

Numbers padding_of(const Named& named, const TensorMeta& weight, const std::vector<int64_t>& dilation) {
  const c10::IValue* value = named.constant("padding");
  if (!value || !value->isString()) return named.list("padding", dilation.size(), std::nullopt);
  if (value->toStringRef() == "same") return same(weight, dilation);
  return value->toStringRef() == "valid" ? Numbers(std::vector<int64_t>(dilation.size(), 0)) : std::nullopt;
}

}  // namespace

std::optional<ir::Window> window_of(const Event& event) {
  const bool goes_back = event.name == "aten::convolution_backward";
  if (event.facts.product != ir::Product::Convolution && !goes_back) return std::nullopt;
  if (event.name.find("transpose") != event.name.npos) return std::nullopt;
  const Named named(event);
  const Use *image = named.tensor("input"), *weight = named.tensor("weight");
  if (!image || !weight) return std::nullopt;
  const size_t rank = weight->meta->sizes.size();
  if (rank < 3 || image->meta->sizes.size() != rank) return std::nullopt;
  const c10::IValue* groups = named.constant("groups");
  if (!named.is_false("transposed") || !groups || !groups->isInt() || groups->toInt() != 1) return std::nullopt;
  const Numbers stride = named.list("stride", rank - 2, std::nullopt);
  const Numbers dilation = named.list("dilation", rank - 2, std::nullopt);
  if (!stride || !dilation || std::ranges::any_of(*stride, [](int64_t step) { return step <= 0; })) return std::nullopt;
  const Numbers padding = padding_of(named, *weight->meta, *dilation);
  return padding ? std::optional(ir::Window{*stride, *padding, *dilation}) : std::nullopt;
}

}  // namespace fastjit::capture
