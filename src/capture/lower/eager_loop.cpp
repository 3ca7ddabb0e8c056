#include "capture/lower/eager_loop.h"

#include <algorithm>

namespace fastjit::capture {
namespace {

// The kernels of plain arithmetic are built with vectors of this many bytes, whatever the CPU, and take two at a time.
constexpr int64_t kTwoVectors = 2 * 32;

struct Loop {
  ir::Dim size;
  std::vector<ir::Dim> strides;  // of each operand
};

// Positive: `outer` belongs inside `inner`. A stride of 0 says nothing.
int order(const Loop& inner, const Loop& outer) {
  for (size_t k = 0; k < inner.strides.size(); ++k) {
    const ir::Dim a = inner.strides[k], b = outer.strides[k];
    if (a == 0 || b == 0) continue;
    if (a != b) return a < b ? -1 : 1;
    if (inner.size > outer.size) return 1;
  }
  return 0;
}

// TensorIterator's dims, the innermost first, before it joins any.
std::vector<Loop> ordered_dims(const std::vector<ir::Layout>& operands, const Shape& sizes) {
  std::vector<Loop> dims;
  for (size_t back = 0; back < sizes.size(); ++back) {
    Loop dim{sizes[sizes.size() - 1 - back], {}};
    for (const ir::Layout& operand : operands) {
      const size_t rank = operand.sizes.size();
      const bool spread = back >= rank || operand.sizes[rank - 1 - back] != dim.size;
      dim.strides.push_back(spread ? ir::Dim(0) : operand.strides[rank - 1 - back]);
    }
    dims.push_back(std::move(dim));
  }
  for (size_t i = 1; i < dims.size(); ++i) {
    size_t outer = i;
    for (size_t inner = i; inner-- > 0;) {
      const int found = order(dims[inner], dims[outer]);
      if (found < 0) break;
      if (found == 0) continue;
      std::swap(dims[inner], dims[outer]);
      outer = inner;
    }
  }
  return dims;
}

bool joins(const Loop& inner, const Loop& outer) {
  if (inner.size == 1 || outer.size == 1) return true;
  for (size_t k = 0; k < inner.strides.size(); ++k)
    if (inner.strides[k] * inner.size != outer.strides[k]) return false;
  return true;
}

}  // namespace

bool in_scalar_loop(const Call& call, std::initializer_list<size_t> operands, ScalarType type) {
  std::vector<ir::Layout> layouts;
  for (size_t operand : operands) layouts.push_back(call.meta(operand).layout());
  const std::vector<Loop> dims = ordered_dims(layouts, call.result().layout().sizes);
  if (dims.empty()) return true;
  Loop row = dims[0];
  for (size_t i = 1; i < dims.size() && joins(row, dims[i]); ++i) {
    if (row.size == 1) row.strides = dims[i].strides;
    row.size *= dims[i].size;
  }
  if (row.size * static_cast<int64_t>(c10::elementSize(type)) < kTwoVectors) return true;
  const auto count = [&](int64_t stride) {
    return std::ranges::count_if(row.strides, [&](ir::Dim one) { return one == stride; });
  };
  const auto spread = count(0);
  return spread > 1 || spread + count(1) < static_cast<int64_t>(row.strides.size());
}

}  // namespace fastjit::capture
