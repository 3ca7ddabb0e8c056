// See data_sizes.h.
#include "capture/record/data_sizes.h"

#include <algorithm>
#include <bit>
#include <ranges>

#include "capture/record/effects.h"

namespace fastjit::capture {
namespace {

constexpr size_t kMostDims = 64;

DataDims all_of(const Use& use) {
  DataDims dims = 0;
  for (size_t d = 0; d < use.meta->sizes.size(); ++d) dims |= bit(d);
  return dims;
}

bool has_mask(const Event& event) {
  return event.facts.is(OpFlag::MaskDecides) && std::ranges::any_of(event.args[1].uses, [](const Use& use) {
           return use.tensor != kNone && (use.meta->dtype == at::kBool || use.meta->dtype == at::kByte);
         });
}

// x[:, mask]: what the mask selects is the dim in its place. Nothing: there are other indices, too.
std::optional<size_t> masked_dim(const Event& event) {
  const auto& indices = event.args[1].uses;
  const auto is_given = [](const Use& use) { return use.tensor != kNone; };
  if (std::ranges::count_if(indices, is_given) != 1) return std::nullopt;
  return static_cast<size_t>(std::ranges::find_if(indices, is_given) - indices.begin());
}

// Where the operator puts the size that it finds.
DataDims made(const Event& event, const Use& result) {
  if (!event.facts.is(OpFlag::FirstDim) || result.meta->sizes.empty()) return all_of(result);
  if (!event.facts.is(OpFlag::MaskDecides)) return bit(0);
  const std::optional<size_t> dim = masked_dim(event);
  return dim ? bit(*dim) : all_of(result);
}

// Dims of the operands at the place of each dim of the result, if the result has the shape that broadcasting gives.
std::optional<DataDims> broadcast(const Trace& trace, const Event& event, const Use& result) {
  const std::vector<int64_t>& sizes = result.meta->sizes;
  std::vector<int64_t> shape(sizes.size(), 1);
  DataDims dims = 0;
  for (const CallValue& item : event.args)
    for (const Use& use : item.uses) {
      if (use.tensor == kNone) continue;
      const std::vector<int64_t>& own = use.meta->sizes;
      if (own.size() > sizes.size()) return std::nullopt;
      const size_t shift = sizes.size() - own.size();
      for (size_t d = 0; d < own.size(); ++d) {
        if (own[d] != sizes[d + shift] && own[d] != 1) return std::nullopt;
        if (own[d] != 1) shape[d + shift] = own[d];
        if (trace.dims_of(use.tensor) & bit(d)) dims |= bit(d + shift);
      }
    }
  return shape == sizes ? std::optional(dims) : std::nullopt;
}

// A reduction over the dims that it is given.
std::optional<DataDims> reduced(const Trace& trace, const Event& event, const Use& result) {
  const auto& arguments = event.op->schema().arguments();
  const Use* self = event.args.empty() || event.args[0].uses.size() != 1 ? nullptr : &event.args[0].uses[0];
  if (!self || self->tensor == kNone) return std::nullopt;
  const auto rank = static_cast<int64_t>(self->meta->sizes.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() != "dim") continue;
    std::vector<int64_t> over;
    if (event.args[i].constant.isIntList()) over = event.args[i].constant.toIntVector();
    if (event.args[i].constant.isInt()) over = {event.args[i].constant.toInt()};
    for (int64_t& dim : over) dim += dim < 0 ? rank : 0;
    const bool keeps = static_cast<int64_t>(result.meta->sizes.size()) == rank;
    if (over.empty() || (!keeps && static_cast<int64_t>(result.meta->sizes.size() + over.size()) != rank))
      return std::nullopt;
    DataDims dims = 0;
    size_t place = 0;
    for (int64_t d = 0; d < rank; ++d) {
      const bool is_gone = std::ranges::find(over, d) != over.end();
      if (is_gone && keeps && result.meta->sizes[place] != 1) return std::nullopt;  // a sort along that dim
      if (!is_gone && (trace.dims_of(self->tensor) & bit(static_cast<size_t>(d)))) dims |= bit(place);
      if (!is_gone || keeps) ++place;
    }
    return dims;
  }
  return std::nullopt;
}

// Where memory lies so that its strides do not depend on how long it is.
bool lies_in_rows(const Use& use, DataDims dims) {
  return use.meta->sizes.size() == 1 || (dims == bit(0) && use.meta->strides == ir::row_major(use.meta->sizes));
}

// x[:n], where x is known to be longer.
std::optional<DataDims> sliced(const Trace& trace, const Event& event) {
  if (event.name != "aten::slice.Tensor" || event.args[0].uses.size() != 1) return std::nullopt;
  const Use& self = event.args[0].uses[0];
  const auto is_int = [&](size_t arg) { return event.args[arg].constant.isInt(); };
  const auto begins = [&] { return !is_int(2) || event.args[2].constant.toInt() == 0; };
  if (self.tensor == kNone || !is_int(1) || !begins() || !is_int(3) || !is_int(4)) return std::nullopt;
  const int64_t dim = event.args[1].constant.toInt(), stop = event.args[3].constant.toInt();
  const size_t at = static_cast<size_t>(dim < 0 ? dim + std::ssize(self.meta->sizes) : dim);
  const auto longer = trace.longer.find({self.tensor, at});
  const DataDims dims = trace.dims_of(self.tensor);
  if (longer == trace.longer.end() || stop < 0 || stop > longer->second || !lies_in_rows(self, dims))
    return std::nullopt;
  return dims & ~bit(at);
}

// x[i], x[:, i, j] with numbers that lie side by side: their sizes stand in their place.
std::optional<DataDims> indexed(const Trace& trace, const Event& event, const Use& result) {
  if (event.name != "aten::index.Tensor" || has_mask(event)) return std::nullopt;
  const Use& self = event.args[0].uses[0];
  const auto& indices = event.args[1].uses;
  std::vector<Use> given;
  size_t first = 0;
  for (size_t d = 0; d < indices.size(); ++d) {
    if (indices[d].tensor == kNone) continue;
    if (given.empty()) first = d;
    if (d != first + given.size()) return std::nullopt;
    given.push_back(indices[d]);
  }
  if (given.empty()) return std::nullopt;
  const size_t rank = given[0].meta->sizes.size(), left = self.meta->sizes.size() - given.size();
  if (result.meta->sizes.size() != left + rank) return std::nullopt;
  DataDims dims = 0;
  for (const Use& index : given) {
    if (index.meta->sizes.size() != rank) return std::nullopt;
    for (size_t d = 0; d < rank; ++d)
      if (trace.dims_of(index.tensor) & bit(d)) dims |= bit(first + d);
  }
  for (size_t d = 0; d < left; ++d) {
    const bool is_data = trace.dims_of(self.tensor) & bit(d < first ? d : d + given.size());
    if (is_data) dims |= bit(d < first ? d : d + rank);
  }
  return dims;
}

std::optional<size_t> dim_given(const Event& event, size_t arg, size_t rank) {
  if (event.args.size() <= arg || !event.args[arg].constant.isInt()) return std::nullopt;
  const int64_t dim = event.args[arg].constant.toInt(), wrapped = dim < 0 ? dim + static_cast<int64_t>(rank) : dim;
  const bool is_one = wrapped >= 0 && wrapped < static_cast<int64_t>(std::min(rank, kMostDims - 1));
  return is_one ? std::optional(static_cast<size_t>(wrapped)) : std::nullopt;
}

// Views of one dim: the others keep their order.
std::optional<DataDims> viewed(const Trace& trace, const Event& event, const Use& result) {
  if (event.args.empty() || event.args[0].uses.size() != 1 || event.args[0].uses[0].tensor == kNone)
    return std::nullopt;
  const Use& self = event.args[0].uses[0];
  const DataDims dims = trace.dims_of(self.tensor);
  const size_t rank = self.meta->sizes.size();
  if (event.name == "aten::slice.Tensor") return dims;
  const bool selects = event.name == "aten::select.int";
  if (!selects && event.name != "aten::unsqueeze") return std::nullopt;
  const auto dim = dim_given(event, 1, selects ? rank : rank + 1);
  if (!dim || result.meta->sizes.size() > kMostDims) return std::nullopt;
  const DataDims below = dims & (bit(*dim) - 1);
  return selects ? below | (dims >> 1 & ~(bit(*dim) - 1)) : below | (dims & ~(bit(*dim) - 1)) << 1;
}

std::optional<DataDims> joined(const Trace& trace, const Event& event, const Use& result) {
  if (event.name != "aten::cat") return std::nullopt;
  DataDims dims = 0;
  for (const Use& use : event.args[0].uses)
    if (use.meta->sizes.size() == result.meta->sizes.size())
      dims |= trace.dims_of(use.tensor);
    else
      return std::nullopt;
  return dims;
}

// By size: what is as long as an operand's dim of data is taken to be that one, what is as long as no operand's is.
DataDims alike(const Trace& trace, const Event& event, const Use& result) {
  std::vector<int64_t> of_data, others;
  for (const CallValue& item : event.args)
    for (const Use& use : item.uses)
      for (size_t d = 0; use.tensor != kNone && d < use.meta->sizes.size(); ++d)
        (trace.dims_of(use.tensor) & bit(d) ? of_data : others).push_back(use.meta->sizes[d]);
  // None or one is the size of many things.
  if (std::ranges::any_of(of_data, [](int64_t size) { return size <= 1; })) return all_of(result);
  DataDims dims = 0;
  for (size_t d = 0; d < result.meta->sizes.size(); ++d) {
    const int64_t size = result.meta->sizes[d];
    const bool is_data = std::ranges::find(of_data, size) != of_data.end();
    if (is_data || std::ranges::find(others, size) == others.end()) dims |= bit(d);
  }
  return dims;
}

// The call says how large its result is, as to_padded_tensor() may.
bool is_told_sizes(const Event& event, const Use& result) {
  const auto& arguments = event.op->schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].name() == "output_size" && event.args[i].constant.isIntList())
      return event.args[i].constant.toIntVector() == result.meta->sizes;
  return false;
}

