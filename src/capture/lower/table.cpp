// The table as a whole: the rows of this folder and what aten.def says is entered, by name; torch's types in the IR.
#include <array>
#include <unordered_map>

#include "capture/lower/util.h"

namespace fastjit::capture {

std::span<const LowerRow> lowerings() {
  static const std::vector<LowerRow> kAll = [] {
    std::vector<LowerRow> all;
    for (auto rows : {unary_rows(), binary_rows(), compare_rows(), activation_rows(), reduce_rows(), norm_rows(),
                      view_rows(), join_rows(), gather_rows(), backward_activation_rows(), backward_convolution_rows(),
                      backward_loss_rows(), backward_norm_rows(), backward_view_rows()})
      all.insert(all.end(), rows.begin(), rows.end());
    for (const OpRow& row : op_rows())
      if (row.facts.is(OpFlag::Enter)) all.push_back({row.op, Level::Decompose, nullptr});
    return all;
  }();
  return kAll;
}

const LowerRow* find_lowering(std::string_view op) {
  static const std::unordered_map<std::string_view, const LowerRow*> kByName = [] {
    std::unordered_map<std::string_view, const LowerRow*> by_name;
    for (const LowerRow& row : lowerings()) by_name.emplace(row.op, &row);
    return by_name;
  }();
  const auto it = kByName.find(op);
  return it == kByName.end() ? nullptr : it->second;
}

namespace {
struct TypePair {
  ir::DType ir;
  ScalarType torch;
};
constexpr TypePair kTypes[] = {
    {DType::F32, ScalarType::Float},     {DType::F64, ScalarType::Double}, {DType::F16, ScalarType::Half},
    {DType::BF16, ScalarType::BFloat16}, {DType::I8, ScalarType::Char},    {DType::I16, ScalarType::Short},
    {DType::I32, ScalarType::Int},       {DType::I64, ScalarType::Long},   {DType::U8, ScalarType::Byte},
    {DType::Bool, ScalarType::Bool},
};
static_assert(std::size(kTypes) == ir::kComputedTypes);
}  // namespace

std::optional<ir::DType> to_ir(ScalarType type) {
  for (const TypePair& pair : kTypes)
    if (pair.torch == type) return pair.ir;
  return std::nullopt;
}

std::optional<ir::DType> memory_type(ScalarType type) {
  if (const auto computed = to_ir(type)) return computed;
  if (type == ScalarType::Undefined || c10::isQIntType(type)) return std::nullopt;
  for (size_t i = ir::kComputedTypes; i < ir::kDTypeCount; ++i)
    if (static_cast<size_t>(ir::kDTypes[i].bytes) == c10::elementSize(type)) return static_cast<ir::DType>(i);
  return std::nullopt;
}

ScalarType to_torch(ir::DType type) {
  for (const TypePair& pair : kTypes)
    if (pair.ir == type) return pair.torch;
  return ScalarType::Undefined;
}

}  // namespace fastjit::capture
