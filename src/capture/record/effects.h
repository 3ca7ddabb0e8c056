#pragma once
// What a call writes, and what it is without that.
#include "capture/record/trace.h"

namespace fastjit::capture {

/// The arguments that the call writes, by position: those the schema marks and those it hides.
std::vector<size_t> written_arguments(const Event& event);

/// "aten::add_.Tensor" -> "aten::add.Tensor", "aten::__iand__.Tensor" -> "aten::__and__.Tensor"; empty if not in place.
std::string functional_name(std::string_view name);

/// "aten::add.out" -> "aten::add" and "aten::add.Tensor": what it may be without its last argument; else none.
std::vector<std::string> forms_without_out(std::string_view name);

}  // namespace fastjit::capture