bool is_of_formula(const Trace& trace, const Event& event) {
  return event.parent != kNone && is_backward(trace.events[event.parent]);
}

// What autograd's formula of an index puts the gradients into has the sizes of what was indexed; build/sizeless.h says
// where these may depend on data themselves. Where no rule is exact, any size may: a program of the way back cannot
// start again in eager.
DataDims of_formula(const Trace& trace, const Event& event, const Use& result) {
  const auto dims = [&](size_t arg) { return trace.dims_of(event.args[arg].uses[0].tensor); };
  if (event.name == "aten::new_zeros") return 0;
  if (event.name == "aten::mm") return (dims(0) & bit(0)) | (dims(1) & bit(1));
  if (event.name == "aten::t" && result.meta->sizes.size() == 2)
    return (dims(0) & bit(0)) << 1 | (dims(0) >> 1 & bit(0));
  if (event.name == "aten::sum.dim_IntList") return reduced(trace, event, result).value_or(all_of(result));
  DataDims like = 0;  // the gradient of an operand is as large as the operand
  for (const CallValue& item : event.args)
    for (const Use& use : item.uses)
      if (use.tensor != kNone && use.meta->sizes == result.meta->sizes) like |= trace.dims_of(use.tensor);
  return like ? like : all_of(result);
}

