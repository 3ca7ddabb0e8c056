#pragma once
// LLVM knows no exceptions: without memory it would end the process. Where it is left instead, none of its clean-up
// runs, so locks stay held and objects half made, and the next use may wait for ever. So it is used through here only:
// after such an end nothing of LLVM runs any more in this process.
#include <functional>

namespace fastjit::backend {

/// Runs `work`, which calls LLVM: the only way to do that, by one thread at a time. Objects of LLVM's it must leave
/// behind, not destroy, where std::bad_alloc leaves it; where LLVM gives up no destructor runs. Throws support::Unable
/// when LLVM cannot be used (any more), or has no memory to work with.
void with_llvm(const std::function<void()>& work);

}  // namespace fastjit::backend
