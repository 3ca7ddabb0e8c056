#pragma once
// The release of torch that the extension is built with; fastjit refuses any other at import. What eager does is a fact
// of its release: tables whose rows differ between releases choose with since().
#include <torch/headeronly/version.h>

namespace fastjit::capture {

constexpr bool since(int major, int minor) {
  return TORCH_VERSION_MAJOR > major || (TORCH_VERSION_MAJOR == major && TORCH_VERSION_MINOR >= minor);
}
static_assert(since(2, 13), "what older releases do is in no table");

}  // namespace fastjit::capture