// The one dim whose size depends on data.
std::optional<size_t> only_data_dim(DataDims dims) {
  const auto dim = static_cast<size_t>(std::countr_zero(dims));
  return std::has_single_bit(dims) && dim < kMostDims - 1 ? std::optional(dim) : std::nullopt;
}

// The mask whose elements say how long the result is, or null.
const Use* counting_mask(const Trace& trace, const Event& event) {
  const bool selects = event.name == "aten::masked_select";
  if (!event.op || (!selects && (!has_mask(event) || !masked_dim(event)))) return nullptr;
  const Use& mask = event.args[1].uses[selects ? 0 : *masked_dim(event)];
  const bool is_spread = selects && mask.meta->sizes != event.args[0].uses[0].meta->sizes;
  return mask.version >= 0 && !is_spread && !trace.data_read.contains(mask.storage) ? &mask : nullptr;
}

// Python gave it a number of the caller's, or one that follows from sizes.
bool takes_numbers(const Trace& trace, uint32_t event) {
  const auto has = [&](const auto& uses) {
    for (const auto& use : std::views::reverse(uses)) {
      if (std::ranges::count(use.events, event)) return true;
      if (!use.events.empty() && use.events.back() < event) return false;
    }
    return false;
  };
  return has(trace.scalar_uses) || has(trace.size_uses);
}

