#include "ir/strided.h"

#include <algorithm>
#include <vector>

namespace fastjit::ir {

namespace {

/// Of what is more here, another call may have one: it is then as any other number.
bool is_one(Dim size) { return size.hint() == 1 && size == 1; }

/// Dims of more than one element, each of which steps over all behind it. Nothing: some do not.
std::optional<std::vector<size_t>> nested_dims(const Layout& tensor) {
  std::vector<size_t> dims;
  for (size_t d = 0; d < tensor.sizes.size(); ++d)
    if (!is_one(tensor.sizes[d])) dims.push_back(d);
  std::ranges::stable_sort(dims, {}, [&](size_t d) { return tensor.strides[d].hint(); });
  Dim reach = 1;
  for (const size_t d : dims) {
    if (tensor.strides[d] < reach) return std::nullopt;
    reach = tensor.strides[d] * tensor.sizes[d];
  }
  std::ranges::reverse(dims);
  return dims;
}

}  // namespace

std::optional<IndexMap> strided_map(const Layout& tensor, std::span<const Dim> sizes, std::span<const Dim> strides,
                                    Dim offset) {
  if (tensor.numel() < 1 || offset < 0) return std::nullopt;
  std::optional<std::vector<size_t>> dims = nested_dims(tensor);
  if (!dims) return std::nullopt;
  IndexMap map;
  map.dims.resize(tensor.sizes.size());
  for (const size_t d : *dims) {
    map.dims[d].offset = offset / tensor.strides[d];
    offset -= map.dims[d].offset * tensor.strides[d];
    if (map.dims[d].offset >= tensor.sizes[d]) return std::nullopt;
  }
  if (offset != 0) return std::nullopt;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (is_one(sizes[i])) continue;
    if (sizes[i] < 1 || strides[i] < 1) return std::nullopt;
    const auto along = [&](size_t d) {
      return tensor.strides[d].hint() <= strides[i].hint() && strides[i] % tensor.strides[d] == 0;
    };
    const auto found = std::ranges::find_if(*dims, along);
    if (found == dims->end()) return std::nullopt;
    Affine& row = map.dims[*found];
    row.terms = {{static_cast<uint8_t>(i), strides[i] / tensor.strides[*found]}};
    if (row.offset + row.terms[0].second * (sizes[i] - 1) >= tensor.sizes[*found]) return std::nullopt;
    dims->erase(found);
  }
  return map;
}

}  // namespace fastjit::ir
