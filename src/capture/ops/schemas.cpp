#include "capture/ops/schemas.h"

#include <map>
#include <sstream>
#include <vector>

#include "capture/ops/aten.h"
#include "capture/ops/torch_release.h"

namespace fastjit::capture {
namespace {

// "aten::add.Tensor" of "aten::add.Tensor(Tensor self, ...) -> Tensor".
std::string_view name_of(std::string_view schema) { return schema.substr(0, schema.find('(')); }

struct Known {
  std::string schema;
  bool compared = false, equal = false;  // with the running torch's: once
};

using Table = std::map<std::string, Known, std::less<>>;

Table& table() {
  static auto* const all = [] {
    auto* made = new Table;
    for (std::string_view schema : known_schemas()) made->emplace(name_of(schema), Known{std::string(schema)});
    return made;
  }();
  return *all;
}

}  // namespace

std::span<const std::string_view> known_schemas() {
  static const std::vector<std::string_view> all = [] {
    std::vector<std::string_view> made;
    const auto add = [&](bool holds, std::string_view schema) {
      if (holds) made.push_back(schema);
    };
#define SCHEMA(schema) add(true, schema);
#define SCHEMA_IF(holds, schema) add(holds, schema);
#include "capture/ops/schemas.def"
#undef SCHEMA
#undef SCHEMA_IF
    return made;
  }();
  return all;
}

bool has_known_schema(const c10::OperatorHandle& op) {
  const auto it = table().find(full_name(op.operator_name()));
  if (it == table().end()) return false;
  Known& known = it->second;
  if (!known.compared) {
    std::ostringstream text;
    text << op.schema();
    known.equal = text.str() == known.schema;
    known.compared = true;
  }
  return known.equal;
}

std::string expect_schema(std::string schema) {
  Known& known = table()[std::string(name_of(schema))];
  std::string before = std::exchange(known.schema, std::move(schema));
  known.compared = false;
  return before;
}

}  // namespace fastjit::capture
