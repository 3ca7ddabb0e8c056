// Calls of torch's that find positions in a tensor: what is known of their results as indices.
#include <algorithm>

#include "capture/build/build.h"
#include "capture/build/named.h"

namespace fastjit::capture {

// Positions in a tensor, in memory that is this result's and that no call writes.
void GraphBuilder::note_picked(const Action& step, const Use& use, ir::NodeId result) {
  constexpr std::string_view kPick[] = {
      // the last result says where along a dim of the operand elements stand
      "aten::argmax",        "aten::argmin",   "aten::argsort", "aten::argsort.stable", "aten::cummax",
      "aten::cummin",        "aten::kthvalue", "aten::max.dim", "aten::median.dim",     "aten::min.dim",
      "aten::nanmedian.dim", "aten::mode",     "aten::sort",    "aten::sort.stable",    "aten::topk"};
  const Event& event = trace_.events[step.event];
  const auto is_one_of = [&](const auto& names) { return std::ranges::find(names, event.name) != std::end(names); };
  if (graph_[result].dtype != ir::DType::I64 || graph_[result].op != ir::Op::Result) return;
  const ir::ExternAttr& call = graph_.externs[graph_[graph_[result].in[0]].attr];
  if (analysis_.pinned[use.storage] || call.kind != ir::ExternKind::Op || !step.writes.empty() || call.operands.empty())
    return;
  const std::vector<ir::Dim> sizes = layouts_of(event)[0].sizes;
  if (event.name == "aten::nonzero" && !sizes.empty()) {
    picked_.emplace(result, sizes);
  } else if (event.name == "aten::index.Tensor" || event.name == "aten::masked_select") {
    if (const auto bound = index_bound(graph_, picked_, call.operands[0])) picked_.emplace(result, std::vector{*bound});
  } else if (is_one_of(kPick) && graph_[result].attr + 1 == call.outputs) {
    const c10::IValue* dim = Named(event).constant("dim");
    if (!dim || !dim->isInt() || sizes.empty()) return;
    const int64_t at = dim->toInt() + (dim->toInt() < 0 ? std::ssize(sizes) : 0);
    picked_.emplace(result, std::vector{sizes[static_cast<size_t>(at)]});
  }
}

}  // namespace fastjit::capture
