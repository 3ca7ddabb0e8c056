#include "capture/build/given.h"

#include <algorithm>
#include <array>

#include "capture/build/result_sizes.h"

namespace fastjit::capture {
namespace {

using ir::Dim;
using Dims = std::vector<Dim>;

constexpr size_t kRank = 4;  // batches, heads, rows, columns

const CallValue* argument(const Event& event, std::string_view name) {
  const std::optional<uint32_t> place = place_of(event, name);
  return place ? &event.args[*place] : nullptr;
}

bool is_given(const CallValue* value) {
  if (!value || value->kind == CallValue::Kind::None) return false;
  if (value->kind == CallValue::Kind::Constant) return !value->constant.isNone();
  return value->uses.empty() || value->uses[0].tensor != kNone;
}

bool is_false(const CallValue* value) {
  return value && value->kind == CallValue::Kind::Constant && value->constant.isBool() && !value->constant.toBool();
}

// use_flash_attention_cpp() in aten/src/ATen/native/transformers/sdp_utils_cpp.cpp: what it asks of sizes and strides.
bool is_fusible(const std::vector<ir::Layout>& in) {
  const ir::Layout &query = in[0], &key = in[1], &value = in[2];
  bool fits = key.sizes[2] == value.sizes[2];
  for (const ir::Layout* other : {&key, &value})
    for (const size_t d : {0, 1, 3}) fits = query.sizes[d] == other->sizes[d] && fits;
  for (const ir::Layout* one : {&query, &key, &value}) fits = one->strides[3] == 1 && fits;
  if (in.size() == 3) return fits;
  const Dims& mask = in[3].sizes;
  const std::array<Dim, kRank> scores{query.sizes[0], query.sizes[1], query.sizes[2], key.sizes[2]};
  for (size_t back = 1; back <= std::min(mask.size(), kRank); ++back) {
    const Dim size = mask[mask.size() - back];
    fits = (size == scores[kRank - back] || size == 1) && fits;
  }
  return fits;
}

}  // namespace

bool runs(const Trace& trace, uint32_t composite, std::string_view name) {
  const uint32_t end = trace.events[composite].end;
  for (uint32_t child = composite + 1; child < end; child = trace.events[child].end)
    if (trace.events[child].name == name) return true;
  return false;
}

// scaled_dot_product_attention() in aten/src/ATen/native/transformers/attention.cpp. Dropout, and tensors of another
// rank than four, are never fused.
std::optional<std::vector<Given>> of_attention(const Trace& trace, uint32_t index, const std::vector<ir::Layout>& in) {
  const Event& composite = trace.events[index];
  if (in.size() < 3) return std::nullopt;
  const auto is_of_rank = [](const ir::Layout& one) { return one.sizes.size() == kRank; };
  const bool may_fuse = std::all_of(in.begin(), in.begin() + 3, is_of_rank);
  if (runs(trace, index, "aten::_scaled_dot_product_flash_attention_for_cpu"))
    return may_fuse && is_fusible(in) ? std::optional(std::vector<Given>()) : std::nullopt;
  const CallValue* dropout = argument(composite, "dropout_p");
  const bool drops = dropout && dropout->kind == CallValue::Kind::Constant && dropout->constant.isDouble() &&
                     dropout->constant.toDouble() > 0;
  return runs(trace, index, kPlainAttention) && (drops || !may_fuse) ? std::optional(std::vector<Given>())
                                                                     : std::nullopt;
}

// _scaled_dot_product_attention_math() beside it: a causal mask is made by the rows and columns of scores, and what
// they are multiplied with follows from the columns of queries.
std::optional<std::vector<Given>> of_plain_attention(const Event& composite, const std::vector<ir::Layout>& in) {
  if (in.size() < 3 || !is_false(argument(composite, "enable_gqa"))) return std::nullopt;
  const size_t ranks[] = {in[0].sizes.size(), in[1].sizes.size()};
  if (ranks[0] < 2 || ranks[1] < 2) return std::nullopt;
  if (!is_given(argument(composite, "scale"))) static_cast<void>(in[0].sizes.back().fixed());
  if (is_false(argument(composite, "is_causal"))) return std::vector<Given>();
  return std::vector<Given>{{"aten::ones", {in[0].sizes[ranks[0] - 2], in[1].sizes[ranks[1] - 2]}, 0}};
}

// lstm() in aten/src/ATen/native/RNN.cpp, where oneDNN computes whole layers: what lies between these takes all sizes.
std::optional<std::vector<Given>> of_lstm(const Trace& trace, uint32_t index) {
  constexpr auto kBetween =
      std::to_array<std::string_view>({"aten::cat", "aten::contiguous", "aten::cudnn_is_acceptable", "aten::dropout",
                                       "aten::mkldnn_rnn_layer", "aten::select.int", "aten::stack",
                                       "aten::transpose.int", "aten::transpose_", "aten::unbind.int", "aten::zeros"});
  bool is_by_layers = false;
  for (uint32_t child = index + 1; child < trace.events[index].end; child = trace.events[child].end) {
    const std::string_view name = trace.events[child].name;
    if (std::ranges::find(kBetween, name) == kBetween.end()) return std::nullopt;
    is_by_layers |= name == "aten::mkldnn_rnn_layer";
  }
  return is_by_layers ? std::optional(std::vector<Given>()) : std::nullopt;
}

// instance_norm() in aten/src/ATen/native/Normalization.cpp: batch normalisation of one image with the channels of all.
std::optional<std::vector<Given>> of_instance_norm(const Event& composite, const std::vector<ir::Layout>& in) {
  if (is_given(argument(composite, "running_mean")) || is_given(argument(composite, "running_var")))
    return std::nullopt;
  const Dims& sizes = in[0].sizes;
  if (sizes.size() < 3) return std::nullopt;
  std::vector<Given> given(in.size() - 1, {"aten::repeat", {sizes[0]}});
  Dims as_one{1, sizes[0] * sizes[1]};
  as_one.insert(as_one.end(), sizes.begin() + 2, sizes.end());
  given.push_back({"aten::view", std::move(as_one)});
  given.push_back({"aten::view", sizes});
  return given;
}

}  // namespace fastjit::capture
