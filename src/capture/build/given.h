#pragma once
// What operators whose C++ code calls others give to these for any size.
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "capture/record/trace.h"

namespace fastjit::capture {

/// A list of sizes that a composite gives to an operator which it calls.
struct Given {
  std::string_view op;
  std::vector<ir::Dim> sizes;
  uint32_t argument = 1;  // of that operator
};

inline constexpr std::string_view kAttention = "aten::scaled_dot_product_attention";
inline constexpr std::string_view kPlainAttention = "aten::_scaled_dot_product_attention_math";
inline constexpr std::string_view kInstanceNorm = "aten::instance_norm";
inline constexpr std::string_view kLstm = "aten::lstm.input";

/// Whether it has called that operator.
bool runs(const Trace& trace, uint32_t composite, std::string_view name);

/// Each in the order of the calls; what the composite asks of sizes becomes guards. Nothing: it may take another way,
/// or give other numbers, at other sizes. `in`: its tensors, in their order.
std::optional<std::vector<Given>> of_attention(const Trace& trace, uint32_t composite,
                                               const std::vector<ir::Layout>& in);
std::optional<std::vector<Given>> of_plain_attention(const Event& composite, const std::vector<ir::Layout>& in);
std::optional<std::vector<Given>> of_lstm(const Trace& trace, uint32_t composite);
std::optional<std::vector<Given>> of_instance_norm(const Event& composite, const std::vector<ir::Layout>& in);

}  // namespace fastjit::capture
