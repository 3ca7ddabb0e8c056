#include "capture/ops/aten.h"

#include <algorithm>
#include <array>

namespace fastjit::capture {
namespace {

namespace table {

using enum Effect;
using enum OpFlag;
using enum ir::Product;

constexpr OpRow row(std::string_view name, OpFacts facts, std::string_view text) {
  const bool all = name.ends_with(".*");
  return {all ? name.substr(0, name.size() - 2) : name, all, facts, text};
}

constexpr std::array kNames{
#define ATEN(name, facts) std::string_view(name),
#include "capture/ops/aten.def"
#undef ATEN
};
static_assert(std::ranges::adjacent_find(kNames, std::ranges::greater_equal()) == kNames.end(), "sorted, each once");

constexpr std::array kRows{
#define ATEN(name, facts) row(name, facts, #facts),
#include "capture/ops/aten.def"
#undef ATEN
};
static_assert(std::ranges::none_of(kRows, [](const OpRow& row) { return row.all && row.facts.is(Enter); }),
              "schemas.def has single overloads");

}  // namespace table

constexpr std::string_view kNamespace = "aten::";

template <class Visit>
void for_each_row(std::string_view name, Visit visit) {
  const std::string_view base = base_name(name);
  for (const OpRow& row : std::ranges::equal_range(table::kRows, base, {}, &OpRow::op))
    if (row.all || name == base) visit(row);
  if (name == base) return;
  for (const OpRow& row : std::ranges::equal_range(table::kRows, name, {}, &OpRow::op)) visit(row);
}

}  // namespace

OpFacts facts_of(const c10::OperatorHandle& op) {
  const std::string name = full_name(op.operator_name());
  OpFacts facts;
  for_each_row(name, [&](const OpRow& row) { facts = facts | row.facts; });
  const auto clear = [&](OpFlag flag) { facts.flags &= ~static_cast<uint32_t>(flag); };
  if (facts.is(OpFlag::Enter) || op.schema().is_mutable()) clear(OpFlag::Opaque);  // its parts, or its writes, are seen
  const bool foreign = !name.starts_with(kNamespace);
  if (foreign) facts = facts | OpFlag::Foreign;
  if (name.starts_with("aten::_foreach_")) facts = facts | OpFlag::Foreach;
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) facts = facts | OpFlag::Composite;
  const bool draws = op.hasTag(at::Tag::nondeterministic_seeded) && !facts.is(OpFlag::GivenSeed);
  if (foreign || draws) facts = facts | OpFlag::Draws;
  const bool sized_by_data = op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::data_dependent_output);
  if (sized_by_data && !facts.is(OpFlag::MaskDecides)) facts = facts | OpFlag::SizedByData;
  return facts;
}

std::span<const OpRow> op_rows() { return table::kRows; }

std::vector<const OpRow*> rows_of(std::string_view name) {
  std::vector<const OpRow*> rows;
  for_each_row(name, [&](const OpRow& row) { rows.push_back(&row); });
  return rows;
}

std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

}  // namespace fastjit::capture
