#include "capture/build/result_sizes.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "capture/build/named.h"
#include "ir/strides.h"

namespace fastjit::capture {
namespace {

using ir::Dim;
using Dims = std::vector<Dim>;
using Found = std::optional<Dims>;

/// Arguments of an operator by the names of its schema, sizes among them.
class NamedSizes : public Named {
 public:
  explicit NamedSizes(const SizedCall& call) : Named(call.event), call_(call) {}
  /// Empty: it is none, or there is no such argument.
  Dims ints(std::string_view name) const {
    const auto at = place_of(call_.event, name);
    return at ? call_.ints(*at) : Dims();
  }

 private:
  const SizedCall& call_;
};

// ---- windows ----

struct Window {
  int64_t size, stride, padding, dilation;
};

// aten/src/ATen/native/Pool.h: the last window begins inside, or in the padding before.
Dim windows(Dim size, const Window& w, bool rounds_up) {
  const Dim left = size + (2 * w.padding - w.dilation * (w.size - 1) - 1);
  if (!rounds_up) return left / w.stride + 1;
  const Dim count = divide_up(left, w.stride) + 1;
  return (count - 1) * w.stride >= size + w.padding ? count - 1 : count;
}

/// The dims over which an operator's windows go, as its name says; 0: it does not.
size_t window_dims(std::string_view op) {
  for (const size_t count : {1, 2, 3})
    if (op.find(std::to_string(count) + "d") != op.npos) return count;
  return 0;
}

/// Sizes of a convolution or of a pool; nothing for other operators.
Found windowed(const SizedCall& call, const NamedSizes& named) {
  const Event& event = call.event;
  const bool convolves = event.facts.product == ir::Product::Convolution;
  if (call.tensors.empty() || (!convolves && !named.find("kernel_size"))) return std::nullopt;
  const std::vector<Dim>& in = call.tensors[0].sizes;
  const size_t rank = in.size(), count = convolves && rank > 2 ? rank - 2 : window_dims(event.name),
               lead = rank - count;
  if (count == 0 || lead < 1 || lead > 2 || (convolves && lead < 2)) return std::nullopt;  // channels, and batches
  if (convolves && (call.tensors.size() < 2 || call.tensors[1].sizes.size() != rank)) return std::nullopt;
  const bool is_transposed = named.is_true("transposed") || event.name.find("conv_transpose") != event.name.npos;
  const bool rounds_up = named.is_true("ceil_mode");
  if (!(is_transposed || named.is_false("transposed")) || !(rounds_up || named.is_false("ceil_mode")))
    return std::nullopt;
  std::optional<std::vector<int64_t>> window;
  if (convolves) {
    window.emplace();
    for (size_t d = lead; d < rank; ++d) window->push_back(call.tensors[1].sizes[d].fixed());
  } else {
    window = named.list("kernel_size", count, std::nullopt);
  }
  const c10::IValue* given = named.constant("stride");
  const bool as_window = !convolves && given && given->isIntList() && given->toIntVector().empty();
  const auto stride = as_window ? window : named.list("stride", count, std::nullopt);
  const auto padding = named.list("padding", count, 0), dilation = named.list("dilation", count, 1);
  const auto more = named.list("output_padding", count, 0);
  const Dims groups = named.ints("groups");
  if (!window || !stride || !padding || !dilation || !more || (is_transposed && groups.size() != 1))
    return std::nullopt;
  Dims sizes(in.begin(), in.begin() + static_cast<ptrdiff_t>(lead));
  if (convolves) sizes[1] = is_transposed ? call.tensors[1].sizes[1] * groups[0] : call.tensors[1].sizes[0];
  for (size_t d = 0; d < count; ++d) {
    const Window one{(*window)[d], (*stride)[d], (*padding)[d], (*dilation)[d]};
    const Dim size = in[lead + d];
    const int64_t reach = one.dilation * (one.size - 1) + 1 - 2 * one.padding + (*more)[d];
    sizes.push_back(is_transposed ? (size - 1) * one.stride + reach : windows(size, one, rounds_up));
  }
  return sizes;
}

/// Sizes of a product of matrices.
Found product_sizes(const SizedCall& call) {
  const Event& event = call.event;
  if (!event.facts.product || event.facts.product == ir::Product::Convolution) return std::nullopt;
  if (call.tensors.size() < 2) return std::nullopt;
  const auto &a = call.tensors[call.tensors.size() - 2].sizes, &b = call.tensors.back().sizes;
  if (a.size() != b.size() || a.size() < 2) return std::nullopt;
  Dims sizes(a.begin(), a.end());
  sizes.back() = b.back();
  return sizes;
}

// ---- images ----

Found padded(const SizedCall& call, const NamedSizes& named) {
  const Dims pad = named.ints(named.find("pad") ? "pad" : "padding");
  Dims sizes = call.tensors[0].sizes;
  if (pad.size() % 2 || pad.size() / 2 > sizes.size()) return std::nullopt;
  for (size_t i = 0; i < pad.size(); ++i) sizes[sizes.size() - 1 - i / 2] += pad[i];
  return sizes;
}

// What floor(size * scale) is in floating point, where that is the same for each size.
std::optional<Dim> scaled(Dim size, double scale) {
  if (scale >= 1 && scale == std::floor(scale) && scale < 4096) return size * static_cast<int64_t>(scale);
  int exponent = 0;
  if (scale > 0 && scale < 1 && std::frexp(scale, &exponent) == 0.5) return size / (int64_t{1} << (1 - exponent));
  return std::nullopt;
}

Found resampled(const SizedCall& call, const NamedSizes& named) {
  Dims sizes = call.tensors[0].sizes;
  if (sizes.size() < 3) return std::nullopt;
  const Dims out = named.ints("output_size");
  if (out.size() == sizes.size() - 2) {
    std::ranges::copy(out, sizes.begin() + 2);
    return sizes;
  }
  const c10::IValue* scales = named.constant("scale_factors");
  if (!out.empty() || !scales || !scales->isDoubleList()) return std::nullopt;
  const std::vector<double> factors = scales->toDoubleVector();
  if (factors.size() != sizes.size() - 2) return std::nullopt;
  for (size_t i = 0; i < factors.size(); ++i) {
    const std::optional<Dim> size = scaled(sizes[i + 2], factors[i]);
    if (!size) return std::nullopt;
    sizes[i + 2] = *size;
  }
  return sizes;
}

template <bool Shuffles>
Found shuffled(const SizedCall& call, const NamedSizes& named) {
  Dims sizes = call.tensors[0].sizes;
  const Dims by = named.ints(Shuffles ? "upscale_factor" : "downscale_factor");
  if (sizes.size() < 3 || by.size() != 1) return std::nullopt;
  Dim &channels = sizes[sizes.size() - 3], &height = sizes[sizes.size() - 2], &width = sizes.back();
  channels = Shuffles ? channels / (by[0] * by[0]) : channels * by[0] * by[0];
  height = Shuffles ? height * by[0] : height / by[0];
  width = Shuffles ? width * by[0] : width / by[0];
  return sizes;
}

// ---- indices ----

// TensorAdvancedIndexing.h: what indices give stands where they stood, or in front where others lie between them.
Found indexed(const SizedCall& call, const NamedSizes& named) {
  const CallValue* indices = named.find("indices");
  Dims from = call.tensors[0].sizes, given, sizes, rest;
  if (!indices || indices->uses.size() > from.size()) return std::nullopt;
  std::vector<size_t> places;
  for (size_t d = 0; d < indices->uses.size(); ++d) {
    const Use& use = indices->uses[d];
    if (use.tensor == kNone) continue;
    if (use.meta->dtype != c10::ScalarType::Long && use.meta->dtype != c10::ScalarType::Int) return std::nullopt;
    given = ir::broadcast(given, call.layout(use).sizes);
    places.push_back(d);
  }
  if (places.empty()) return std::nullopt;
  const bool is_one_run = places.back() - places[0] + 1 == places.size();
  for (size_t d = 0; d < from.size(); ++d) {
    if (d == places[0] && is_one_run) sizes.insert(sizes.end(), given.begin(), given.end());
    if (std::ranges::find(places, d) == places.end()) sizes.push_back(from[d]);
  }
  if (!is_one_run) sizes.insert(sizes.begin(), given.begin(), given.end());
  return sizes;
}

Found repeated(const SizedCall& call, const NamedSizes& named) {
  Dims sizes = call.tensors[0].sizes;
  const Dims times = named.ints("repeats"), dim = named.ints("dim");
  if (times.size() != 1) return std::nullopt;
  if (dim.empty()) {
    Dim count = times[0];
    for (const Dim size : sizes) count *= size;
    return Dims{count};
  }
  const int64_t at = dim[0].fixed() < 0 ? dim[0].fixed() + std::ssize(sizes) : dim[0].fixed();
  if (at < 0 || at >= std::ssize(sizes)) return std::nullopt;
  sizes[static_cast<size_t>(at)] *= times[0];
  return sizes;
}

// ---- others ----

Found distances(const SizedCall& call, const NamedSizes&) {
  if (call.tensors.size() != 2) return std::nullopt;
  const Dims &a = call.tensors[0].sizes, &b = call.tensors[1].sizes;
  if (a.size() < 2 || b.size() < 2) return std::nullopt;
  Dims sizes = ir::broadcast({a.data(), a.size() - 2}, {b.data(), b.size() - 2});
  sizes.insert(sizes.end(), {a[a.size() - 2], b[b.size() - 2]});
  return sizes;
}

// An equation that names all of its dims.
Found summed(const SizedCall& call, const NamedSizes& named) {
  const c10::IValue* text = named.constant("equation");
  std::string equation = text && text->isString() ? text->toStringRef() : "";
  std::erase(equation, ' ');
  const size_t arrow = equation.find("->");
  if (arrow == equation.npos || equation.find('.') != equation.npos) return std::nullopt;
  std::unordered_map<char, Dim> size_of;
  size_t operand = 0, dim = 0;
  for (const char letter : equation.substr(0, arrow)) {
    if (letter == ',') {
      ++operand, dim = 0;
      continue;
    }
    if (operand >= call.tensors.size() || dim >= call.tensors[operand].sizes.size()) return std::nullopt;
    const Dim size = call.tensors[operand].sizes[dim++];
    const auto [known, is_new] = size_of.try_emplace(letter, size);
    if (!is_new && known->second == 1) known->second = size;
  }
  Dims sizes;
  for (const char letter : equation.substr(arrow + 2)) {
    if (!size_of.contains(letter)) return std::nullopt;
    sizes.push_back(size_of[letter]);
  }
  return sizes;
}

// What is attended to has the columns of the values; the other result is one number for each row of scores.
Found attended(const SizedCall& call, const NamedSizes&) {
  if (call.tensors.size() < 3 || call.tensors[0].sizes.size() != 4 || call.result > 1) return std::nullopt;
  Dims sizes = call.tensors[0].sizes;
  if (call.result == 0) sizes.back() = call.tensors[2].sizes.back();
  if (call.result == 1) sizes.pop_back();
  return sizes;
}

// Of the input, the weights, and both states; the workspace has no formula.
Found recurrent(const SizedCall& call, const NamedSizes&) {
  if (call.tensors.size() < 4 || call.tensors[0].sizes.size() != 3 || call.result > 2) return std::nullopt;
  const Dims& state = call.tensors[call.tensors.size() - (call.result == 2 ? 1 : 2)].sizes;
  if (call.result > 0) return state;
  Dims sizes = call.tensors[0].sizes;
  sizes.back() = state.back();
  return sizes;
}

Found like(const SizedCall& call, const NamedSizes&) { return call.tensors[0].sizes; }

Found stepped(const SizedCall&, const NamedSizes& named) {
  const Dims steps = named.ints("steps");
  return steps.size() == 1 ? std::optional(steps) : std::nullopt;
}

Found one_hot(const SizedCall& call, const NamedSizes& named) {
  const Dims classes = named.ints("num_classes");
  if (classes.size() != 1) return std::nullopt;
  Dims sizes = call.tensors[0].sizes;
  sizes.push_back(classes[0]);
  return sizes;
}

struct Formula {
  Found (*sizes)(const SizedCall&, const NamedSizes&);
  bool takes_sizes;
};

const Formula* formula_of(std::string_view op) {
  static constexpr Formula kPad{padded, true}, kResample{resampled, true};
  static const std::unordered_map<std::string_view, Formula> all{
      {"aten::_scaled_dot_product_flash_attention_for_cpu", {attended, false}},
      {"aten::cdist", {distances, false}},
      {"aten::_cdist_forward", {distances, false}},
      {"aten::constant_pad_nd", kPad},
      {"aten::einsum", {summed, false}},
      {"aten::empty_like", {like, false}},
      {"aten::index.Tensor", {indexed, false}},
      {"aten::index_add", {like, false}},
      {"aten::index_copy", {like, false}},
      {"aten::index_put", {like, false}},
      {"aten::index_reduce", {like, false}},
      {"aten::linspace", {stepped, true}},
      {"aten::mkldnn_rnn_layer", {recurrent, false}},
      {"aten::one_hot", {one_hot, true}},
      {"aten::pad", kPad},
      {"aten::pixel_shuffle", {shuffled<true>, false}},
      {"aten::pixel_unshuffle", {shuffled<false>, false}},
      {"aten::reflection_pad1d", kPad},
      {"aten::reflection_pad2d", kPad},
      {"aten::reflection_pad3d", kPad},
      {"aten::repeat_interleave.self_int", {repeated, false}},
      {"aten::replication_pad1d", kPad},
      {"aten::replication_pad2d", kPad},
      {"aten::replication_pad3d", kPad},
      {"aten::scatter.src", {like, false}},
      {"aten::scatter.value", {like, false}},
      {"aten::scatter_add", {like, false}},
      {"aten::scatter_reduce.two", {like, false}},
  };
  if (op.starts_with("aten::upsample_") || op.starts_with("aten::_upsample_")) return &kResample;
  const auto found = all.find(op);
  return found == all.end() ? nullptr : &found->second;
}

}  // namespace

bool takes_sizes(std::string_view op) {
  const Formula* formula = formula_of(op);
  return formula && formula->takes_sizes;
}

std::optional<uint32_t> place_of(const Event& event, std::string_view name) {
  const auto& all = event.op->schema().arguments();
  for (uint32_t i = 0; i < all.size() && i < event.args.size(); ++i)
    if (all[i].name() == name) return i;
  return std::nullopt;
}

std::vector<Dim> ints_of(const CallValue& item) {
  if (item.kind != CallValue::Kind::Constant) return {};
  if (item.constant.isInt()) return {item.constant.toInt()};
  if (!item.constant.isIntList()) return {};
  const std::vector<int64_t> all = item.constant.toIntVector();
  return {all.begin(), all.end()};
}

std::optional<std::vector<Dim>> sizes_by_formula(const SizedCall& call) {
  const NamedSizes named(call);
  if (const Formula* formula = formula_of(call.event.name)) {
    const bool is_of_tensors = !call.tensors.empty() || formula->sizes == stepped;
    return is_of_tensors ? formula->sizes(call, named) : std::nullopt;
  }
  if (Found sizes = product_sizes(call)) return sizes;
  return windowed(call, named);
}

}  // namespace fastjit::capture
