#include "dispatch/run/compact.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

namespace fastjit::dispatch {
namespace {

constexpr int64_t kMost = 1 << 20;  // elements of a mask; torch's threads share what is larger

/// Memory of this thread's own, that grows and is not filled.
template <class T>
class Buffer {
 public:
  T* take(int64_t count) {
    if (count > size_) memory_.reset(new T[static_cast<size_t>(count)]), size_ = count;
    return memory_.get();
  }

 private:
  std::unique_ptr<T[]> memory_;
  int64_t size_ = 0;
};

/// Where memory holds something else than zero, in order. `out` has place for all and 8 more.
int64_t scan(const uint8_t* bytes, int64_t count, uint32_t* out) {
  constexpr int64_t kWord = 8, kBlock = 4 * kWord;
  int64_t found = 0, at = 0;
  const auto take = [&](int64_t end) {  // no branch: what is false is stored over
    for (; at < end; ++at) {
      out[found] = static_cast<uint32_t>(at);
      found += bytes[at] != 0;
    }
  };
  while (at + kBlock <= count) {
    uint64_t words[4];
    std::memcpy(words, bytes + at, sizeof words);
    const int64_t end = at + kBlock;
    if (words[0] | words[1] | words[2] | words[3])
      for (const uint64_t word : words) word ? take(at + kWord) : void(at += kWord);
    at = end;
  }
  take(count);
  return found;
}

/// The true elements of a mask: their indices in row-major order.
struct Found {
  const uint32_t* at;
  int64_t count;
};

/// Of columns: by row, and within a row by column (a counting sort, which keeps the order of columns).
Found by_rows(Found columns, uint32_t rows, uint32_t width) {
  thread_local Buffer<uint32_t> begins, sorted;
  uint32_t* const begin = begins.take(int64_t{rows} + 1);
  uint32_t* const out = sorted.take(columns.count);
  std::fill_n(begin, rows + 1, 0);
  for (int64_t i = 0; i < columns.count; ++i) ++begin[columns.at[i] % rows + 1];
  for (uint32_t row = 0; row < rows; ++row) begin[row + 1] += begin[row];
  for (int64_t i = 0; i < columns.count; ++i) {
    const uint32_t column = columns.at[i] / rows, row = columns.at[i] - column * rows;
    out[begin[row]++] = row * width + column;
  }
  return {out, columns.count};
}

std::optional<Found> find(const at::Tensor& mask) {
  const int64_t count = mask.numel();
  if (mask.scalar_type() != at::kBool || !mask.device().is_cpu() || mask.layout() != at::kStrided || mask.dim() < 1 ||
      count > kMost || mask.is_neg())
    return std::nullopt;
  const bool in_columns = mask.dim() == 2 && mask.stride(0) == 1 && mask.stride(1) == mask.size(0);
  if (!mask.is_contiguous() && !in_columns) return std::nullopt;
  thread_local Buffer<uint32_t> places;
  uint32_t* const out = places.take(count + 8);
  const Found found{out, scan(static_cast<const uint8_t*>(mask.const_data_ptr()), count, out)};
  if (mask.is_contiguous() || found.count == 0) return found;
  return by_rows(found, static_cast<uint32_t>(mask.size(0)), static_cast<uint32_t>(mask.size(1)));
}

at::Tensor nonzero(const at::Tensor& mask, Found found) {
  const int64_t rank = mask.dim();
  at::Tensor out = at::detail::empty_strided_cpu({found.count, rank}, {1, found.count}, at::kLong);
  auto* const data = static_cast<int64_t*>(out.mutable_data_ptr());
  if (rank == 1) std::copy_n(found.at, found.count, data);
  if (rank < 2) return out;
  const auto width = static_cast<uint32_t>(mask.size(rank - 1));
  for (int64_t i = 0; i < found.count; ++i) {
    uint32_t left = found.at[i];
    int64_t* place = data + (rank - 1) * found.count + i;
    for (int64_t d = rank - 1; d > 0; --d, place -= found.count) {
      const uint32_t size = d == rank - 1 ? width : static_cast<uint32_t>(mask.size(d)), above = left / size;
      *place = left - above * size;
      left = above;
    }
    *place = left;
  }
  return out;
}

template <class T>
void gather(const at::Tensor& self, Found found, void* to) {
  const auto* const from = static_cast<const T*>(self.const_data_ptr());
  auto* const out = static_cast<T*>(to);
  if (self.is_contiguous()) {
    for (int64_t i = 0; i < found.count; ++i) out[i] = from[found.at[i]];
    return;
  }
  const auto width = static_cast<uint32_t>(self.size(1));
  const int64_t down = self.stride(0), along = self.stride(1);
  for (int64_t i = 0; i < found.count; ++i) {
    const uint32_t row = found.at[i] / width;
    out[i] = from[row * down + (found.at[i] - row * width) * along];
  }
}

bool wants_gradient(const at::Tensor& tensor) { return at::GradMode::is_enabled() && tensor.requires_grad(); }

/// self[mask], where the mask has the first dims of `self`, or all; undefined: torch does it.
at::Tensor selected(const at::Tensor& self, const at::Tensor& mask) {
  const bool is_plain = !wants_gradient(self) && self.device().is_cpu() && self.layout() == at::kStrided &&
                        !self.is_conj() && !self.is_neg();
  if (!is_plain || mask.dim() > self.dim() || mask.sizes() != self.sizes().slice(0, static_cast<size_t>(mask.dim())))
    return {};
  const bool is_whole = mask.dim() == self.dim();
  if (!self.is_contiguous() && !(is_whole && self.dim() == 2)) return {};
  const std::optional<Found> found = find(mask);
  if (!found) return {};
  std::vector<int64_t> sizes{found->count};
  for (int64_t d = mask.dim(); d < self.dim(); ++d) sizes.push_back(self.size(d));
  at::Tensor out = at::detail::empty_cpu(sizes, self.scalar_type());
  if (out.numel() == 0) return out;
  void* const to = out.mutable_data_ptr();
  const auto element = static_cast<int64_t>(self.element_size());
  if (is_whole && element == 1) return gather<uint8_t>(self, *found, to), out;
  if (is_whole && element == 2) return gather<uint16_t>(self, *found, to), out;
  if (is_whole && element == 4) return gather<uint32_t>(self, *found, to), out;
  if (is_whole && element == 8) return gather<uint64_t>(self, *found, to), out;
  if (!self.is_contiguous()) return {};
  const int64_t row = element * (out.numel() / found->count);
  const auto* const from = static_cast<const char*>(self.const_data_ptr());
  for (int64_t i = 0; i < found->count; ++i)
    std::memcpy(static_cast<char*>(to) + i * row, from + found->at[i] * row, static_cast<size_t>(row));
  return out;
}

}  // namespace

bool compacted(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  static const c10::OperatorHandle nonzeros = c10::Dispatcher::singleton().findSchemaOrThrow("aten::nonzero", "");
  static const c10::OperatorHandle index = c10::Dispatcher::singleton().findSchemaOrThrow("aten::index", "Tensor");
  at::Tensor out;
  if (op == nonzeros) {
    const at::Tensor& mask = stack[0].toTensor();
    if (const std::optional<Found> found = find(mask)) out = nonzero(mask, *found);
  } else if (op == index) {
    const auto& indices = stack[1].toListRef();
    if (indices.size() == 1 && indices[0].isTensor() && indices[0].toTensor().defined() &&
        indices[0].toTensor().scalar_type() == at::kBool)
      out = selected(stack[0].toTensor(), indices[0].toTensor());
  }
  if (!out.defined()) return false;
  stack.clear();
  stack.emplace_back(std::move(out));
  return true;
}

}  // namespace fastjit::dispatch
