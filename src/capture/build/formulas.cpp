#include "capture/build/formulas.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "capture/ops/torch_release.h"

namespace fastjit::capture {
namespace {

constexpr std::array kFormulas{
#define FORMULA(name) std::string_view(#name),
#define FORMULA_BRANCH_IF(release, name, operator)
#include "capture/ops/formulas.def"
#undef FORMULA
#undef FORMULA_BRANCH_IF
};
static_assert(std::ranges::adjacent_find(kFormulas, std::ranges::greater_equal()) == kFormulas.end(),
              "sorted, each once");

struct Branch {
  bool is_of_release;
  std::string_view formula, op;
};
constexpr std::array kBranches{
#define FORMULA(name)
#define FORMULA_BRANCH_IF(release, name, operator) Branch{release, #name, operator},
#include "capture/ops/formulas.def"
#undef FORMULA
#undef FORMULA_BRANCH_IF
};

bool is_known_branch(std::string_view formula, const Trace& trace, uint32_t node) {
  return std::ranges::all_of(kBranches, [&](const Branch& branch) {
    if (!branch.is_of_release || branch.formula != formula) return true;
    // What unpacks saved tensors, and what adds to gradients that came from elsewhere.
    constexpr auto kBeside = std::to_array<std::string_view>({"aten::detach", "aten::add.Tensor", "aten::add_.Tensor"});
    for (uint32_t i = node + 1; i < trace.events[node].end; ++i) {
      const Event& event = trace.events[i];
      if (event.parent == node && event.name != branch.op && std::ranges::find(kBeside, event.name) == kBeside.end())
        return false;
    }
    return true;
  });
}

}  // namespace

bool is_known_formula(const Trace& trace, uint32_t node) {
  std::string_view name = trace.events[node].name;
  name.remove_prefix(name.rfind(' ') + 1);
  constexpr std::array<std::string_view, 4> kNodes{"torch::autograd::AccumulateGrad", "torch::autograd::CopyBackwards",
                                                   "torch::autograd::CopySlices", "torch::autograd::GraphRoot"};
  if (std::ranges::find(kNodes, name) != kNodes.end()) return true;
  const size_t end = name.find_last_not_of("0123456789");
  if (end == std::string_view::npos || end + 1 == name.size()) return false;  // the class of an autograd.Function
  const std::string_view number = name.substr(end + 1);
  name = name.substr(0, end + 1);
  constexpr std::string_view kBackward = "Backward";
  if (!name.ends_with(kBackward)) return false;
  name.remove_suffix(kBackward.size());
  return is_known_branch(name, trace, node) &&
         (std::ranges::binary_search(kFormulas, name) ||
          std::ranges::binary_search(kFormulas, std::string(name) + std::string(number)));
}

}  // namespace fastjit::capture