// The mask: by what was compared for it just before, if that is all there is to it, since `y > 0` may stand there
// twice.
std::string text_of_mask(const Trace& trace, const Event& event, const Use& mask) {
  static constexpr std::string_view kComparisons[] = {
      "aten::gt", "aten::ge",    "aten::lt",       "aten::le",          "aten::eq",
      "aten::ne", "aten::isnan", "aten::isfinite", "aten::logical_not", "aten::bitwise_not"};
  const auto text_of = [](const Use& use) { return std::to_string(use.tensor) + "@" + std::to_string(use.version); };
  auto before = static_cast<uint32_t>(&event - trace.events.data());
  if (before-- == 0) return text_of(mask);
  while (trace.events[before].parent != kNone) before = trace.events[before].parent;
  const Event& made = trace.events[before];
  const std::span<const Use> results = flat_results(made);
  const bool is_it = results.size() == 1 && results[0].tensor == mask.tensor && results[0].version == mask.version;
  if (!is_it || std::ranges::find(kComparisons, base_name(made.name)) == std::end(kComparisons) ||
      takes_numbers(trace, before))
    return text_of(mask);
  std::string text(made.name);
  for (const CallValue& item : made.args) {
    const c10::IValue& number = item.constant;
    if (number.isInt()) text += " i" + std::to_string(number.toInt());
    if (number.isDouble()) text += " d" + std::to_string(std::bit_cast<uint64_t>(number.toDouble()));
    if (number.isBool()) text += number.toBool() ? " true" : " false";
    const bool is_read = number.isInt() || number.isDouble() || number.isBool() || item.uses.size() == 1;
    if (!is_read) return text_of(mask);
    for (const Use& use : item.uses) {
      if (use.tensor == kNone || use.number || use.version < 0) return text_of(mask);
      text += " " + text_of(use);
    }
  }
  return text;
}

// Its dims but those that depend on data have another length, and so have its numbers.
bool has_others(const Trace& trace, const CallValue& item, int64_t count) {
  if (item.constant.isInt() && item.constant.toInt() == count) return false;
  if (item.constant.isIntList() && std::ranges::count(item.constant.toIntVector(), count)) return false;
  return std::ranges::all_of(item.uses, [&](const Use& use) {
    if (use.tensor == kNone) return true;
    const DataDims dims = trace.dims_of(use.tensor);
    for (size_t d = 0; d < use.meta->sizes.size(); ++d)
      if ((use.meta->sizes[d] == count) != ((dims & bit(d)) != 0)) return false;
    return true;
  });
}

std::string sizes_but_first(const Use& use) {
  std::string text;
  for (size_t d = 1; d < use.meta->sizes.size(); ++d) text += " " + std::to_string(use.meta->sizes[d]);
  return text;
}

// `x[m][:n]` is as long as x[m] or n.
bool cuts(const Event& event, size_t dim) {
  return event.name == "aten::slice.Tensor" &&
         dim_given(event, 1, event.args[0].uses[0].meta->sizes.size()) == std::optional(dim);
}

}  // namespace

bool is_flattened(const Event& event) {
  constexpr std::string_view kAlways[] = {"aten::flatten.using_ints", "aten::ravel"};
  constexpr std::string_view kWhenTold[] = {"aten::view", "aten::reshape"};
  const auto is_one_of = [&](const auto& names) { return std::ranges::find(names, event.name) != std::end(names); };
  const bool is_told = is_one_of(kWhenTold) && event.args[1].constant.isIntList() &&
                       event.args[1].constant.toIntVector() == std::vector<int64_t>{-1};
  if (!is_told && !is_one_of(kAlways)) return false;
  const int64_t count = c10::multiply_integers(event.args[0].uses[0].meta->sizes);
  return event.results[0].uses[0].meta->sizes == std::vector{count};
}

