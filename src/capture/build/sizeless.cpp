#include "capture/build/sizeless.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_set>

#include "support/work.h"

namespace fastjit::capture {
namespace {

// Nodes of autograd's graph whose formulas were read: sizes are in them only as those of what comes out, and where
// operands of other sizes were broadcast.
constexpr auto kFormulas = std::to_array<std::string_view>({
    "AddBackward0",       "AddmmBackward0",
    "DivBackward0",       "EluBackward0",
    "GeluBackward0",      "HardswishBackward0",
    "HuberLossBackward0", "IndexBackward0",
    "LeakyReluBackward0", "LogSoftmaxBackward0",
    "MmBackward0",        "MseLossBackward0",
    "MulBackward0",       "NativeLayerNormBackward0",
    "NegBackward0",       "NllLossBackward0",
    "ReluBackward0",      "SigmoidBackward0",
    "SiluBackward0",      "SmoothL1LossBackward0",
    "SoftmaxBackward0",   "SubBackward0",
    "TBackward0",         "TanhBackward0",
});
static_assert(std::ranges::is_sorted(kFormulas));

// Operators whose lists of ints are dims.
constexpr auto kTakeDims = std::to_array<std::string_view>({
    "aten::permute",
    "aten::sum.dim_IntList",
});

bool is_sized(const Trace& trace, const Event& event) {
  const auto has = [&](const std::vector<CallValue>& items) {
    return std::ranges::any_of(items, [&](const CallValue& item) {
      return std::ranges::any_of(item.uses,
                                 [&](const Use& use) { return use.tensor != kNone && trace.made_dims_of(use.tensor); });
    });
  };
  return has(event.args) || has(event.results);
}

// The sizes that depend on data, and how many elements such tensors have, in the recorded call without its way back.
std::unordered_set<int64_t> sizes_of_data(const Trace& trace) {
  std::unordered_set<int64_t> out;
  const auto add = [&](const Use& use) {
    const uint64_t dims = use.tensor == kNone ? 0 : trace.made_dims_of(use.tensor);
    for (size_t d = 0; d < use.meta->sizes.size(); ++d)
      if (dims >> d & 1) out.insert(use.meta->sizes[d]);
    if (dims) out.insert(c10::multiply_integers(use.meta->sizes));
  };
  for (uint32_t i = 0; i < trace.events.size(); i = is_backward(trace.events[i]) ? trace.events[i].end : i + 1)
    if (!is_backward(trace.events[i])) std::ranges::for_each(flat_results(trace.events[i]), add);
  return out;
}

bool takes_one_of(const std::unordered_set<int64_t>& sizes, const Event& event) {
  if (std::ranges::find(kTakeDims, event.name) != kTakeDims.end()) return false;
  return std::ranges::any_of(event.args, [&](const CallValue& item) {
    if (item.kind != CallValue::Kind::Constant || !item.constant.isIntList()) return false;
    const std::vector<int64_t> list = item.constant.toIntVector();
    return std::ranges::any_of(list, [&](int64_t size) { return sizes.contains(size); });
  });
}

bool was_read(std::string_view node) {
  const size_t colon = node.rfind(": ");
  return std::ranges::binary_search(kFormulas, colon == std::string_view::npos ? node : node.substr(colon + 2));
}

}  // namespace

bool goes_back_without_sizes(const Trace& trace, const std::vector<Use>& outputs) {
  const auto has_sizes = [&](uint32_t result) { return trace.made_dims_of(outputs[result].tensor) != 0; };
  if (trace.derivative && std::ranges::any_of(trace.derivative->results, has_sizes)) return false;
  const std::unordered_set<int64_t> sizes = sizes_of_data(trace);
  for (uint32_t i = 0; i < trace.events.size(); ++i) {
    const Event& node = trace.events[i];
    if (!is_backward(node)) continue;
    support::count_work(node.end - i);
    for (uint32_t child = i + 1, next; child < node.end; child = next) {
      const Event& event = trace.events[child];
      next = event.op ? std::max(event.end, child + 1) : child + 1;
      if (!event.op) continue;
      if (takes_one_of(sizes, event) || (is_sized(trace, event) && !was_read(node.name))) return false;
    }
  }
  return true;
}

}  // namespace fastjit::capture
