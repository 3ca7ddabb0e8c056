// Tensors that Python indexes with slices and ints: which operators these are depends on sizes.
#include <algorithm>

#include "capture/build/build.h"

namespace fastjit::capture {
namespace {

using ir::Dim;
using support::IndexItem;
using support::SizeOperand;
using Kind = IndexItem::Kind;

bool takes_dim(const IndexItem& item) { return item.kind == Kind::Slice || item.kind == Kind::Int; }

size_t named_dims(const std::vector<IndexItem>& items) {
  return static_cast<size_t>(std::ranges::count_if(items, takes_dim));
}

// Whether torch makes nothing of the slice: applySlice() in aten/src/ATen/TensorIndexing.h.
bool is_whole(const IndexItem& slice, Dim length, Dim start, Dim stop) {
  return slice.step.value == 1 && start == 0 && length <= stop;
}

}  // namespace

// Numbers of indices that are not known here are fixed, and so are the sizes of what is indexed.
void GraphBuilder::place_indices() {
  for (const InstructionUse<IndexUse>& use : trace_.index_uses) {
    if (use.whole && place_index(use)) continue;
    unknown_indices_.insert(use.told.tensor.tensor);
    for (const IndexItem& item : use.told.items)
      for (const SizeOperand& one : {item.start, item.stop, item.step}) drop_size(one);
  }
}

// Each item is an operator, but for slices of the whole. False: other operators ran.
bool GraphBuilder::place_index(const InstructionUse<IndexUse>& use) {
  const std::vector<IndexItem>& items = use.told.items;
  const std::vector<int64_t>& sizes = use.told.tensor.meta->sizes;
  const size_t named = named_dims(items);
  size_t next = 0, dim = 0;
  std::vector<Sliced> slices;
  const auto is_next = [&](const char* name) {
    return next < use.events.size() && trace_.events[use.events[next]].name == name;
  };
  const auto gives = [&](uint32_t arg, const SizeOperand& one) {
    const CallValue& item = trace_.events[use.events[next]].args[arg];
    if (item.kind != CallValue::Kind::Constant || !item.constant.isInt() || item.constant.toInt() != one.value)
      return item.kind == CallValue::Kind::None && !one.is_size();
    place_size(use.events[next], arg, 0, one);
    return true;
  };
  if (named > sizes.size()) return false;
  if (is_next("aten::lift_fresh")) ++next;  // x[i] = 1.0: what is stored is made a tensor before
  // A slice alone is an operator in any case: get_item() tells applySlice() so.
  const bool is_always_cut = items.size() == 1 && is_next("aten::slice.Tensor");
  for (const IndexItem& item : items) {
    if (item.kind == Kind::Rest) dim += sizes.size() - named;
    const bool is_slice = item.kind == Kind::Slice;
    const bool is_nothing = is_slice && is_whole(item, sizes[dim], item.start.value, item.stop.value);
    const bool is_cut = is_slice && (is_always_cut || !is_nothing);
    if (is_slice && !(is_nothing && is_cut)) slices.push_back({use.told.tensor.tensor, dim, item});
    if (is_cut) {
      if (!is_next("aten::slice.Tensor")) return false;
      if (!gives(2, item.start) || !gives(3, item.stop) || !gives(4, item.step)) return false;
      ++next;
    } else if (item.kind == Kind::Int) {
      if (!is_next("aten::select.int") || !gives(2, item.start)) return false;
      ++next;
    } else if (item.kind == Kind::NewDim) {
      if (!is_next("aten::unsqueeze")) return false;
      ++next;
    }
    dim += takes_dim(item);
  }
  if (is_next("aten::slice.Tensor") || is_next("aten::select.int")) return false;
  slices_.insert(slices_.end(), slices.begin(), slices.end());
  return true;
}

// Whether slices are of the whole decided which operators ran.
void GraphBuilder::settle_indices() {
  for (const uint32_t tensor : unknown_indices_) fix_sizes_of(tensor);
  for (const Sliced& one : slices_) {
    if (unknown_indices_.contains(one.tensor)) continue;
    const std::optional<ir::Layout> layout = layout_of(one.tensor);
    if (!layout) {
      fix_all_sizes();
      continue;
    }
    if (one.slice.step.is_size()) fix_number(static_cast<uint32_t>(one.slice.step.number));
    static_cast<void>(is_whole(one.slice, layout->sizes[one.dim], size_of(one.slice.start), size_of(one.slice.stop)));
  }
}

}  // namespace fastjit::capture
