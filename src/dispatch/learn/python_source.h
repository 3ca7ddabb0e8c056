#pragma once
// Extern calls as Python expressions, for inspect("source").
#include <string>
#include <utility>

#include "capture/calls.h"

namespace fastjit::dispatch {

/// ("torch.ops.aten.mm.default({0}, {1})", returns several tensors).
std::pair<std::string, bool> python_source(const capture::CallTemplate& call);

}  // namespace fastjit::dispatch
