#include "capture/lower/eager_loop.h"

#include <algorithm>

namespace fastjit::capture {
namespace {

// The kernels of plain arithmetic are built with vectors of this many bytes, whatever the CPU, and take two at a time.
constexpr int64_t kTwoVectors = 2 * 32;

struct Dim {
  int64_t size;
  std::vector<int64_t> strides;  // of each operand
};

// Positive: `outer` belongs inside `inner`. A stride of 0 says nothing.
int64_t order(const Dim& inner, const Dim& outer) {
  for (size_t k = 0; k < inner.strides.size(); ++k) {
    const int64_t a = inner.strides[k], b = outer.strides[k];
    if (a == 0 || b == 0) continue;
    if (a != b) return a - b;
    if (inner.size > outer.size) return 1;
  }
  return 0;
}

// TensorIterator's dims, the innermost first, before it joins any.
std::vector<Dim> ordered_dims(const std::vector<const TensorMeta*>& operands, const std::vector<int64_t>& sizes) {
  std::vector<Dim> dims;
  for (size_t back = 0; back < sizes.size(); ++back) {
    Dim dim{sizes[sizes.size() - 1 - back], {}};
    for (const TensorMeta* operand : operands) {
      const size_t rank = operand->sizes.size();
      const bool spread = back >= rank || operand->sizes[rank - 1 - back] != dim.size;
      dim.strides.push_back(spread ? 0 : operand->strides[rank - 1 - back]);
    }
    dims.push_back(std::move(dim));
  }
  for (size_t i = 1; i < dims.size(); ++i) {
    size_t outer = i;
    for (size_t inner = i; inner-- > 0;) {
      const int64_t found = order(dims[inner], dims[outer]);
      if (found < 0) break;
      if (found == 0) continue;
      std::swap(dims[inner], dims[outer]);
      outer = inner;
    }
  }
  return dims;
}

bool joins(const Dim& inner, const Dim& outer) {
  if (inner.size == 1 || outer.size == 1) return true;
  for (size_t k = 0; k < inner.strides.size(); ++k)
    if (inner.strides[k] * inner.size != outer.strides[k]) return false;
  return true;
}

}  // namespace

bool in_scalar_loop(const Call& call, std::initializer_list<size_t> operands, ScalarType type) {
  std::vector<const TensorMeta*> metas;
  for (size_t operand : operands) metas.push_back(&call.meta(operand));
  const std::vector<Dim> dims = ordered_dims(metas, call.result().sizes);
  if (dims.empty()) return true;
  Dim row = dims[0];
  for (size_t i = 1; i < dims.size() && joins(row, dims[i]); ++i) {
    if (row.size == 1) row.strides = dims[i].strides;
    row.size *= dims[i].size;
  }
  if (row.size * static_cast<int64_t>(c10::elementSize(type)) < kTwoVectors) return true;
  const auto spread = std::ranges::count(row.strides, 0);
  return spread > 1 || spread + std::ranges::count(row.strides, 1) < static_cast<int64_t>(row.strides.size());
}

}  // namespace fastjit::capture
