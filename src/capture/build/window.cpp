#include "capture/build/window.h"

#include <algorithm>

#include "capture/build/result_sizes.h"

namespace fastjit::capture {
namespace {

const c10::IValue* constant(const Event& event, std::string_view name) {
  const auto at = place_of(event, name);
  const bool is_there = at && event.args[*at].kind == CallValue::Kind::Constant;
  return is_there ? &event.args[*at].constant : nullptr;
}

const Use* tensor(const Event& event, std::string_view name) {
  const auto at = place_of(event, name);
  return at && event.args[*at].uses.size() == 1 ? &event.args[*at].uses[0] : nullptr;
}

/// One number for each dim; empty where they are not known. One alone is for all dims.
std::vector<int64_t> numbers(const Event& event, std::string_view name, size_t dims) {
  const c10::IValue* value = constant(event, name);
  if (!value || !value->isIntList()) return {};
  std::vector<int64_t> all = value->toIntVector();
  if (all.size() == 1) all.assign(dims, all[0]);
  return all.size() == dims ? all : std::vector<int64_t>();
}

/// Of padding="same": as many zeros before the image as behind it; empty where that cannot be.
std::vector<int64_t> same(const TensorMeta& weight, const std::vector<int64_t>& dilation) {
  std::vector<int64_t> out;
  for (size_t d = 0; d < dilation.size(); ++d) {
    const int64_t both = (weight.sizes[2 + d] - 1) * dilation[d];
    if (both % 2 != 0) return {};
    out.push_back(both / 2);
  }
  return out;
}

std::vector<int64_t> padding_of(const Event& event, const TensorMeta& weight, const std::vector<int64_t>& dilation) {
  const c10::IValue* value = constant(event, "padding");
  if (!value || !value->isString()) return numbers(event, "padding", dilation.size());
  if (value->toStringRef() == "same") return same(weight, dilation);
  return value->toStringRef() == "valid" ? std::vector<int64_t>(dilation.size(), 0) : std::vector<int64_t>();
}

}  // namespace

std::optional<ir::Window> window_of(const Event& event) {
  const bool goes_back = event.name == "aten::convolution_backward";
  if (event.facts.product != ir::Product::Convolution && !goes_back) return std::nullopt;
  const Use *image = tensor(event, "input"), *weight = tensor(event, "weight");
  if (!image || !weight || image->tensor == kNone || weight->tensor == kNone) return std::nullopt;
  const size_t rank = weight->meta->sizes.size();
  if (rank < 3 || image->meta->sizes.size() != rank) return std::nullopt;
  const c10::IValue *transposed = constant(event, "transposed"), *groups = constant(event, "groups");
  const bool may_be_transposed = place_of(event, "transposed").has_value();
  if (may_be_transposed && (!transposed || !transposed->isBool() || transposed->toBool())) return std::nullopt;
  if (event.name.find("transpose") != event.name.npos) return std::nullopt;
  if (!groups || !groups->isInt() || groups->toInt() != 1) return std::nullopt;
  ir::Window window{numbers(event, "stride", rank - 2), {}, numbers(event, "dilation", rank - 2)};
  window.padding = padding_of(event, *weight->meta, window.dilation);
  const bool is_whole = !window.stride.empty() && !window.padding.empty() && !window.dilation.empty();
  return is_whole && std::ranges::all_of(window.stride, [](int64_t s) { return s > 0; }) ? std::optional(window)
                                                                                         : std::nullopt;
}

}  // namespace fastjit::capture
