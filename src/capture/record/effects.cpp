#include "capture/record/effects.h"

namespace fastjit::capture {
namespace {

// Normalisation in training, which computes them from its input.
bool writes_statistics(const Event& event) {
  if (!event.facts.is(OpFlag::WritesStatistics)) return false;
  const auto& arguments = event.op->schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].name() == "training" || arguments[i].name() == "use_input_stats")
      return !event.args[i].constant.isBool() || event.args[i].constant.toBool();
  return true;
}

bool is_statistics(const c10::Argument& argument) {
  return argument.name() == "running_mean" || argument.name() == "running_var";
}

}  // namespace

std::vector<size_t> written_arguments(const Event& event) {
  std::vector<size_t> written;
  const bool statistics = writes_statistics(event);
  const auto& arguments = event.op->schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    if ((alias && alias->isWrite()) || (statistics && is_statistics(arguments[i]))) written.push_back(i);
  }
  return written;
}

std::string functional_name(std::string_view name) {
  const std::string_view base = base_name(name);
  const std::string overload(name.substr(base.size()));
  constexpr std::string_view kDunder = "aten::__i";
  if (base.starts_with(kDunder) && base.ends_with("__"))
    return "aten::__" + std::string(base.substr(kDunder.size())) + overload;
  if (!base.ends_with('_') || base.ends_with("__")) return {};
  return std::string(base.substr(0, base.size() - 1)) + overload;
}

std::vector<std::string> forms_without_out(std::string_view name) {
  const std::string_view base = base_name(name);
  if (name.substr(base.size()) != ".out") return {};
  return {std::string(base), std::string(base) + ".Tensor"};
}

}  // namespace fastjit::capture