void note_count(Trace& trace, const Event& event, const Use& result) {
  const auto dim = only_data_dim(trace.dims_of(result.tensor));
  if (!event.op || !dim) return;
  const int64_t count = result.meta->sizes[*dim];
  const auto count_by = [&](std::string what) {
    const auto first = trace.counted_by.try_emplace(std::move(what), result.tensor).first;
    trace.counted_as.emplace(result.tensor, first->second);
  };
  if (const Use* mask = counting_mask(trace, event)) return count_by(text_of_mask(trace, event, *mask));
  const bool joins = is_flattened(event) && event.args[0].uses[0].meta->sizes.size() > 1;
  const uint32_t whole = joins ? event.args[0].uses[0].tensor : kNone;
  if (const auto rows = trace.counted_as.find(whole); rows != trace.counted_as.end())
    return count_by("all of " + std::to_string(rows->second) + sizes_but_first(event.args[0].uses[0]));
  const CallValue made{CallValue::Kind::Tensor, {result}, {}};
  std::optional<uint32_t> as;
  for (const CallValue& item : event.args) {
    if (!has_others(trace, item, count)) return;
    for (const Use& use : item.uses) {
      if (use.tensor == kNone || !trace.dims_of(use.tensor)) continue;
      const auto known = trace.counted_as.find(use.tensor);
      if (known == trace.counted_as.end() || as.value_or(known->second) != known->second) return;
      if (cuts(event, *only_data_dim(trace.dims_of(use.tensor)))) return;
      as = known->second;
    }
  }
  if (as && has_others(trace, made, count)) trace.counted_as.emplace(result.tensor, *as);
}

bool have_same_sizes(const Trace& trace, const at::Tensor& a, const at::Tensor& b) {
  const uint32_t one = trace.find(a.unsafeGetTensorImpl()), other = trace.find(b.unsafeGetTensorImpl());
  if (one == kNone || other == kNone || a.is_nested() || b.is_nested() || a.sizes() != b.sizes()) return false;
  const auto found = trace.counted_as.find(one), same = trace.counted_as.find(other);
  return trace.dims_of(one) && trace.dims_of(one) == trace.dims_of(other) && found != trace.counted_as.end() &&
         same != trace.counted_as.end() && found->second == same->second;
}

DataDims bit(size_t dim) { return DataDims{1} << std::min(dim, kMostDims - 1); }

bool is_told_classes(const Event& event) {
  if (event.name != "aten::one_hot" || event.args.size() < 2) return false;
  const c10::IValue& classes = event.args[1].constant;
  return classes.isInt() && classes.toInt() > 0;
}

bool makes_data_sizes(const Event& event) {
  if (!event.op) return false;
  const bool by_tag = event.facts.is(OpFlag::SizedByData) && !event.facts.reads();
  return by_tag || has_mask(event) || event.facts.effect == Effect::DataSized;
}

std::vector<DataDims> data_dims(const Trace& trace, uint32_t index, bool makes) {
  const Event& event = trace.events[index];
  const std::span<const Use> results = flat_results(event);
  std::vector<DataDims> out(results.size(), 0);
  bool reads = false;
  for (const CallValue& item : event.args)
    for (const Use& use : item.uses) reads |= use.tensor != kNone && trace.dims_of(use.tensor);
  if (!makes && !reads) return out;
  for (size_t i = 0; i < results.size(); ++i) {
    const Use& use = results[i];
    if (use.tensor == kNone || is_argument(event, use.tensor)) continue;
    if (makes) {
      out[i] = makes_data_sizes(event) ? made(event, use) : all_of(use);
      continue;
    }
    if (is_of_formula(trace, event)) {
      out[i] = of_formula(trace, event, use);
      continue;
    }
    if (is_told_sizes(event, use)) continue;
    auto kept = sliced(trace, event);
    if (!kept) kept = viewed(trace, event, use);
    if (!kept) kept = joined(trace, event, use);
    if (!kept) kept = indexed(trace, event, use);
    if (!kept) kept = broadcast(trace, event, use);
    if (!kept) kept = reduced(trace, event, use);
    out[i] = kept ? *kept : alike(trace, event, use);
  }
  return out;
}

}  // namespace fastjit::capture
