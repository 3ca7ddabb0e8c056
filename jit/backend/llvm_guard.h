#pragma once
// LLVM knows no exceptions: without memory it would end the process. Where it is left instead, none of its clean-up
// runs, so locks stay held and objects half made, and the next use may wait for ever. So it is used through here only:
// after such an end nothing of LLVM runs any more in this process.
#include <cstdint>
#include <functional>

namespace fastjit::backend {

enum class Use : uint8_t { Compile, Link };

/// Runs `work`, which calls LLVM: the only way to do that. Does not nest. Threads may be in it at the same time where
/// they use different objects of LLVM's; each holds a lock of support::hold_over_fork around it, as what ends LLVM in
/// one thread may leave LLVM's own locks held. Objects of LLVM's it must leave behind, not destroy, where
/// std::bad_alloc leaves it; where LLVM gives up no destructor runs. Throws support::Unable when LLVM cannot be used
/// (any more), or has no memory to work with.
void with_llvm(Use use, const std::function<void()>& work);

}  // namespace fastjit::backend
