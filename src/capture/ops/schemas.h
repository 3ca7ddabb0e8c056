#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include <span>
#include <string>
#include <string_view>

namespace fastjit::capture {

/// Full schemas of the operators that lowering knows, in this release of torch.
std::span<const std::string_view> known_schemas();
/// Whether the running torch's operator takes and gives what its row was written for. The GIL is held.
bool has_known_schema(const c10::OperatorHandle& op);
/// For tests: from now on `schema` is what is known of the operator that it names. Gives back what was.
std::string expect_schema(std::string schema);

}  // namespace fastjit::capture
